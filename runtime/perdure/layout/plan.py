"""The moves that bring every destination the boxes it needs, each element exactly once, with the work shared.

A source or destination is a number of the caller's choice: a rank, a party of a hand-over, or an object.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from perdure.layout.box import Box

Holders = Mapping[Box, Sequence[int]]
"""Boxes of one tensor, and the holder of each. Boxes of one holder do not overlap."""


@dataclass(frozen=True)
class TensorDemand:
    """A tensor to move: which holders have which of its boxes, and which destinations need which."""

    name: str
    element_bytes: int
    sources: Holders
    destinations: Holders

    @classmethod
    def whole(
        cls, name: str, shape: Sequence[int], size: int, sources: Sequence[int], destinations: Sequence[int]
    ) -> Self:
        """A tensor of `size` bytes that each source holds and each destination needs as a whole."""
        box = Box.whole(shape)
        return cls(name, size // max(1, math.prod(shape)), {box: sources}, {box: destinations})


@dataclass(frozen=True, order=True)
class Move:
    """A box of a tensor on its way from one holder to another."""

    source: int
    destination: int
    name: str
    box: Box
    size: int
    """In bytes."""


class Missing(ValueError):
    """No source holds a box that a destination needs."""


def plan(wanted: Iterable[TensorDemand]) -> tuple[Move, ...]:
    """The moves, sorted: every needed element comes exactly once, and destinations with equal needs get equal plans.

    If several sources hold a box, the one with the fewest bytes to send so far sends it, the lowest number among
    equals; the largest boxes are assigned first. An empty box is moved if a source holds the same one, and otherwise
    needs no move. Raises Missing for elements that no source holds.
    """
    loads: dict[int, int] = {}
    moves = []
    cells = (cell for tensor in wanted for cell in _cells(tensor))
    for size, name, destination, box, holders in sorted(cells, key=lambda cell: (-cell[0], *cell[1:4])):
        source = min(holders, key=lambda holder: (loads.get(holder, 0), holder))
        loads[source] = loads.get(source, 0) + size
        moves.append(Move(source, destination, name, box, size))
    return tuple(sorted(moves))


def _cells(tensor: TensorDemand) -> Iterator[tuple[int, str, int, Box, Sequence[int]]]:
    """The needed boxes, cut where what one source holds ends: bytes, name, destination, box, and who can send it."""
    for box, destinations in tensor.destinations.items():
        for cell, holders in _held(box, tensor.sources):
            if not holders:
                raise Missing(f"{tensor.name}: no source holds {cell}, which {list(destinations)} need")
            for destination in destinations:
                yield cell.count * tensor.element_bytes, tensor.name, destination, cell, holders


def _held(box: Box, sources: Holders) -> Iterator[tuple[Box, Sequence[int]]]:
    """The box in cells, each with all that hold it. Those that hold exactly this box send it whole, if there are any:
    so it is with models that are not sharded, whose plan is made while training waits."""
    if box in sources:
        yield box, sources[box]
        return
    meeting = [held for held in sources if (held & box).count]
    for cell in _cut(box, meeting):
        yield cell, [holder for held in meeting if cell in held for holder in sources[held]]


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
