"""A job that knows nothing but what it has measured, and follows its own choices, comes near the best batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import mean, median

import pytest

from perdure.goodput.batch import BatchChoice, BatchRange, best_batch, choice_of, is_worth
from perdure.goodput.fitting import StepTimes, fit
from perdure.goodput.speed import Speed

SPEEDS = (
    Speed(0.02, 5e-4, 0.002, 0.0005, 0.01, 0.001, 64),
    Speed(0.005, 1e-4, 0.004, 0.001, 0.02, 0.002, 64),
    Speed(0.05, 2e-3, 0.02, 0.0, 0.2, 0.01, 64),
    Speed(0.01, 1e-3, 0.0, 0.0, 0.0, 0.0, 64),
    Speed(0.0, 1e-3, 0.001, 0.001, 0.05, 0.0, 64),
)
NOISES = (10.0, 300.0, 3000.0, 1e5)
SIZES = ((1, 1), (1, 2), (1, 4), (2, 8), (2, 16))
"""Nodes and ranks, one after the other; each is new to the job, and twice what it had."""
EPOCHS = 3
ALLOWED = BatchRange(64, 4096, (8, 256), accumulates=True)


class Job:
    """Decides at each epoch's begin, as a trainer does, by the medians of steps that differ by 5 %."""

    def __init__(self, true: Speed, noise: float, draw: random.Random) -> None:
        self.true, self.noise, self.draw = true, noise, draw
        self.measured: dict[tuple[int, int, int, int], StepTimes] = {}
        self.batch = ALLOWED.initial

    def epoch(self, nodes: int, ranks: int) -> BatchChoice:
        """Trains one, and says with what goodput it truly did."""
        believed = fit(self.measured.values())
        now = choice_of(believed, self.noise, ALLOWED, nodes, ranks, batch=self.batch)
        then = best_batch(believed, self.noise, ALLOWED, nodes, ranks)
        if then and (not now or is_worth(now, then)):
            self.batch = then.batch
        found = choice_of(self.true, self.noise, ALLOWED, nodes, ranks, batch=self.batch)
        assert found
        self.measure(nodes, ranks, found)
        return found

    def measure(self, nodes: int, ranks: int, choice: BatchChoice) -> None:
        kind = (nodes, ranks, choice.micro, choice.accumulation)
        micro = self.median(self.true.compute_seconds(choice.micro)) if choice.accumulation else None
        last = self.median(self.true.step_seconds(nodes, ranks, choice.micro, 0))
        self.measured[kind] = StepTimes(*kind, micro_seconds=micro, step_seconds=last)

    def median(self, seconds: float) -> float:
        return median(seconds * self.draw.gauss(1, 0.05) for _ in range(32))


def shares_of_the_best(speed: Speed, noise: float, draw: random.Random) -> Iterator[float]:
    """Of each size, after its epochs."""
    job = Job(speed, noise, draw)
    for nodes, ranks in SIZES:
        *_, last = [job.epoch(nodes, ranks) for _ in range(EPOCHS)]
        best = best_batch(speed, noise, ALLOWED, nodes, ranks)
        assert best
        yield last.goodput / best.goodput


@pytest.mark.parametrize("speed", SPEEDS)
def test_choices_by_what_was_measured_come_near_the_best_ones(seed: int, speed: Speed) -> None:
    draw = random.Random(f"{seed} {speed}")  # noqa: S311 - it has to be repeatable
    shares = [share for noise in NOISES for share in shares_of_the_best(speed, noise, draw)]
    assert mean(shares) > 0.97
    assert min(shares) > 0.8
