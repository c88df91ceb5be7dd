"""Splits a staged live state: what forward and backward may change is read at once, the rest later.

What is read later is held by its memory, not by its tensor: the script may give a parameter other memory meanwhile.
Called by perdure.loop.deferral.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.stage import LiveBytes, bytes_of

APART_BYTES: Final = 4096
"""A glance reads one element in so many bytes, so it sees whatever changes that much in a row."""
LEAST_ELEMENTS: Final = 16
"""Of each tensor it reads so many at least."""
_VERSION: Final = attrgetter("_version")
"""How often torch has seen it written to; there is no public name for it."""


@dataclass(eq=False)
class Deferred:
    """A shard's bytes, of which some are a copy already, and what is to be summed up beside them."""

    views: list[memoryview] = field(default_factory=list)
    """All bytes of the shard, in order."""
    summed: list[int | memoryview] = field(default_factory=list)
    """The checksum of each tensor beside them; its bytes where they are summed up later."""
    waiting: list[Tensor] = field(default_factory=list)
    """What is read later."""
    later: list[memoryview] = field(default_factory=list)
    """The bytes of each of those."""
    _known: dict[tuple[int, int], memoryview] = field(default_factory=dict)
    """The same, by where they are and how many: a tensor of the shard is summed up, too."""

    def hold(self, tensor: Tensor) -> memoryview:
        """Its bytes, to be read later."""
        place = tensor.data_ptr(), tensors.size_of(tensor)
        if place not in self._known:
            self.waiting.append(tensor.detach())
            self.later += bytes_of(self.waiting[-1])
            self._known[place] = self.later[-1]
        return self._known[place]

    def glance(self) -> list[Any]:
        """Some elements of what is read later, and what torch has counted: equal as long as nothing is seen to
        change."""
        elements = (_some(view, one.element_size()) for one, view in zip(self.waiting, self.later, strict=True))
        return [*map(_VERSION, self.waiting), *(some.tobytes() for some in elements)]


def defer(live: LiveBytes, beside: Iterable[Tensor], stepped: Collection[int], most: int) -> Deferred | None:
    """Reads what is not in memory that begins at one of `stepped`; None if the shard has more than `most` bytes of it,
    or nothing else. `beside`: tensors that are only summed up."""
    waits = [_may_wait(piece.memory, stepped) for piece in live.pieces]
    at_once = sum(tensors.size_of(piece.memory) for piece, one in zip(live.pieces, waits, strict=True) if not one)
    if at_once > most or not any(waits):
        return None
    found = Deferred([memoryview(live.header)])
    for piece, one in zip(live.pieces, waits, strict=True):
        found.views += [found.hold(piece.memory)] if one else map(_copy, bytes_of(piece.memory))
    for tensor in beside:
        found.summed.append(found.hold(tensor) if _may_wait(tensor, stepped) else tensors.checksum(tensor))
    return found


def _may_wait(memory: Tensor, stepped: Collection[int]) -> bool:
    """Only what lies in order in the memory of the CPU: anything else is rearranged first."""
    return tensors.writable(memory) is not None and tensors.address(memory) in stepped


def _copy(view: memoryview) -> memoryview:
    return memoryview(bytes(view))


def _some(view: memoryview, size: int) -> NDArray[np.unsignedinteger[Any]]:
    """Whole elements: those of complex128 are read as two."""
    every = np.frombuffer(view, f"u{min(size, 8)}")
    apart = min(APART_BYTES // every.itemsize, len(every) // LEAST_ELEMENTS)
    return every[:: max(apart - (apart > 1 and not apart % 2), 1)]  # an even one may stay within one column of a matrix
