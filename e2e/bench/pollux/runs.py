"""Which runs there are: a policy, and a load and a workload of the authors'. Each is stored as soon as it is made.

A stored run is good for as long as the code that made it says the same, comments and docstrings apart.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Final

import numpy as np

from e2e.bench.pollux.measurements import Model
from e2e.bench.pollux.our_policy import PerdureAgent, PerdurePolicy
from e2e.bench.pollux.their_policy import RESTART, PolluxAgent, PolluxPolicy
from e2e.bench.pollux.world import Cluster, Job, LiveMoves, Restarts
from perdure import goodput
from perdure_operator.decide import sharing

LOADS: Final = (1.0, 0.5, 1.5, 2.0)
WORKLOADS: Final = tuple(range(1, 9))
INTERVAL: Final = 60.0
WARM: Final = 10.0
"""Until a joiner trains, in seconds."""
PAUSE: Final = 0.05
"""In which no rank of a job trains, where ranks join or leave, in seconds."""
SEED: Final = 1

_HERE: Final = Path(__file__).parent
_WORLD: Final = tuple(_HERE / f"{name}.py" for name in ("measurements", "world", "their_speed"))
_THEIRS: Final = (*_WORLD, _HERE / "genetic.py", _HERE / "their_policy.py")
_DECIDE: Final = Path(sharing.__file__).parent
_OURS: Final = (
    *_WORLD,
    _HERE / "their_policy.py",
    _HERE / "our_policy.py",
    *(_DECIDE / f"{name}.py" for name in ("sharing", "packing")),
    *(Path(goodput.__path__[0]) / f"{name}.py" for name in ("speed", "fitting", "batch", "hints")),
)


@dataclass(frozen=True)
class Way:
    """One way to run a cluster."""

    name: str
    title: str
    cluster: Callable[[], Cluster]
    code: tuple[Path, ...] = _OURS


def _pollux() -> Cluster:
    return Cluster(PolluxPolicy(SEED), PolluxAgent(), Restarts(RESTART), INTERVAL)


def _perdure(
    policy: PerdurePolicy | None = None,
    agent: PerdureAgent | None = None,
    moves: LiveMoves | Restarts | None = None,
    interval: float = INTERVAL,
) -> Cluster:
    policy = policy or PerdurePolicy(WARM + PAUSE)
    return Cluster(policy, agent or PerdureAgent(), moves or LiveMoves(RESTART, WARM, PAUSE), interval)


WAYS: Final[Mapping[str, Way]] = {
    way.name: way
    for way in (
        Way("pollux", "Pollux", _pollux, _THEIRS),
        Way("perdure", "Perdure", _perdure),
        Way("stay", "members stay where they are", lambda: _perdure(PerdurePolicy(WARM + PAUSE, together=False))),
        Way("restarts", "restarts of 30 s", lambda: _perdure(PerdurePolicy(RESTART), moves=Restarts(RESTART))),
        Way("warm-30", "joiners warm up for 30 s", lambda: _perdure(moves=LiveMoves(RESTART, RESTART, PAUSE))),
        Way("start-10", "first starts of 10 s", lambda: _perdure(moves=LiveMoves(WARM, WARM, PAUSE))),
        Way("every-15", "every 15 s", lambda: _perdure(interval=15.0)),
        Way("every-240", "every 240 s", lambda: _perdure(interval=240.0)),
        Way("epoch-batch", "batches at epochs' ends alone", lambda: _perdure(agent=PerdureAgent(saves_every=inf))),
        Way(
            "stay-epoch-batch",
            "both: members stay, batches at epochs' ends alone",
            lambda: _perdure(PerdurePolicy(WARM + PAUSE, together=False), PerdureAgent(saves_every=inf)),
        ),
        Way("look-batch", "batches at each look", lambda: _perdure(agent=PerdureAgent(at_each_look=True))),
        Way("eager", "changes need not be earned", lambda: _perdure(PerdurePolicy(0.0))),
        Way("one-device", "beside one device", lambda: _perdure(PerdurePolicy(WARM + PAUSE, by_fair_share=False))),
        Way(
            "plain-sum",
            "the sum of speedups",
            lambda: _perdure(PerdurePolicy(0.0, by_fair_share=False, plain_sum=True)),
        ),
    )
}


@dataclass(frozen=True)
class Result:
    """What one run came to, in seconds."""

    way: str
    load: float
    workload: int
    jobs: int
    mean: float
    p99: float
    moves: float
    """Of a job."""
    by_model: Mapping[str, float]
    """The mean of each model's jobs."""
    took: float
    code: str
    """That made it, see `code_of`."""


def run(way: Way, data: Path, models: Mapping[str, Model], load: float, workload: int) -> Result:
    """One run, from the first submission to the last end."""
    jobs = list(_jobs(data, models, load, workload))
    begin = time.process_time()
    way.cluster().run(jobs)
    lasted = {job.name: job.ended - job.submitted for job in jobs if job.ended is not None}
    of_model = {name: [lasted[job.name] for job in jobs if job.model.name == name] for name in models}
    return Result(
        way.name,
        load,
        workload,
        len(jobs),
        float(np.mean(list(lasted.values()))),
        float(np.percentile(list(lasted.values()), 99)),
        float(np.mean([job.moves for job in jobs])),
        {name: round(float(np.mean(values)), 1) for name, values in of_model.items() if values},
        round(time.process_time() - begin, 1),
        code_of(way.code),
    )


def stored(folder: Path, way: Way, load: float, workload: int) -> Result | None:
    """The run as it was stored, if the code that made it is still the same."""
    path = _path(folder, way.name, load, workload)
    if not path.exists():
        return None
    result = Result(**json.loads(path.read_text()))
    return result if result.code == code_of(way.code) else None


def store(folder: Path, result: Result) -> None:
    """Whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, result.way, result.load, result.workload)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(result), indent=2) + "\n")
    new.replace(path)


def published(data: Path) -> dict[tuple[str, float, int], tuple[float, float]]:
    """Mean and p99 of the authors' own runs, by policy, load and workload."""
    with (data / "published.csv").open(newline="") as file:
        return {
            (row["policy"], float(row["load"]), int(row["workload"].split("-")[1])): (
                float(row["mean_jct_s"]),
                float(row["p99_jct_s"]),
            )
            for row in csv.DictReader(file)
        }


@cache
def code_of(files: tuple[Path, ...]) -> str:
    """A hash of what code says."""
    found = hashlib.sha256()
    for path in files:
        found.update(ast.dump(_without_docstrings(ast.parse(path.read_text()))).encode())
    return found.hexdigest()[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [one for one in node.body if not _is_text(one)] or [ast.Pass()]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _jobs(data: Path, models: Mapping[str, Model], load: float, workload: int) -> Iterator[Job]:
    folder = "workloads" if load == 1.0 else f"workloads-{load}"
    with (data / folder / f"workload-{workload}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield Job(row["name"], models[row["application"]], float(row["time"]))


def _path(folder: Path, way: str, load: float, workload: int) -> Path:
    return folder / f"pollux-{way}-{load}-{workload}.json"


def gathered(folder: Path, way: Way, load: float, workloads: Sequence[int] = WORKLOADS) -> list[Result]:
    """The stored runs of a way at a load."""
    found = (stored(folder, way, load, workload) for workload in workloads)
    return [result for result in found if result is not None]
