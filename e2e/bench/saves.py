"""What a save costs by size, length of a step, ranks, sharding and store, beside other ways to save and a control that
does not save: no cluster needed.

One row is the base, and each other one differs from it in one thing. All ways of a row train in processes of their own,
in turns, and every save has its control in the same process, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.bench.report import FOLDER, Figure
from e2e.harness.local_run import free_port
from e2e.harness.local_s3 import S3Server
from e2e.prepare import Progress

ROUNDS = 3
OURS, CONTROL, BASELINE = "perdure", "control", "dcp"
NAMES = {
    OURS: "Perdure",
    CONTROL: "no saves",
    BASELINE: "dcp.async_save, its stager kept",
    "dcp-process": "dcp.async_save, another process, shared memory, plans kept",
    "torch-checkpointing": "torch_checkpointing, which does not wait for the disk",
    "dcp-save": "dcp.save",
    "torch": "torch.save",
    "safetensors": "safetensors",
}
USUAL = (CONTROL, OURS, BASELINE)
QUANTITIES = {
    "stall": ("stall per save", "s"),
    "held": ("held at the hand-out", "s"),
    "together": ("held since the last rank came", "s"),
    "durable": ("until durable", "s"),
    "known": ("until the ranks know it", "s"),
    "during": ("a step while it uploads, of one without", "times"),
    "cpu": ("CPU", "s per GiB"),
}
IN_MEMORY = Path("/dev/shm")
AIM_SECONDS = 0.02


@dataclass(frozen=True)
class Row:
    """What is saved, and where."""

    key: str
    name: str
    kind: str = "whole"
    mib: int = 1024
    seconds: float = 0.25
    ranks: int = 1
    store: str = "folder"
    ways: Sequence[str] = USUAL
    restores: tuple[int, ...] = ()
    """On how many ranks it is loaded again."""


BASE = Row("base", "1 GiB, steps of 0.25 s, 1 rank, a folder", ways=tuple(NAMES), restores=(1, 2))
OTHER = replace(BASE, ways=USUAL, restores=(1,))
FSDP = replace(OTHER, kind="fsdp2", mib=256)
ROWS = (
    BASE,
    replace(OTHER, key="256", name="256 MiB", mib=256, ways=tuple(NAMES)),
    replace(OTHER, key="4096", name="4 GiB", mib=4096),
    replace(OTHER, key="short", name="steps of 0.02 s, AdamW steps all", mib=256, seconds=0.02, restores=()),
    replace(OTHER, key="lora", name="steps of 0.02 s, all but one layer is frozen", kind="lora", seconds=0.02),
    replace(OTHER, key="long", name="steps of 1 s", seconds=1.0, restores=()),
    replace(OTHER, key="ranks-2", name="2 ranks", ranks=2, restores=(2, 1)),
    replace(OTHER, key="ranks-4", name="4 ranks", ranks=4, restores=(4,)),
    replace(
        FSDP, key="fsdp-2", name="256 MiB, FSDP2, 2 ranks", ranks=2, restores=(2, 4, 1), ways=(*USUAL, "dcp-process")
    ),
    replace(FSDP, key="fsdp-4", name="256 MiB, FSDP2, 4 ranks", ranks=4, restores=(4, 2)),
    replace(OTHER, key="memory", name="a folder in memory: nearly a null sink", store="memory"),
    replace(OTHER, key="s3", name="S3", ways=(CONTROL, OURS), store="s3"),
    replace(
        FSDP,
        key="s3-fsdp-2",
        name="256 MiB, FSDP2, 2 ranks, S3",
        ways=(CONTROL, OURS),
        store="s3",
        ranks=2,
        restores=(2, 1),
    ),
)
QUICK = ("256", "short", "fsdp-2")
QUICK_ROUNDS = 1


def measure(
    progress: Progress, *, keys: Sequence[str] = (), quick: bool = False
) -> tuple[list[Figure], dict[str, Any]]:
    """The rows with these keys, else all, each by its ways; dcp has no S3 of its own. `quick`: fewer and shorter."""
    if unknown := {*keys} - {row.key for row in ROWS}:
        raise RuntimeError(f"no row {', '.join(unknown)}: choose from {', '.join(row.key for row in ROWS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    rounds, figures = QUICK_ROUNDS if quick else ROUNDS, list[Figure]()
    for row in ROWS:
        if row.key in (keys or (QUICK if quick else [row.key])):
            found = {way: _measured(progress, way, row, rounds) for way in row.ways}
            figures += _figures(row, found)
    return figures, {"cores": os.cpu_count(), "rounds": rounds}


@dataclass(frozen=True)
class Found:
    """The costs of one way."""

    saves: list[dict[str, float]]
    peak: float
    """MiB."""
    copy: float
    """Seconds of a copy of rank 0's part."""
    window: float
    """Seconds of a step until its optimizer steps."""
    restored: Mapping[int, float]
    """Seconds by ranks."""


def _figures(row: Row, found: Mapping[str, Found]) -> Iterator[Figure]:
    ours, control, theirs = found[OURS], found[CONTROL], found.get(BASELINE)
    yield Figure(f"{row.name}: a step where nobody saves", "s", tuple(cost["step"] for cost in control.saves))
    yield Figure(f"{row.name}: a copy of the part in memory", "s", (control.copy,))
    aim = max(0.0, control.copy - control.window) + AIM_SECONDS
    yield Figure(f"{row.name}: aim for the stall", "s", (aim,))
    for quantity, (name, unit) in QUANTITIES.items():
        usual = [cost[quantity] for cost in theirs.saves if quantity in cost] if theirs else []
        baseline = Figure("", unit, tuple(usual)).median if usual else None
        for way, one in found.items():
            if quantity not in one.saves[0]:
                continue
            samples = tuple(cost[quantity] for cost in one.saves)
            told = (baseline, NAMES[BASELINE]) if way == OURS and baseline is not None else (None, "")
            yield Figure(f"{row.name}: {name}: {NAMES[way]}", unit, samples, *told)
    for way, one in found.items():
        if way != CONTROL:
            aim_mib = row.mib / row.ranks + 256 if way == OURS else None
            told = (aim_mib, "the part, and 256 MiB") if aim_mib else (None, "")
            yield Figure(f"{row.name}: memory: {NAMES[way]}", "MiB", (one.peak - control.peak,), *told)
    for ranks, seconds in ours.restored.items():
        baseline = theirs.restored.get(ranks) if theirs else None
        yield Figure(f"{row.name}: restore on {ranks}", "s", (seconds,), baseline, "dcp.load" if theirs else "")


def _measured(progress: Progress, way: str, row: Row, rounds: int) -> Found:
    with _place(row) as (folder, uri, environ):
        root = uri if way == OURS else str(folder)
        progress.say(f"{row.name}: {rounds} saves: {NAMES[way]}")
        what = [way, root, row.kind, str(row.mib)]
        costs, *others = _run(row.ranks, [*what, str(row.seconds), str(rounds)], environ)
        for number, cost in enumerate(costs["saves"] if others else ()):
            came = max(rank["saves"][number]["came"] for rank in (costs, *others))
            cost["together"] = max(0.0, cost["given"] - came)
        restored = {}
        for ranks in row.restores if way in (OURS, BASELINE) else ():
            progress.say(f"{row.name}: a restore on {ranks}: {NAMES[way]}")
            restored[ranks] = float(_run(ranks, [*what, "restore"], environ)[0])
    return Found(**costs, restored=restored)


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


def _run(ranks: int, arguments: list[str], environ: Mapping[str, str]) -> list[Any]:
    """What each rank has found."""
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
    return [json.loads(output.splitlines()[-1])["found"] for output, _ in outputs]
