"""What a save costs by size, length of a step, ranks, sharding and store, beside dcp.async_save: no cluster needed.

One row is the base, and each other one differs from it in one thing. Both ways train in processes of their own, one
after the other, and every save has its control in the same process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.bench.report import FOLDER, Figure
from e2e.harness.local_run import free_port
from e2e.harness.local_s3 import S3Server
from e2e.prepare import Progress

ROUNDS = 3
BASELINE = "dcp.async_save, its stager kept"
QUANTITIES = {
    "stall": ("stall per save", "s"),
    "held": ("held at the hand-out", "s"),
    "durable": ("until durable", "s"),
    "during": ("a step while it uploads, of one without", "times"),
    "cpu": ("CPU", "s per GiB"),
}
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Row:
    """What is saved, and where."""

    name: str
    kind: str = "whole"
    mib: int = 1024
    seconds: float = 0.25
    ranks: int = 1
    store: str = "folder"
    restores: tuple[int, ...] = ()
    """On how many ranks it is loaded again."""


BASE = Row("1 GiB, steps of 0.25 s, 1 rank, a folder", restores=(1,))
ROWS = (
    BASE,
    replace(BASE, name="256 MiB", mib=256),
    replace(BASE, name="4 GiB", mib=4096),
    replace(BASE, name="steps of 0.02 s, all but one layer is frozen", kind="lora", seconds=0.02),
    replace(BASE, name="steps of 1 s", seconds=1.0, restores=()),
    replace(BASE, name="2 ranks", ranks=2, restores=(2,)),
    replace(BASE, name="4 ranks", ranks=4, restores=(4,)),
    replace(BASE, name="256 MiB, FSDP2, 2 ranks", kind="fsdp2", mib=256, ranks=2, restores=(2, 4, 1)),
    replace(BASE, name="256 MiB, FSDP2, 4 ranks", kind="fsdp2", mib=256, ranks=4, restores=(4, 2)),
    replace(BASE, name="a folder in memory", store="memory"),
    replace(BASE, name="S3", store="s3"),
)


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Each row by each way; dcp has no S3 of its own."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    for row in ROWS:
        ways = ("perdure",) if row.store == "s3" else ("dcp", "perdure")
        found = {way: _measured(progress, way, row) for way in ways}
        figures += _figures(row, found)
    return figures, {"cores": os.cpu_count(), "rounds": ROUNDS}


def _figures(row: Row, found: Mapping[str, tuple[list[dict[str, float]], dict[int, float]]]) -> Iterator[Figure]:
    costs, restored = found["perdure"]
    theirs, theirs_restored = found.get("dcp", ([], {}))
    yield Figure(f"{row.name}: a step without a save", "s", tuple(cost["step"] for cost in costs))
    for quantity, (name, unit) in QUANTITIES.items():
        baseline = Figure("", unit, tuple(cost[quantity] for cost in theirs)).median if theirs else None
        samples = tuple(cost[quantity] for cost in costs)
        yield Figure(f"{row.name}: {name}", unit, samples, baseline, BASELINE if theirs else "")
    for ranks, seconds in restored.items():
        yield Figure(f"{row.name}: restore on {ranks}", "s", (seconds,), theirs_restored.get(ranks), "dcp.load")


def _measured(progress: Progress, way: str, row: Row) -> tuple[list[dict[str, float]], dict[int, float]]:
    """The costs of each save, and the seconds of each restore."""
    with _place(row) as (folder, uri, environ):
        root = uri if way == "perdure" else str(folder)
        progress.say(f"{row.name}: {ROUNDS} saves by {way}")
        what = [way, root, row.kind, str(row.mib)]
        costs = _run(row.ranks, [*what, str(row.seconds), str(ROUNDS)], environ)
        restored = {}
        for ranks in row.restores:
            progress.say(f"{row.name}: a restore by {way} on {ranks}")
            restored[ranks] = float(_run(ranks, [*what, "restore"], environ))
    return costs, restored


@contextmanager
def _place(row: Row) -> Iterator[tuple[Path, str, Mapping[str, str]]]:
    """A folder, the root's URI, and what the environment says of its server."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if row.store == "memory" else FOLDER) as name:
        folder = Path(name, "saves")
        folder.mkdir()
        if row.store != "s3":
            yield folder, folder.as_uri(), {}
            return
        with S3Server(folder) as server:
            server.create_bucket("bench")
            yield folder, "s3://bench/saves", server.environ


def _run(ranks: int, arguments: list[str], environ: Mapping[str, str]) -> Any:
    """What rank 0 has found."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PERDURE_")}
    place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **environ}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "e2e.bench.saves_training", *arguments],
            env={**inherited, "OMP_NUM_THREADS": "1", **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=900) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{errors[-3000:]}")
    return json.loads(outputs[0][0].splitlines()[-1])["found"]
