"""A mesh of all ranks that may get more rows or fewer: what each rank holds before and after, and what has to move.

Pure and identical on every party of a hand-over, so no communication is needed. Used by perdure.live and, for the
groups of a mesh, by perdure.group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from perdure.errors import UserError
from perdure.layout.box import Box
from perdure.layout.plan import Move, TensorDemand
from perdure.layout.sharding import Layout, Placement, Replicate, Shard, StridedShard


@dataclass(frozen=True)
class ElasticMesh:
    """A mesh of all ranks in their order. Its first dimension follows the number of ranks, and the others keep their
    sizes."""

    shape: tuple[int, ...]

    @property
    def world(self) -> int:
        """How many ranks it has."""
        return math.prod(self.shape)

    def of(self, world: int) -> ElasticMesh:
        """The mesh of so many ranks. UserError if they do not fill whole rows."""
        row = math.prod(self.shape[1:])
        if world < row or world % row:
            raise UserError(
                f"the model is sharded over a mesh of shape {list(self.shape)}: it changes live to a multiple of {row} "
                f"ranks, and not to {world}. With rows of {row}, allow no other sizes (spec.elastic.sizes)"
            )
        return ElasticMesh((world // row, *self.shape[1:]))

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Where a rank is in the mesh."""
        found = []
        for size in reversed(self.shape):
            rank, at = divmod(rank, size)
            found.append(at)
        return tuple(reversed(found))

    def group(self, dim: int, rank: int) -> tuple[int, ...]:
        """The ranks that differ from this one at most in this dimension, ascending: they share a process group."""
        step = math.prod(self.shape[dim + 1 :])
        first = rank - self.coordinate(rank)[dim] * step
        return tuple(range(first, first + self.shape[dim] * step, step))

    def groups_beside_world(self, rank: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each dimension whose groups do not have all ranks, and the ranks of this one's group."""
        for dim, size in enumerate(self.shape):
            if size != self.world:
                yield dim, self.group(dim, rank)

    def layout(self, shape: Sequence[int], placements: Sequence[Placement]) -> Layout:
        """Which rank holds which boxes of a tensor of this shape."""
        return Layout(tuple(shape), self.shape, tuple(range(self.world)), tuple(placements))


def redistribution(
    name: str, element_bytes: int, before: Layout, after: Layout, *, parties: Sequence[int], holding: Collection[int]
) -> tuple[TensorDemand, tuple[Move, ...]]:
    """What has to be sent so that party `parties[rank]` holds what `rank` does in `after`, and what a party only copies
    because it holds the same already.

    The old ranks are the parties 0 to the old world - 1. Any of them that holds a box may send it. Parties in `holding`
    have their boxes in the right place already.
    """
    held = before.holders()
    wanted: dict[Box, list[int]] = {}
    kept = []
    for box, ranks in after.holders().items():
        for party in (parties[rank] for rank in ranks if parties[rank] not in holding):
            if party in held.get(box, ()):
                kept.append(Move(party, party, name, box, box.count * element_bytes))
            else:
                wanted.setdefault(box, []).append(party)
    return TensorDemand(name, element_bytes, held, wanted), tuple(kept)


def write_placements(placements: Sequence[Placement]) -> list[list[int]]:
    """Placements as JSON values."""

    def write(one: Placement) -> list[int]:
        match one:
            case Shard(dim):
                return [dim]
            case StridedShard(dim, split_factor):
                return [dim, split_factor]
        return []

    return [write(one) for one in placements]


def read_placements(values: Sequence[Sequence[int]]) -> tuple[Placement, ...]:
    """Placements from those values."""
    kinds = (Replicate, Shard, StridedShard)
    return tuple(kinds[len(one)](*one) for one in values)
