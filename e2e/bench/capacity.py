"""Capacity that comes and goes, and how much of it a job has used. Pure.

Capacity is a number of nodes that each hold one member of a job. A member that still trains on a node already taken
away does not count: a job's use of its notice is no capacity.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from e2e.harness.evidence import TracedStep


@dataclass(frozen=True)
class Change:
    """The number of nodes from this moment on."""

    at: float
    """In seconds."""
    nodes: int


def draw(seed: int, *, seconds: float, low: int, high: int, dwell: tuple[float, float]) -> tuple[Change, ...]:
    """A walk between `low` and `high`, one node at a time, beginning at 0 with `high`; it never leaves these bounds.

    Each value lasts a time drawn evenly from `dwell`, in seconds.
    """
    drawn = random.Random(seed)  # noqa: S311 - a walk, no secret
    found = [Change(0.0, high)]
    while (at := found[-1].at + drawn.uniform(*dwell)) < seconds:
        nodes = found[-1].nodes
        step = {low: 1, high: -1}.get(nodes) or drawn.choice((-1, 1))
        found.append(Change(at, nodes + step))
    return tuple(found)


def ideal(changes: Sequence[Change], end: float, seconds_per_sample: float) -> float:
    """The samples trained until `end` by a job that has the right size at once, and never pauses."""
    spans = pairwise([*changes, Change(end, 0)])
    return sum(before.nodes * (after.at - before.at) for before, after in spans) / seconds_per_sample


def used(changes: Sequence[Change], end: float, steps: Iterable[TracedStep], worlds: Mapping[int, int]) -> float:
    """The samples of these steps that were trained within the capacity; `worlds` has each run's ranks."""
    found = 0.0
    for step in steps:
        if changes[0].at <= step.time < end:
            nodes = [change.nodes for change in changes if change.at <= step.time][-1]
            found += len(step.ids) * min(1.0, nodes / worlds[step.run])
    return found
