"""What a step of a model takes, and what a sample is worth at each batch: measured by others, interpolated here. Pure.

A placement is the number of ranks on each of the nodes, in the nodes' order.
"""

from __future__ import annotations

import bisect
import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from scipy.interpolate import LinearNDInterpolator

MOST_NODES: Final = 16
SMALLER_MICRO: Final[Mapping[str, int]] = {"yolov3": 8}
"""Above this nothing was measured on many nodes."""
FIXED_BATCH: Final[Mapping[str, int]] = {"ncf": 32768}
"""These jobs run with one rank and this batch under each policy, as the authors had it."""

Placement = tuple[int, ...]


class StepTime(NamedTuple):
    """Seconds of a step that synchronises, and those of it that it takes longer for that."""

    step: float
    sync: float


class Noise(NamedTuple):
    """The gradient's squared norm, and the variance of one of the initial batch."""

    sqr: float
    var: float

    def gain(self, scale: float) -> float:
        """What a step is worth with a batch that is `scale` times the initial one."""
        return (self.var + self.sqr) / (self.var / scale + self.sqr)


@dataclass(frozen=True)
class Epochs:
    """One training at a constant batch, epoch by epoch."""

    progress: Sequence[float]
    """In steps of the initial batch, at each epoch's end."""
    sqr: Sequence[float]
    var: Sequence[float]


@dataclass(frozen=True)
class Timed:
    """One measurement of a step."""

    micro: int
    """Samples of one rank."""
    time: StepTime


class Model:
    """One measured model."""

    def __init__(
        self,
        name: str,
        epochs: Mapping[int, Epochs],
        placements: Mapping[Placement, Sequence[Timed]],
        scaled: Mapping[tuple[int, int], Sequence[Timed]],
    ) -> None:
        """`placements` by ranks on each node, `scaled` by (nodes, ranks), both with rising micro-batches."""
        self.name = name
        self._batches = sorted(epochs)
        self._epochs = epochs
        self._placements = placements
        self._scaled = scaled
        self._known: dict[tuple[Placement, int], StepTime] = {}
        micros = [timed.micro for row in placements.values() for timed in row]
        self.initial_batch, self.most_batch = self._batches[0], self._batches[-1]
        self.micro = (min(micros), SMALLER_MICRO.get(name, max(micros)))
        self.fixed_batch = FIXED_BATCH.get(name)
        self.epochs = min(len(one.progress) for one in epochs.values())
        self._ends = [min(one.progress[epoch] for one in epochs.values()) for epoch in range(self.epochs)]

    @property
    def most_ranks(self) -> int:
        """So many ranks each have the smallest micro-batch of the largest batch."""
        return 1 if self.fixed_batch else self.most_batch // self.micro[0]

    def end(self, epoch: int) -> float:
        """The progress at which this epoch, counted from 0, ends."""
        return self._ends[epoch]

    def noise(self, batch: int, epoch: int) -> Noise:
        """Of this batch in this epoch, between the two measured batches around it."""
        upper = self._batches[bisect.bisect_left(self._batches, batch)]
        lower = self._batches[bisect.bisect_right(self._batches, batch) - 1]
        low, high = self._epochs[lower], self._epochs[upper]
        share = (batch - lower) / (upper - lower) if upper > lower else 0.0
        sqr = low.sqr[epoch] + share * (high.sqr[epoch] - low.sqr[epoch])
        return Noise(sqr, low.var[epoch] + share * (high.var[epoch] - low.var[epoch]))

    def time(self, placement: Placement, micro: int) -> StepTime:
        """Of a step with this micro-batch. Nodes in a ring are alike from wherever one begins."""
        turned = min(placement[turn:] + placement[:turn] for turn in range(len(placement)))
        known = self._known.get((turned, micro))
        if known is None:
            known = self._known[turned, micro] = self._interpolated(turned, micro)
        return known

    def _interpolated(self, placement: Placement, micro: int) -> StepTime:
        if measured := self._placements.get(placement):
            micros = [timed.micro for timed in measured]
            times = [timed.time for timed in measured]
            if not micros[0] <= micro <= micros[-1]:
                raise ValueError(f"{self.name} on {placement}: no step was measured with {micro} samples a rank")
            step, sync = (float(np.interp(micro, micros, [time[part] for time in times])) for part in (0, 1))
            return StepTime(step, sync)
        nodes = min(len(placement), MOST_NODES)
        step, sync = (float(value) for value in self._between(nodes, sum(placement), micro))
        if math.isnan(step):
            raise ValueError(f"{self.name} on {placement}: nothing was measured around {micro} samples a rank")
        return StepTime(step, sync)

    @cached_property
    def _between(self) -> LinearNDInterpolator:
        found: dict[tuple[int, int, int], list[StepTime]] = defaultdict(list)
        for placement, row in self._placements.items():
            for timed in row:
                found[len(placement), sum(placement), timed.micro].append(timed.time)
        points = [(*key, *np.mean(times, axis=0)) for key, times in sorted(found.items())]
        points += [(*key, timed.micro, *timed.time) for key, row in self._scaled.items() for timed in row]
        table = np.array(points, dtype=float)
        return LinearNDInterpolator(table[:, :3], table[:, 3:])


def read(folder: Path) -> Model:
    """One model's folder of `traces`."""
    epochs = {}
    for path in folder.glob("validation-*.csv"):
        rows = _rows(path)
        columns = ([float(row[name]) for row in rows] for name in ("progress", "grad_sqr", "grad_var"))
        epochs[int(path.stem.split("-")[1])] = Epochs(*columns)
    placements: dict[Placement, list[Timed]] = defaultdict(list)
    for row in _rows(folder / "placements.csv"):
        placements[tuple(int(digit) for digit in row["placement"])].append(_timed(row))
    scaled: dict[tuple[int, int], list[Timed]] = defaultdict(list)
    for row in _rows(folder / "scalability.csv"):
        scaled[int(row["num_nodes"]), int(row["num_replicas"])].append(_timed(row))
    return Model(folder.name, epochs, {key: sorted(row, key=_micro) for key, row in placements.items()}, scaled)


def read_all(data: Path) -> dict[str, Model]:
    """All models, by name."""
    return {folder.name: read(folder) for folder in sorted((data / "traces").iterdir()) if folder.is_dir()}


def _micro(timed: Timed) -> int:
    return timed.micro


def _timed(row: Mapping[str, str]) -> Timed:
    return Timed(int(row["local_bsz"]), StepTime(float(row["step_time"]), float(row["sync_time"])))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
