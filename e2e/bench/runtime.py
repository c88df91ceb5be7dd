"""The cost of an exit save and a restore, beside the usual alternatives: one rank, a folder, no cluster needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.bench.report import FOLDER, Figure
from e2e.prepare import Progress

MIB = 1024
ROUNDS = 8
WAYS = ("Perdure", "dcp.save", "torch.save", "safetensors")
"""Ours first, then its baseline."""
ORDERS = [[WAYS[(place + number) % 4] for place in (0, 1, 3, 2)] for number in range(4)]
ACTS = ("save", "load", "start")
"""Measured by `e2e.bench.saving`: `load` into an existing state, `start` in a new process."""
UNITS = {"wall": "s", "cpu": "CPU s", "extra": "MiB"}


def measure(progress: Progress, mib: int = MIB, rounds: int = ROUNDS) -> tuple[list[Figure], dict[str, Any]]:
    """Every way in turn, several rounds, so that other load affects all of them alike.

    In four rounds each way comes right after each other one once (Williams 1949): on a virtual machine the same save
    costs up to four times as much CPU, depending on who has used its pages of memory before.
    """
    found: dict[str, list[dict[str, dict[str, float]]]] = {way: [] for way in WAYS}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number in range(rounds):
        for way in ORDERS[number % len(ORDERS)]:
            progress.say(f"round {number + 1} of {rounds}: {mib} MiB by {way}")
            with tempfile.TemporaryDirectory(dir=FOLDER) as folder:  # on a disk: /tmp may be memory
                found[way].append(_cost(way, Path(folder), mib))
    return _figures(found), {"cores": os.cpu_count(), "MiB": mib, "rounds": rounds}


def _figures(found: dict[str, list[dict[str, dict[str, float]]]]) -> list[Figure]:
    figures = []
    for act in ACTS:
        for quantity, unit in UNITS.items():
            ways = [way for way in WAYS if act in found[way][0]]
            samples = {way: tuple(cost[act][quantity] for cost in found[way]) for way in ways}
            theirs = Figure(f"dcp.{act}", unit, samples["dcp.save"])
            for way in ways:
                name = f"{act}, {quantity}: {way}"
                baseline = (theirs.median, f"dcp's {act}, median") if way == "Perdure" else (None, "")
                figures.append(Figure(name, unit, samples[way], *baseline))
    return figures


def _cost(way: str, folder: Path, mib: int) -> dict[str, dict[str, float]]:
    argv = [sys.executable, "-m", "e2e.bench.saving", way, str(folder), str(mib)]
    done = subprocess.run(argv, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the bench of {way} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
