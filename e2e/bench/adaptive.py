"""Whether a batch that adapts reaches the loss of a fixed one sooner, and none that is worse in the end.

The models of examples/digits and examples/tinygpt on one rank, from batches of 16 samples on, with five seeds each.
Both ways of a seed run at the same time, each on a core of its own, so they meet the same other processes. Losses are
those on the test set; evaluations do not count as time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.bench.report import Figure
from e2e.harness.evidence import NoEvidence
from e2e.harness.lab import DIGITS, TINYGPT
from e2e.prepare import Progress

SCRIPT: Final = Path(__file__).with_name("adaptive_trainer.py")
SEEDS: Final = range(5)
EPOCHS: Final = {"digits": 20, "tinygpt": 6}
FOLDERS: Final = {"digits": DIGITS, "tinygpt": TINYGPT}
WAYS: Final = ("fixed", "adapts")


@dataclass(frozen=True)
class Epoch:
    """How a training stood at the end of an epoch."""

    seconds: float
    loss: float
    batch: int


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Ten trainings of each model."""
    figures, batches = list[Figure](), dict[str, list[int]]()
    for what in EPOCHS:
        pairs = []
        for seed in SEEDS:
            progress.say(f"{what}, seed {seed}")
            pairs.append(_trained(what, seed))
        figures.extend(_figures(what, pairs))
        batches[what] = [adapts[-1].batch for _, adapts in pairs]
    return figures, {"cores": os.cpu_count(), "last batches": batches}


def _trained(what: str, seed: int) -> list[list[Epoch]]:
    """One training of each way."""
    with tempfile.TemporaryDirectory() as folder:
        running = [_begun(what, seed, way, Path(folder) / way) for way in WAYS]
        told = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise NoEvidence(f"{what}, seed {seed}: a training has failed")
    return [[Epoch(**json.loads(line)) for line in lines.splitlines() if line.startswith("{")] for lines in told]


def _begun(what: str, seed: int, way: str, root: Path) -> subprocess.Popen[str]:
    words = [sys.executable, str(SCRIPT), what, str(seed), str(EPOCHS[what]), way]
    environ = {**os.environ, "PYTHONPATH": str(FOLDERS[what]), "PERDURE_ROOT": str(root)}
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True)


def _figures(what: str, pairs: Sequence[Sequence[Sequence[Epoch]]]) -> Iterator[Figure]:
    sooner, losses = list[float](), list[float]()
    for fixed, adapts in pairs:
        best = min(fixed, key=lambda epoch: epoch.loss)
        reached = next((epoch.seconds for epoch in adapts if epoch.loss <= best.loss), None)
        losses.append(min(epoch.loss for epoch in adapts) / best.loss)
        if reached is not None:
            sooner.append(reached / best.seconds)
    yield Figure(f"{what}, best loss, of the fixed batch's", "", tuple(losses), 1.0, "no worse")
    yield Figure(f"  seeds that reach it, of {len(pairs)}", "", (float(len(sooner)),))
    if sooner:
        yield Figure("  seconds until it is reached, of the fixed batch's", "", tuple(sooner), 1.0, "as soon")
