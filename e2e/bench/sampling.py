"""The cost of the order of ten million samples to a rank, at its start and over an epoch: no cluster needed."""

from __future__ import annotations

import resource
import time
from collections import deque
from typing import Any

import numpy as np

from e2e.bench.report import Figure
from e2e.prepare import Progress
from perdure.loop.data.sampling import BatchIds, SamplingPlan

SAMPLES = 10_000_000
BATCH = 256
TIMES = 5
START_BOUND = 0.2
MEMORY_BOUND = 100.0


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Start, memory, and a whole epoch."""
    progress.say(f"ordering {SAMPLES} samples")
    before = _resident()
    starts = tuple(_start(seed) for seed in range(TIMES))
    epochs = tuple(_epoch(seed) for seed in range(2))
    grown = (_resident() - before,)
    shuffled = tuple(_shuffle(seed) for seed in range(TIMES))
    figures = [
        Figure("from nothing to the first batch, 10 M samples", "s", starts, START_BOUND, "bound"),
        Figure("most memory of an epoch's order", "MiB", grown, MEMORY_BOUND, "bound"),
        Figure(
            "CPU for all of an epoch's batches", "s", epochs, _median(shuffled), "one numpy permutation, in advance"
        ),
    ]
    return figures, {"samples": SAMPLES, "batch": BATCH}


def _start(seed: int) -> float:
    begun = time.perf_counter()
    next(iter(BatchIds(_plan(seed).shares(0, 0, 0, 2))))
    return time.perf_counter() - begun


def _epoch(seed: int) -> float:
    begun = time.process_time()
    deque(BatchIds(_plan(seed).shares(0, 0, 0, 2)), maxlen=0)
    return time.process_time() - begun


def _shuffle(seed: int) -> float:
    begun = time.process_time()
    np.random.Generator(np.random.PCG64([seed, 0])).permutation(SAMPLES)
    return time.process_time() - begun


def _plan(seed: int) -> SamplingPlan:
    return SamplingPlan("train", SAMPLES, BATCH, seed)


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _median(values: tuple[float, ...]) -> float:
    return sorted(values)[len(values) // 2]
