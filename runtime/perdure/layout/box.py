"""A block of a tensor: a range of indices in each dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Self


@dataclass(frozen=True, order=True)
class Box:
    """The elements at `offset[d] <= index[d] < offset[d] + sizes[d]` in each dimension `d`, counted in elements.

    A scalar is the box without dimensions, which has one element.
    """

    offset: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Self:
        """All of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def end(self) -> tuple[int, ...]:
        """The first index behind it in each dimension."""
        return tuple(start + size for start, size in zip(self.offset, self.sizes, strict=True))

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)

    def __and__(self, other: Box) -> Box:
        """What both have. It is empty (`count` 0) where they do not meet."""
        offset = tuple(map(max, self.offset, other.offset))
        ends = map(min, self.end, other.end)
        return Box(offset, tuple(max(0, end - start) for start, end in zip(offset, ends, strict=True)))

    def within(self, other: Box) -> Self:
        """This box, counted from the beginning of the other one."""
        return type(self)(tuple(map(sub, self.offset, other.offset)), self.sizes)

    def out_of(self, other: Box) -> Self:
        """The reverse: the same elements, if these are counted from the beginning of the other one."""
        return type(self)(tuple(map(add, self.offset, other.offset)), self.sizes)

    def __contains__(self, other: Box) -> bool:
        """Whether every element of the other one is in this one."""
        return (self & other).count == other.count
