"""The moves that bring every destination the boxes it needs, each element exactly once, with the work shared.

A source or destination is a number of the caller's choice: a rank, a party of a hand-over, or an object. Tensors that
lie the same share one Redistribution, so that with hundreds of them and a thousand ranks a rank plans its own moves in
a fraction of a second.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, Self

from perdure.layout.box import Box

RULES: Final = 2
"""Version of these rules: parties that follow others would each leave something to the other one."""

Holders = Mapping[Box, Sequence[int]]
"""Boxes of one tensor, and the holder of each. Boxes of one holder do not overlap."""


class Cell(NamedTuple):
    """A needed box, or a part of one, that each source holds as a whole or not at all."""

    box: Box
    holders: Sequence[int]
    destinations: Sequence[int]


class Route(NamedTuple):
    """A box on its way from one holder to another, of whatever tensor."""

    source: int
    destination: int
    box: Box


@dataclass(frozen=True, eq=False)
class Redistribution:
    """Which holders have which boxes of a tensor, and which destinations need which."""

    sources: Holders
    destinations: Holders

    def work_out(self) -> None:
        """Find out now what a plan needs to know, and not when it is made."""
        _ = self.gap, self.choices, self.routes_of, self.sent

    @cached_property
    def cells(self) -> Sequence[Cell]:
        """The needed boxes, cut where what one source holds ends."""
        held = HeldBoxes(self.sources)
        return [
            Cell(box, holders, destinations)
            for needed, destinations in self.destinations.items()
            for box, holders in held.cells(needed)
        ]

    @cached_property
    def gap(self) -> Cell | None:
        """A needed cell that no source holds."""
        return next((cell for cell in self.cells if not cell.holders), None)

    @cached_property
    def choices(self) -> Sequence[Cell]:
        """The cells that several sources hold."""
        return [cell for cell in self.cells if len(cell.holders) > 1]

    @cached_property
    def routes(self) -> Sequence[Route]:
        """The ways of the cells that one source alone holds."""
        alone = (cell for cell in self.cells if len(cell.holders) == 1)
        return [Route(cell.holders[0], destination, cell.box) for cell in alone for destination in cell.destinations]

    @cached_property
    def routes_of(self) -> Mapping[int, Sequence[Route]]:
        """These ways, by who sends or receives."""
        found: dict[int, list[Route]] = {}
        for route in self.routes:
            for party in {route.source, route.destination}:
                found.setdefault(party, []).append(route)
        return found

    @cached_property
    def sent(self) -> Mapping[int, int]:
        """How many elements each source sends on these ways."""
        found = Counter[int]()
        for source, _, box in self.routes:
            found[source] += box.count
        return found


@dataclass(frozen=True)
class TensorDemand:
    """A tensor to move."""

    name: str
    element_bytes: int
    boxes: Redistribution

    @classmethod
    def whole(
        cls, name: str, shape: Sequence[int], size: int, sources: Sequence[int], destinations: Sequence[int]
    ) -> Self:
        """A tensor of `size` bytes that each source holds and each destination needs as a whole."""
        box = Box.whole(shape)
        return cls(name, size // max(1, math.prod(shape)), Redistribution({box: sources}, {box: destinations}))


@dataclass(frozen=True, order=True)
class Move:
    """A box of a tensor on its way from one holder to another."""

    source: int
    destination: int
    name: str
    box: Box
    size: int
    """In bytes."""

    @property
    def order(self) -> tuple[int, int, str, tuple[int, ...], tuple[int, ...]]:
        """By this, moves are in their usual order, and thousands are sorted sooner."""
        return self.source, self.destination, self.name, self.box.offset, self.box.sizes


class Missing(ValueError):
    """No source holds a box that a destination needs."""


def plan(wanted: Iterable[TensorDemand], party: int | None = None) -> tuple[Move, ...]:
    """The moves, sorted: every needed element comes exactly once, and destinations with equal needs get equal plans.
    With a `party`, only those from it or to it.

    What one source alone holds, it sends. If several hold a box, the one with the fewest bytes to send so far sends it,
    the lowest number among equals; the largest boxes are assigned first. An empty box is moved if a source holds the
    same one, and otherwise needs no move. Raises Missing for elements that no source holds.
    """
    demands = tuple(wanted)
    moves = []
    for name, width, boxes in ((one.name, one.element_bytes, one.boxes) for one in demands):
        if boxes.gap:
            raise Missing(f"{name}: no source holds {boxes.gap.box}, which {list(boxes.gap.destinations)} need")
        routes = boxes.routes if party is None else boxes.routes_of.get(party, ())
        moves += [Move(source, to, name, box, box.count * width) for source, to, box in routes]
    moves += (move for move in _chosen(demands) if party in (None, move.source, move.destination))
    return tuple(sorted(moves, key=lambda move: move.order))


def _chosen(demands: Sequence[TensorDemand]) -> Iterator[Move]:
    """The moves of the cells that several sources hold."""
    choices = [(one, cell, to) for one in demands for cell in one.boxes.choices for to in cell.destinations]
    if not choices:
        return
    loads = Counter[int]()
    for one in demands:
        for source, elements in one.boxes.sent.items():
            loads[source] += elements * one.element_bytes
    waiting: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    moves = [Move(0, to, one.name, cell.box, cell.box.count * one.element_bytes) for one, cell, to in choices]
    ranked = zip(moves, (cell.holders for _, cell, _ in choices), strict=True)
    for move, holders in sorted(ranked, key=lambda pair: (-pair[0].size, *pair[0].order[1:])):
        source = _least(waiting, tuple(holders), loads)
        loads[source] += move.size
        yield Move(source, move.destination, move.name, move.box, move.size)


def _least(
    waiting: dict[tuple[int, ...], list[tuple[int, int]]], holders: tuple[int, ...], loads: Mapping[int, int]
) -> int:
    """The holder with the least load. Loads only grow, so a heap in `waiting` that knows an older one is put right when
    that holder comes first."""
    if holders not in waiting:
        waiting[holders] = [(loads[holder], holder) for holder in holders]
        heapify(waiting[holders])
    heap = waiting[holders]
    while heap[0][0] != loads[heap[0][1]]:
        heapreplace(heap, (loads[heap[0][1]], heap[0][1]))
    return heap[0][1]


class HeldBoxes:
    """Boxes that sources hold, found by where they begin in one dimension: that in which they begin at the most
    places."""

    def __init__(self, sources: Holders) -> None:
        self._sources = sources

    def cells(self, box: Box) -> Iterator[tuple[Box, Sequence[int]]]:
        """The box in cells, each with all that hold it. Those that hold exactly this box send it whole, if there are
        any."""
        if box in self._sources:
            yield box, self._sources[box]
            return
        meeting = [held for held in self._near(box) if (held & box).count]
        for cell in _cut(box, meeting):
            yield cell, [holder for held in meeting if cell in held for holder in self._sources[held]]

    @cached_property
    def _dim(self) -> int:
        places = zip(*(box.offset for box in self._sources), strict=True)
        counts = [len(set(starts)) for starts in places]
        return counts.index(max(counts))

    @cached_property
    def _sorted(self) -> Sequence[Box]:
        return sorted(self._sources, key=lambda box: box.offset[self._dim])

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [box.offset[self._dim] for box in self._sorted]

    @cached_property
    def _longest(self) -> int:
        return max(box.sizes[self._dim] for box in self._sources)

    def _near(self, box: Box) -> Sequence[Box]:
        """All that meet the box, and perhaps others."""
        if not box.offset or not self._sources:
            return list(self._sources)
        first = bisect_right(self._starts, box.offset[self._dim] - self._longest)
        return self._sorted[first : bisect_left(self._starts, box.end[self._dim])]


def _cut(box: Box, held: Iterable[Box]) -> Iterator[Box]:
    """The box in cells, each of which lies inside or outside of every held box as a whole."""
    cuts = [
        sorted({start, end, *(edge for other in held for edge in _edges(other, dim) if start < edge < end)})
        for dim, (start, end) in enumerate(zip(box.offset, box.end, strict=True))
    ]
    for cell in itertools.product(*map(itertools.pairwise, cuts)):
        yield Box(tuple(start for start, _ in cell), tuple(end - start for start, end in cell))


def _edges(box: Box, dim: int) -> tuple[int, int]:
    return box.offset[dim], box.end[dim]
