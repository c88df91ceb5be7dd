"""Sizes of a pool become constant once only time passes, whether an autoscaler adds the nodes that are wished or not.

Pools are drawn, and looked at until a state comes back. Members are on nodes as `share` puts them there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from perdure_operator.decide.packing import Pool
from perdure_operator.decide.sharing import PoolJob, Speedup, first_steps, has_room
from perdure_operator.loop.pools import sizes_in

SECONDS = 30.0
"""From look to look."""
LOOKS = 200
SEEDS = 100
NEVER = 9
"""Looks that members have no room, and that a node is empty, are counted up to this."""


@dataclass
class Drawn:
    """A pool of equal nodes, its jobs, and an autoscaler that needs so many looks."""

    width: int
    nodes: int
    jobs: list[PoolJob]
    delay: int
    most: int
    """Nodes that the autoscaler may have."""
    runs: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    """Since how many looks members have no room."""
    idle: int = 0
    """Since how many looks a node is empty."""

    @property
    def pool(self) -> Pool:
        """The nodes that there are."""
        return Pool(((self.width, self.nodes),))

    def state(self) -> tuple[object, ...]:
        """All that the next look depends on."""
        jobs = tuple((job.has, min(job.changed_seconds, 2 * SECONDS), self.runs[job.name]) for job in self.jobs)
        return self.nodes, jobs, self.pending, self.idle

    def sizes(self) -> tuple[int, ...]:
        """The size of each job."""
        return tuple(job.has for job in self.jobs)

    def look(self) -> None:
        """The operator looks; then jobs run as they were told, as far as there is room, and the autoscaler acts."""
        known = [replace(job, holds=self.runs[job.name], waits=not self.runs[job.name]) for job in self.jobs]
        sizes, wished = sizes_in(self.pool, known, self.runs)
        steps = first_steps(wished, known, sizes)
        self.jobs = [_after(job, steps.get(job.name, job.has)) for job in self.jobs]
        self.runs = {job.name: min(self.runs[job.name], job.has) for job in self.jobs}
        for job in self.jobs:
            larger = (size for size in job.speedups if self.runs[job.name] < size <= job.has)
            ways = ({**self.runs, job.name: size} for size in sorted(larger, reverse=True))
            self.runs = next((way for way in ways if has_room(self.pool, self.jobs, way)), self.runs)
        self._autoscale()

    def _autoscale(self) -> None:
        asked = {job.name: job.has for job in self.jobs}
        self.pending = min(self.pending + 1, NEVER) if asked != self.runs else 0
        fewer = Pool(((self.width, self.nodes - 1),))
        empty = self.nodes > 1 and has_room(fewer, self.jobs, asked)
        self.idle = min(self.idle + 1, NEVER) if empty else 0
        if self.pending > self.delay and self.nodes < self.most:
            self.nodes, self.pending = self.nodes + 1, 0
        elif self.idle > self.delay:
            self.nodes, self.idle = self.nodes - 1, 0


def _after(job: PoolJob, size: int) -> PoolJob:
    return replace(job, has=size, changed_seconds=SECONDS + (job.changed_seconds if size == job.has else 0.0))


def _drawn(seed: int) -> Drawn:
    chance = random.Random(seed)  # noqa: S311
    width = chance.choice((1, 2, 4))
    nodes = chance.randint(1, 6 if width == 1 else 4)
    jobs = [_job(chance, index) for index in range(chance.choice((1, 1, 2, 3)))]
    delay = chance.choice((NEVER, 2, 5))
    return Drawn(width, nodes, jobs, delay, nodes + chance.randint(0, 2), {job.name: 0 for job in jobs})


def _job(chance: random.Random, index: int) -> PoolJob:
    """Its speed may be a part only of what one of its size has."""
    some = sorted({1, *chance.sample(range(1, 9), chance.randint(1, 4))})
    sizes = chance.choice((some, some, range(1, chance.randint(2, 8) + 1)))
    falls, network = chance.choice((0.0, 0.1, 0.3)) * chance.random(), 1 + 2 * chance.random()
    part = chance.choice((1.0, 1.0, 0.5, 1 / 3))
    speeds = {size: part * size / (1 + falls * (size - 1)) for size in sizes}
    return PoolJob(
        f"job-{index}",
        age_seconds=-float(index),
        minimum=min(sizes),
        changed_seconds=math.inf,
        change_seconds=chance.choice((1.0, 11.0, 30.0, 70.0)),
        speedups={size: Speedup(speed, speed if size == 1 else speed / network) for size, speed in speeds.items()},
    )


def _sizes_in_the_end(drawn: Drawn) -> Iterator[tuple[int, ...]]:
    """The sizes between two equal states."""
    seen: dict[tuple[object, ...], int] = {}
    found: list[tuple[int, ...]] = []
    while (state := drawn.state()) not in seen and len(found) < LOOKS:
        seen[state] = len(found)
        drawn.look()
        found.append(drawn.sizes())
    assert state in seen, "more looks are needed"
    yield from found[seen[state] :]


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_sizes_become_constant(first: int) -> None:
    flapping = {seed: sorted(set(_sizes_in_the_end(_drawn(seed)))) for seed in range(first, first + 25)}
    assert {seed: sizes for seed, sizes in flapping.items() if len(sizes) > 1} == {}


def test_a_wish_that_no_autoscaler_fulfils_stays() -> None:
    """Two devices apart are slower than one, three are faster: without the third, the job had three, then one again."""
    speeds = {1: Speedup(1.0, 1.0), 2: Speedup(1.9, 0.8), 3: Speedup(2.7, 1.2)}
    job = PoolJob("one", 0.0, 1, change_seconds=30.0, speedups=speeds)
    drawn = Drawn(1, 2, [job], NEVER, 2, {"one": 0})
    assert set(_sizes_in_the_end(drawn)) == {(3,)}


def test_a_node_that_would_be_given_back_is_not_asked_for() -> None:
    job = PoolJob("one", 0.0, 1, change_seconds=30.0, speedups={1: Speedup(1.0, 1.0), 7: Speedup(5.2, 1.7)})
    drawn = Drawn(4, 1, [job], 2, 4, {"one": 0})
    assert set(_sizes_in_the_end(drawn)) == {(1,)}
