"""Brings the bytes of a commit's boxes to where they belong: which bytes a rank reads, and into which memory.

A box of a commit is cut where the boxes of this rank end. So a commit of any world and mesh is read into any other one,
and no rank makes a whole tensor that it does not hold. Called by load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from torch import Tensor

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.manifest import Item
from perdure.errors import Corrupt
from perdure.layout.box import Box
from perdure.layout.plan import Missing, Redistribution, TensorDemand, plan
from perdure.layout.row_major import reach, stretch

_HERE: Final = 0
"""The only destination: this rank."""


class Read:
    """Consecutive bytes of a shard, and the memory to which the wanted ones among them belong."""

    def __init__(self, item: Item, cell: Box, memory: Tensor) -> None:
        """The bytes of `cell`, a part of the item's box, counted from the beginning of that box."""
        self.item = item
        self._cell = cell
        self._memory = memory.detach()
        self._left = reach(cell, item.sizes)
        width = memory.element_size()
        self.start = item.start + self._left.start * width
        self.end = item.start + self._left.stop * width
        self._direct = tensors.writable(memory) if len(self._left) == memory.numel() else None
        self._filled = 0
        self._split = b""
        """The beginning of an element whose end is in the next block."""

    def write(self, data: memoryview) -> None:
        """Takes the next bytes."""
        if self._direct is not None:
            self._direct[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
            return
        width = self._memory.element_size()
        if self._split or len(data) % width:
            joined = memoryview(bytearray(self._split) + data)
            whole = len(joined) - len(joined) % width
            data, self._split = joined[:whole], bytes(joined[whole:])
        numbers = self._left[: len(data) // width]
        self._left = self._left[len(numbers) :]
        for box in stretch(self.item.sizes, numbers):
            values = tensors.from_bytes(data[: box.count * width], self._memory.dtype).view(box.sizes)
            data = data[box.count * width :]
            if (wanted := box & self._cell).count:
                tensors.fill(
                    boxes.view(self._memory, wanted.within(self._cell)), boxes.view(values, wanted.within(box))
                )


def reads(items: Sequence[Item], target: Tensor) -> Iterator[Read]:
    """What to read of the boxes `items` of one tensor, so that all that this rank holds of `target` is filled once.

    Raises Corrupt if the boxes lack a part of it, or if one has another size than its elements.
    """
    for item in items:
        if item.size != (needed := math.prod(item.sizes) * target.element_size()):
            raise Corrupt(f"the manifest lists {item.size} bytes of {item.name}, whose elements have {needed}")
    whole = Box.whole(target.shape)
    if items[0].box is None and not boxes.is_sharded(target):
        yield Read(items[0], whole, target)
        return
    held = boxes.held(target) if boxes.is_sharded(target) else [boxes.HeldBox(whole, target)]
    sources: dict[Box, list[int]] = {}
    for number, item in enumerate(items):
        sources.setdefault(item.held, []).append(number)
    wanted: Mapping[Box, Sequence[int]] = {one.box: [_HERE] for one in held}
    try:
        moves = plan([TensorDemand(items[0].name, target.element_size(), Redistribution(sources, wanted))])
    except Missing as error:
        raise Corrupt(f"the manifest lacks a part of a tensor: {error}") from None
    for move in moves:
        own = next(one for one in held if move.box in one.box)
        item = items[move.source]
        yield Read(item, move.box.within(item.held), boxes.view(own.memory, move.box.within(own.box)))
