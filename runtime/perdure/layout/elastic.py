"""A mesh of all ranks that may get more rows or fewer: what each rank holds before and after, and what has to move.

Pure and identical on every party of a hand-over, so no communication is needed. Used by perdure.live and, for the
groups of a mesh, by perdure.group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perdure.errors import UserError
from perdure.layout.box import Box
from perdure.layout.plan import Redistribution
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

    @property
    def row(self) -> int:
        """How many ranks a row has."""
        return math.prod(self.shape[1:])

    def tears_rows(self, pod: int) -> bool:
        """Whether pods of so many ranks have parts of rows: neither is each row in one pod, nor does it consist of
        whole pods."""
        return bool(pod % self.row and self.row % pod)

    def of(self, world: int) -> ElasticMesh:
        """The mesh of so many ranks. UserError if they do not fill whole rows."""
        row = self.row
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


class MeshChange:
    """What a change of the ranks of a mesh moves.

    The old ranks are the parties 0 to the old world - 1, and `parties[rank]` is the party that is `rank` afterwards.
    Parties in `holding` have their boxes in the right place already. Tensors that lie the same have the same boxes to
    move, which are worked out once.
    """

    def __init__(
        self,
        before: ElasticMesh,
        after: ElasticMesh,
        *,
        parties: Mapping[int, int] | Sequence[int],
        holding: Collection[int],
    ) -> None:
        self._before = before
        self._after = after
        self._parties = parties
        self._holding = frozenset(holding)
        self._known: dict[tuple[tuple[int, ...], tuple[Placement, ...]], tuple[Redistribution, KeptBoxes]] = {}

    def of(self, shape: Sequence[int], placements: Sequence[Placement]) -> tuple[Redistribution, KeptBoxes]:
        """What has to be sent of a tensor so that each party holds what its new rank does, and what a party only copies
        because it holds the same already. Any old rank that holds a box may send it."""
        key = tuple(shape), tuple(placements)
        if key not in self._known:
            self._known[key] = self._found(*(mesh.layout(*key) for mesh in (self._before, self._after)))
        return self._known[key]

    def _found(self, before: Layout, after: Layout) -> tuple[Redistribution, KeptBoxes]:
        held = before.holders()
        wanted: dict[Box, list[int]] = {}
        kept: dict[int, list[Box]] = {}
        for box, ranks in after.holders().items():
            for party in (self._parties[rank] for rank in ranks):
                if party in self._holding:
                    continue
                if party in held.get(box, ()):
                    kept.setdefault(party, []).append(box)
                else:
                    wanted.setdefault(box, []).append(party)
        return Redistribution(held, wanted), kept


KeptBoxes = Mapping[int, Sequence[Box]]
"""The boxes that a party holds before and after, by the party."""


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
