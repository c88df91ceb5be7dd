"""Splits a staged live state: what forward and backward may change is read at once, the rest later. Parameters that
nobody trains are read later only where they are too large to be copied twice: scripts may set them, as those of a
teacher, without an optimizer.

Everything is checksummed first, so correctness does not depend on what the script does until the rest is read. What is
read later is held by its memory, not by its tensor: the script may give a parameter other memory meanwhile. Called by
perdure.loop.deferral.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from awscrt.checksums import crc64nvme
from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.stage import LiveBytes, bytes_of


@dataclass(frozen=True, eq=False)
class Deferred:
    """A shard's bytes, of which some are a copy already, and their checksum as they were."""

    views: list[memoryview]
    """In order. They hold the memory that they read."""
    checksum: str


def defer(live: LiveBytes, stepped: Set[int], frozen: Set[int], most: int) -> Deferred | None:
    """Copies what is not in memory that begins at one of `stepped`; and not at one of `frozen` either, if the shard has
    more than `most` bytes of it, or less of anything else. None if that is so without them, too."""
    memories = [piece.memory for piece in live.pieces]
    waiting = _waiting(memories, stepped, most) or _waiting(memories, stepped | frozen, most)
    if waiting is None:
        return None
    views = [memoryview(live.header)]
    for memory, view in zip(memories, waiting, strict=True):
        views += map(_copy, bytes_of(memory)) if view is None else [view]
    total = 0
    for view in views:
        total = crc64nvme(view, total)
    return Deferred(views, f"{total:016x}")


def _waiting(memories: Sequence[Tensor], later: Set[int], most: int) -> list[memoryview | None] | None:
    """How each memory is read later, None for what is copied at once; None if that is too much."""
    waiting = [_may_wait(memory, later) for memory in memories]
    sizes = [tensors.size_of(memory) for memory in memories]
    at_once = sum(size for size, view in zip(sizes, waiting, strict=True) if view is None)
    return None if at_once > most or 2 * at_once > sum(sizes) else waiting


def _may_wait(memory: Tensor, later: Set[int]) -> memoryview | None:
    """Only what lies in order in the memory of the CPU: anything else is rearranged first."""
    return tensors.writable(memory) if tensors.address(memory) in later else None


def _copy(view: memoryview) -> memoryview:
    return memoryview(bytes(view))
