"""Where the members of a pool's jobs have room: how many nodes each job is on, if nodes are filled well. Pure.

The scheduler chooses the nodes. This file says what it can do, so that a job on one node is told from one on several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Pool:
    """The nodes of a pool by their shape."""

    shapes: tuple[tuple[int, int], ...]
    """Devices of a node, and how many such nodes there are."""

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return sum(devices * nodes for devices, nodes in self.shapes)

    @cached_property
    def widest(self) -> int:
        """Devices of the largest node, 0 if there is none."""
        return max((devices for devices, nodes in self.shapes if nodes > 0), default=0)

    def less(self, devices: int) -> Pool:
        """The pool while so many devices of its smallest nodes are taken."""
        left: list[tuple[int, int]] = []
        for size, nodes in sorted(self.shapes):
            whole = min(nodes, devices // size) if size else 0
            devices -= whole * size
            part = 1 if nodes > whole and devices else 0
            if part:
                left.append((size - devices, 1))
                devices = 0
            left.append((size, nodes - whole - part))
        return Pool(tuple((size, nodes) for size, nodes in left if nodes))

    def usable(self, ranks: int) -> int:
        """Devices that members of so many ranks can have, as a member is on one node."""
        return sum(devices // ranks * ranks * nodes for devices, nodes in self.shapes)


@dataclass(frozen=True)
class Packed:
    """How the jobs were put on nodes."""

    nodes: tuple[int, ...]
    """How many nodes each job is on, in the order of the jobs."""
    missing: int = 0
    """Devices of members that found no room."""


def pack(pool: Pool, jobs: Sequence[tuple[int, int]], losses: Sequence[float] = ()) -> Packed:
    """Put jobs of so many members, of so many ranks each, on nodes: the widest member first, then the largest job.

    With `losses`, the job of the greatest loss is put before all others of equally wide members. A job that fits on one
    node goes to the fullest that has room for it.
    """
    free: dict[int, int] = {}
    for devices, nodes in pool.shapes:
        if devices > 0 and nodes > 0:
            free[devices] = free.get(devices, 0) + nodes

    def order(index: int) -> tuple[int, float, int, int]:
        members, ranks = jobs[index]
        return -ranks, -losses[index] if losses else 0.0, -members, index

    found, missing = [0] * len(jobs), 0
    for index in sorted(range(len(jobs)), key=order):
        members, ranks = jobs[index]
        while members:
            room = min((devices for devices in free if devices >= members * ranks), default=0) or max(free, default=0)
            fit = min(room // ranks, members)
            if not fit:
                missing += members * ranks
                break
            nodes = min(free[room], members // fit)
            _take(free, room, nodes, fit * ranks)
            members -= nodes * fit
            found[index] += nodes
    return Packed(tuple(found), missing)


def _take(free: dict[int, int], room: int, nodes: int, taken: int) -> None:
    """Take so many devices of each of these nodes, which have that much room."""
    free[room] -= nodes
    if not free[room]:
        del free[room]
    if room > taken:
        free[room - taken] = free.get(room - taken, 0) + nodes
