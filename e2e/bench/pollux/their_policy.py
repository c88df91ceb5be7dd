"""Pollux: who gets which devices, and which batch a job trains with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from e2e.bench.pollux import their_speed
from e2e.bench.pollux.genetic import Problem, Search, States, adapted
from e2e.bench.pollux.measurements import Model
from e2e.bench.pollux.their_speed import Batch, BatchLimits
from e2e.bench.pollux.world import DEVICES_OF_NODE, NODES, Devices, Job

RESTART: Final = 30.0
"""What the policy believes that a move costs, in seconds."""
ALL: Final = NODES * DEVICES_OF_NODE


def limits(model: Model) -> BatchLimits:
    """What a job of this model may choose of."""
    return BatchLimits(model.initial_batch, model.most_batch, model.micro)


class PolluxAgent:
    """Chooses the batch anew at each look and at each epoch's end."""

    saves_every: Final = math.inf

    def begin(self, job: Job) -> Batch:
        """See Agent."""
        bounds, ranks = limits(job.model), sum(job.trains_on)
        if job.model.fixed_batch or not job.times:
            batch = job.model.fixed_batch or max(bounds.initial, bounds.micro[0] * ranks)
            return their_speed.within(their_speed.split(batch, bounds, ranks), bounds, ranks)
        _, micro, accumulation = best(job, np.array([len(job.trains_on)]), np.array([ranks]))
        return their_speed.within(Batch(int(micro[0]), int(accumulation[0])), bounds, ranks)

    def go_on(self, job: Job, epoch_ended: bool, saves: bool = False) -> Batch:  # noqa: ARG002 - it looks each time
        """See Agent."""
        return self.begin(job)


def best(
    job: Job, nodes: NDArray[np.int64], ranks: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """What the job believes of these sizes, by all that it has measured."""
    if job.noise is None:
        raise ValueError(f"{job.name} has measured nothing")
    parameters = their_speed.fit(their_speed.frozen(job.times))
    return their_speed.best(parameters, job.noise, limits(job.model), nodes, ranks)


class PolluxPolicy:
    """Searches at each look, from where the last search ended."""

    def __init__(self, seed: int, power: float = -1.0) -> None:
        self._search = Search(seed)
        self._power = power
        self._front: States | None = None
        self._jobs: list[str] = []

    def divide(self, now: float, jobs: Sequence[Job]) -> Mapping[str, Devices]:
        """See Policy."""
        jobs = sorted(jobs, key=lambda job: (job.service, job.submitted))
        names = [job.name for job in jobs]
        base = np.array([np.bincount(job.devices, minlength=NODES) for job in jobs], dtype=np.int8)
        begin = base[None] if self._front is None else adapted(self._front, self._jobs, names)
        best_state, self._front = self._search.best(self._problem(now, jobs, base), begin)
        self._jobs = names
        return {
            name: tuple(np.repeat(np.arange(NODES), row).tolist()) for name, row in zip(names, best_state, strict=True)
        }

    def _problem(self, now: float, jobs: Sequence[Job], base: States) -> Problem:
        fair = math.ceil(ALL / len(jobs))
        age = np.array([now - job.submitted for job in jobs])
        moves = np.array([job.moves for job in jobs])
        most = [min(max(2 * job.most_ranks_profiled, 1), ALL, job.model.most_ranks) for job in jobs]
        return Problem(
            speedups=np.array([_speedups(job, fair, ranks) for job, ranks in zip(jobs, most, strict=True)]),
            most_ranks=np.array(most),
            kept=np.maximum(age - moves * RESTART, 0.0) / (age + RESTART),
            base=base,
            power=self._power,
        )


def _speedups(job: Job, fair: int, most: int) -> NDArray[np.float64]:
    """By one node or several, and ranks: beside a fair share on one node."""
    found = np.zeros((2, ALL + 1))
    ranks = np.arange(1, most + 1)
    if not job.times:
        found[:, 1 : most + 1] = ranks / fair
        return found
    nodes = np.concatenate([[1], np.ones(most, dtype=np.int64), np.full(most, 2)])
    goodput = best(job, nodes, np.concatenate([[fair], ranks, ranks]))[0]
    found[:, 1 : most + 1] = goodput[1:].reshape(2, most) / goodput[0]
    return found
