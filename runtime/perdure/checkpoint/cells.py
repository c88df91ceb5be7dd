"""Brings the bytes of a commit's boxes to where they belong: which bytes a rank reads, and into which memory.

A box of a commit is cut where the boxes of this rank end. So a commit of any world and mesh is read into any other one,
and no rank makes a whole tensor that it does not hold. Called by load.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from torch import Tensor

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.manifest import Item
from perdure.errors import Corrupt
from perdure.layout.box import Box
from perdure.layout.plan import Missing, Wanted, plan

_HERE: Final = 0
"""The only destination: this rank."""


class Writable(Protocol):
    """Takes consecutive bytes."""

    def write(self, data: memoryview) -> None:
        """Takes the next ones."""
        ...


@dataclass(frozen=True)
class Read:
    """Consecutive bytes of a shard, and what takes them."""

    start: int
    end: int
    item: Item
    sink: Writable


def reads(items: Sequence[Item], target: Tensor) -> Iterator[Read]:
    """What to read of the boxes `items` of one tensor, so that all that this rank holds of `target` is filled once.

    Raises Corrupt if the boxes lack a part of it.
    """
    if len(items) == 1 and items[0].box is None and not boxes.is_sharded(target):
        yield Read(items[0].start, items[0].end, items[0], tensors.Sink(target))
        return
    held = boxes.held(target) if boxes.is_sharded(target) else [boxes.Held(Box.whole(target.shape), target)]
    sources: dict[Box, list[int]] = {}
    for number, item in enumerate(items):
        sources.setdefault(item.held, []).append(number)
    needed: Mapping[Box, Sequence[int]] = {one.box: [_HERE] for one in held}
    try:
        moves = plan([Wanted(items[0].name, target.element_size(), sources, needed)])
    except Missing as error:
        raise Corrupt(f"the manifest lacks a part of a tensor: {error}") from None
    for move in moves:
        own = next(one for one in held if move.box in one.box)
        yield _read(items[move.source], move.box, boxes.view(own.memory, _start(move.box, own.box), move.box.sizes))


def _start(cell: Box, box: Box) -> list[int]:
    """Where a cell of a box begins in it."""
    return [start - begin for start, begin in zip(cell.offset, box.offset, strict=True)]


def _read(item: Item, cell: Box, view: Tensor) -> Read:
    """Reads a cell of an item's box. In the shard it lies in runs of equal length."""
    sizes, width = item.held.sizes, view.element_size()
    cut = max((dim for dim, size in enumerate(sizes) if size != cell.sizes[dim]), default=0)
    steps = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    run = math.prod(cell.sizes[cut:]) * width
    first = sum(start * step for start, step in zip(_start(cell, item.held), steps, strict=True)) * width
    rows = [
        range(0, size * step * width, step * width) for size, step in zip(cell.sizes[:cut], steps[:cut], strict=True)
    ]
    starts = np.fromiter(map(sum, itertools.product(*rows)), dtype=np.int64, count=math.prod(cell.sizes[:cut]))
    end = first + int(starts[-1]) + run if len(starts) else first
    sink = tensors.Sink(view)
    return Read(item.start + first, item.start + end, item, sink if len(starts) < 2 else _Runs(sink, starts, run))


class _Runs:
    """Passes on the wanted runs of bytes, and drops those between them."""

    def __init__(self, sink: tensors.Sink, starts: np.ndarray[tuple[int], np.dtype[np.int64]], length: int) -> None:
        self._sink = sink
        self._starts = starts
        self._length = length
        self._at = 0

    def write(self, data: memoryview) -> None:
        """Takes the next bytes."""
        begin, end = self._at, self._at + len(data)
        self._at = end
        first = int(np.searchsorted(self._starts, begin - self._length, side="right"))
        last = int(np.searchsorted(self._starts, end, side="left"))
        for start in self._starts[first:last].tolist():
            self._sink.write(data[max(start - begin, 0) : start - begin + self._length])
