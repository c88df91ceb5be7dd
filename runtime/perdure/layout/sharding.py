"""Which boxes of a tensor a rank of a device mesh holds, by the rules of torch's DTensor placements.

It follows from shape, mesh and placements alone, so that no rank asks another one. The rules are those of
torch.distributed.tensor (`Shard`, `_StridedShard`): a dimension is split as torch.chunk splits it, in chunks of equal
size, of which the last ones may be smaller or empty, and mesh dimensions are applied from left to right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from perdure.errors import UserError
from perdure.layout.box import Box

LAYOUTS: Final = 4096
"""How many layouts are remembered: a model has a few for each shape of a parameter."""


@dataclass(frozen=True)
class Replicate:
    """Every rank of this mesh dimension holds the same."""


@dataclass(frozen=True)
class Shard:
    """The ranks of this mesh dimension hold consecutive chunks of the tensor's dimension `dim`."""

    dim: int


@dataclass(frozen=True)
class StridedShard:
    """The tensor's dimension `dim` is cut into `split_factor` chunks, and of each of them the ranks hold chunks.

    FSDP2 over tensor parallelism has it: the mesh dimension to the right, which is applied later, has been cut first.
    """

    dim: int
    split_factor: int


Placement = Replicate | Shard | StridedShard


@dataclass(frozen=True)
class Part:
    """A box that a rank holds, and where it begins in the rank's local tensor."""

    box: Box
    local_offset: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Everything that decides which rank holds which boxes of a tensor."""

    shape: tuple[int, ...]
    """The whole tensor's."""
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    """The mesh's ranks, row by row."""
    placements: tuple[Placement, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.mesh, self.ranks, self.placements))

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.placements))} over a mesh {list(self.mesh)} of the ranks {list(self.ranks)}"

    def at(self, coordinate: Sequence[int]) -> tuple[Part, ...]:
        """What the rank at this coordinate of the mesh holds; all of a tensor that has no elements."""
        return _at(self, tuple(coordinate))

    def local_shape(self, coordinate: Sequence[int]) -> tuple[int, ...]:
        """The shape of the local tensor at this coordinate of the mesh."""
        return _local_shape(self, tuple(coordinate))

    def holders(self) -> Mapping[Box, tuple[int, ...]]:
        """Each box, and the ranks that hold it, ascending."""
        return _holders(self)


def _uncached_at(layout: Layout, coordinate: tuple[int, ...]) -> tuple[Part, ...]:
    if not math.prod(layout.shape):
        return (Part(Box.whole(layout.shape), (0,) * len(layout.shape)),)
    return parts(layout.shape, layout.mesh, coordinate, layout.placements)


_at = lru_cache(maxsize=LAYOUTS)(_uncached_at)


@lru_cache(maxsize=LAYOUTS)
def _local_shape(layout: Layout, coordinate: tuple[int, ...]) -> tuple[int, ...]:
    held = _held(layout.shape, layout.mesh, coordinate, layout.placements)
    return tuple(sum(map(len, runs)) for runs in held)


@lru_cache(maxsize=LAYOUTS)
def _holders(layout: Layout) -> Mapping[Box, tuple[int, ...]]:
    found: dict[Box, list[int]] = {}
    for rank, coordinate in zip(layout.ranks, itertools.product(*map(range, layout.mesh)), strict=True):
        for part in _uncached_at(layout, coordinate):  # those of a thousand ranks would fill the cache
            found.setdefault(part.box, []).append(rank)
    return {box: tuple(sorted(ranks)) for box, ranks in found.items()}


Runs = tuple[range, ...]
"""Indices of one dimension, ascending, none of the ranges empty."""


def parts(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> tuple[Part, ...]:
    """What the rank at `coordinate` of the mesh holds of a tensor, in the order of the local tensor.

    `shape` is the global one in elements; `mesh`, `coordinate` and `placements` have an entry for each mesh dimension.
    Nearly always one box; none where the rank holds no element. Raises UserError if the placements do not fit.
    """
    if not len(mesh) == len(coordinate) == len(placements):
        raise UserError(f"a mesh of {len(mesh)} dimensions has {len(placements)} placements: give one for each")
    return tuple(_parts(_held(shape, mesh, coordinate, placements)))


def _held(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> list[Runs]:
    """The indices that this rank holds in each dimension."""
    held = [_joined([range(size)]) for size in shape]
    for size, rank, placement in zip(mesh, coordinate, placements, strict=True):
        match placement:
            case Replicate():
                continue
            case Shard(dim):
                _check(dim, shape)
                held[dim] = _chunk(held[dim], size, rank)
            case StridedShard(dim, split_factor):
                _check(dim, shape)
                pieces = [_chunk(held[dim], split_factor, number) for number in range(split_factor)]
                held[dim] = _joined([run for piece in pieces for run in _chunk(piece, size, rank)])
    return held


def _check(dim: int, shape: Sequence[int]) -> None:
    if not 0 <= dim < len(shape):
        raise UserError(f"a tensor of {len(shape)} dimensions cannot be sharded along dimension {dim}")


def _chunk(runs: Runs, chunks: int, number: int) -> Runs:
    """One of so many chunks, as torch.chunk makes them."""
    length = sum(map(len, runs))
    size = -(-length // chunks)
    return _cut(runs, number * size, (number + 1) * size)


def _cut(runs: Runs, start: int, stop: int) -> Runs:
    """The elements from `start` to before `stop`, counted over all runs."""
    found, begin = [], 0
    for run in runs:
        found.append(run[max(0, start - begin) : max(0, stop - begin)])
        begin += len(run)
    return _joined(found)


def _joined(runs: Sequence[range]) -> Runs:
    """Without empty runs; neighbours are one."""
    found: list[range] = []
    for run in filter(len, runs):
        if found and found[-1].stop == run.start:
            found[-1] = range(found[-1].start, run.stop)
        else:
            found.append(run)
    return tuple(found)


def _parts(held: Sequence[Runs]) -> Iterator[Part]:
    placed = [_placed(runs) for runs in held]
    for runs in itertools.product(*placed):
        box = Box(tuple(run.start for run, _ in runs), tuple(len(run) for run, _ in runs))
        yield Part(box, tuple(at for _, at in runs))


def _placed(runs: Runs) -> list[tuple[range, int]]:
    """Each run, and where it begins in the local tensor."""
    starts = itertools.accumulate(map(len, runs), initial=0)
    return list(zip(runs, starts, strict=False))
