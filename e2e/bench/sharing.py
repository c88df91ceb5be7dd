"""How long one look at a pool of 160 jobs takes: its devices are divided, and judged. No cluster is needed.

CPU time counts.
"""

from __future__ import annotations

import random
import time
from typing import Any

from e2e.bench.report import Figure
from e2e.prepare import Progress
from perdure_operator.decide.packing import Pool
from perdure_operator.decide.sharing import PoolJob, Speedup, sizes_to_look_at
from perdure_operator.loop.pools import sizes_in

JOBS = 160
POOLS = {64: Pool(((4, 16),)), 512: Pool(((8, 64),))}
TIMES = 20
BOUND = 20.0
MILLI = 1000.0


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """A small pool, in which most jobs wait, and a large one."""
    progress.say(f"dividing pools among {JOBS} jobs")
    figures = [
        Figure(f"{JOBS} jobs on {devices} devices", "ms", _timed(pool), BOUND, "bound")
        for devices, pool in POOLS.items()
    ]
    return figures, {"jobs": JOBS}


def _timed(pool: Pool) -> tuple[float, ...]:
    found = []
    for seed in range(TIMES):
        jobs = draw_jobs(seed)
        began = time.process_time()
        sizes_in(pool, jobs, {})
        found.append(MILLI * (time.process_time() - began))
    return tuple(found)


def draw_jobs(seed: int) -> list[PoolJob]:
    """As many jobs as a large pool has, of which no two are alike."""
    chance = random.Random(seed)  # noqa: S311
    sizes = sizes_to_look_at(range(1, 65))
    return [
        PoolJob(
            f"job-{index}",
            age_seconds=chance.random() * 1e4,
            minimum=1,
            has=chance.choice((0, 1, 1, 2, 3)),
            changed_seconds=chance.choice((30.0, 1e9)),
            change_seconds=10.0,
            speedups=_speedups(sizes, falls=chance.random() / 2, network=1 + chance.random()),
        )
        for index in range(JOBS)
    ]


def _speedups(sizes: tuple[int, ...], *, falls: float, network: float) -> dict[int, Speedup]:
    speeds = {size: size / (1 + falls * (size - 1)) for size in sizes}
    return {size: Speedup(speed, speed if size == 1 else speed / network) for size, speed in speeds.items()}
