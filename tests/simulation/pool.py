"""A pool of machines that several jobs share: what exists, which job requests how much, and what a quota leaves them.

Drawn for a share of the seeds. Each job fits alone, with the fewest members that it trains with; all together usually
do not fit with the numbers they want. `Scene` builds it, `autoscaler` makes it larger, the faults of `faults/sharing`
smaller.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.simulation.objects import Json
from tests.simulation.resources import CPU, GPU

SHARE: Final = 0.1
"""Of the seeds."""
PLENTY: Final = 64
"""CPUs of a machine where GPUs count."""


@dataclass(frozen=True)
class Ask:
    """What one job wants of the pool."""

    units: int
    """For each pod."""
    replicas: int
    elastic: Json | None
    priority: str
    """Name of the class of its template, "" without one."""
    patience: int
    """Seconds for which it holds room in vain."""
    goal: int
    """Steps to train: few, because another job waits."""

    @property
    def least(self) -> int:
        """With fewer members it does not train."""
        return int(self.elastic["minReplicas"]) if self.elastic else self.replicas


@dataclass(frozen=True)
class Pool:
    """A seed's draw."""

    resource: str
    """The resource that the pods compete for."""
    machine: int
    """Units of each machine."""
    machines: int
    """So many are always there."""
    limit: int
    """At most so many more are launched by an autoscaler; 0: there is none."""
    quota: int | None
    """Units that the namespace of the jobs may request."""
    asks: tuple[Ask, ...]

    def requests(self, units: int) -> Json:
        """Of a container."""
        return {"requests": {self.resource: str(units)}}

    @property
    def allocatable(self) -> Json:
        """Of a machine."""
        units = str(self.machine)
        return {CPU: str(PLENTY), GPU: units} if self.resource == GPU else {CPU: units}

    @property
    def most(self) -> int:
        """So many machines there may be."""
        return self.machines + self.limit

    def holds(self, units: int) -> int:
        """How many pods of that size fit without others."""
        fit = self.machine // units * self.most
        return fit if self.quota is None else min(fit, self.quota // units)

    @property
    def is_fair(self) -> bool:
        """Whether every job fits alone."""
        return all(self.holds(ask.units) >= ask.least for ask in self.asks)


def drawn(seed: int) -> Pool | None:
    """The pool of a seed; None where its jobs have machines as they need them."""
    rng = random.Random(f"{seed}/pool")  # noqa: S311 - a history has to be repeatable
    return draw(rng) if rng.random() < SHARE else None


def draw(rng: random.Random) -> Pool:
    """A fair one."""
    while True:
        pool = _draw(rng)
        if pool.is_fair:
            return pool


def _draw(rng: random.Random) -> Pool:
    asks = tuple(_ask(rng) for _ in range(rng.choice((2, 2, 3))))
    wanted = sum(ask.units * ask.replicas for ask in asks)
    size = rng.choice((1, 2, 4))
    size = max(size, *(ask.units for ask in asks))
    machines, limit = rng.randint(2, 4), rng.choice((0, 0, 1, 2, 3))
    quota = rng.randint(2, max(wanted, 2)) if rng.random() < 0.25 else None
    return Pool(rng.choice((CPU, GPU)), size, machines, limit, quota, asks)


def _ask(rng: random.Random) -> Ask:
    replicas, elastic = rng.randint(1, 4), None
    if rng.random() < 0.75:
        least = rng.randint(1, 2)
        sizes = rng.choice((None, None, [1, 2, 4], [2, 3, 4], [2, 4]))
        growing = {"growAfterSeconds": rng.choice((0, 3, 10)), "growTimeoutSeconds": rng.choice((30, 60, 300))}
        named: Json = {"sizes": sizes} if sizes else {}
        if spares := rng.choice((0, 0, 0, 1)):
            named["spares"] = spares
        if joiners := rng.choice(("", "", "low", "patient")):
            named["joinerPriorityClassName"] = joiners
        elastic = {"minReplicas": sizes[0] if sizes else least, "maxReplicas": 4, **growing, **named}
    units, priority = rng.choice((1, 1, 1, 2)), rng.choice(("", "", "", "low", "high", "patient"))
    goal, patience = rng.choice((100, 200, 300)), rng.choice((60, 120))
    return Ask(units, replicas, elastic, priority, patience, goal)
