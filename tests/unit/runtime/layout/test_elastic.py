"""All changes of small meshes by brute force: every party ends with what its new rank holds, and gets nothing twice."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from perdure.errors import UserError
from perdure.layout.box import Box
from perdure.layout.elastic import ElasticMesh, MeshChange, read_placements, write_placements
from perdure.layout.plan import Move, TensorDemand, plan
from perdure.layout.sharding import Layout, Placement, Replicate, Shard, StridedShard

MESHES: list[tuple[int, ...]] = [(1,), (3,), (4,), (1, 2), (2, 2), (3, 2), (2, 3), (2, 1), (1, 4), (2, 2, 2)]
TENSORS: list[tuple[int, ...]] = [(5, 4), (8, 2), (1, 3)]
PLACED: Mapping[str, tuple[Placement, ...]] = {
    "one dimension": (Shard(0),),
    "the last dimension": (Shard(1),),
    "replicas": (Replicate(), Shard(0)),
    "tensor parallelism along another dimension": (Shard(0), Shard(1)),
    "tensor parallelism along the same dimension": (StridedShard(0, 2), Shard(0)),
    "beside tensor parallelism": (Shard(0), Replicate()),
}


def parties(world: int, after: int) -> Iterator[list[int]]:
    """Each way in which old ranks stay, in their order, and newcomers get the other ranks: the party of each new
    rank."""
    for staying in range(min(world, after) + 1):
        for stayers in itertools.combinations(range(world), staying):
            for ranks in itertools.combinations(range(after), staying):
                left, fresh = iter(stayers), itertools.count(world)
                yield [next(left) if rank in ranks else next(fresh) for rank in range(after)]


def changes(dims: int) -> Iterator[tuple[ElasticMesh, ElasticMesh]]:
    """Meshes of up to four ranks, before and after; rows of two ranks where there are two dimensions."""
    kept, rows = ((2,), (1, 2)) if dims == 2 else ((), (1, 2, 3))
    for before, after in itertools.product(rows, repeat=2):
        yield ElasticMesh((before, *kept)), ElasticMesh((after, *kept))


def boxes_of(layout: Layout, rank: int) -> list[Box]:
    return [box for box, ranks in layout.holders().items() if rank in ranks]


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, end) for at, end in zip(box.offset, box.end, strict=True))


def memory(shape: Sequence[int], found: Sequence[Box]) -> Any:
    """The elements of these boxes, by their numbers; -1 elsewhere."""
    numbers, held = np.arange(math.prod(shape)).reshape(shape), np.full(shape, -1)
    for box in found:
        held[slices(box)] = numbers[slices(box)]
    return held


@pytest.mark.parametrize("shape", TENSORS, ids=str)
@pytest.mark.parametrize("name", PLACED)
def test_each_party_gets_what_its_new_rank_holds_once_from_one_that_has_it(name: str, shape: tuple[int, ...]) -> None:
    tried = 0
    for before, after in changes(len(PLACED[name])):
        old, new = (mesh.layout(shape, PLACED[name]) for mesh in (before, after))
        for of_rank in parties(before.world, after.world):
            tried += 1
            holding = [p for rank, p in enumerate(of_rank) if before == after and p == rank]
            boxes, stays = MeshChange(before, after, parties=of_rank, holding=holding).of(shape, PLACED[name])
            kept = [Move(party, party, "w", box, 4 * box.count) for party, found in stays.items() for box in found]
            arrived = {party: np.full(shape, -1) for party in of_rank}
            for move in (*plan([TensorDemand("w", 4, boxes)]), *kept):
                assert move.size == 4 * move.box.count
                given = memory(shape, boxes_of(old, move.source))[slices(move.box)]
                assert (given >= 0).all(), "it sends only what it holds"
                assert (arrived[move.destination][slices(move.box)] == -1).all(), "twice"
                arrived[move.destination][slices(move.box)] = given
            for rank, party in enumerate(of_rank):
                wanted = [] if party in holding else boxes_of(new, rank)
                assert np.array_equal(arrived[party], memory(shape, wanted)), (before, after, of_rank, party)
    assert tried > 50


def test_a_replica_that_holds_the_same_already_gets_nothing_from_others() -> None:
    change = MeshChange(ElasticMesh((2, 2)), ElasticMesh((1, 2)), parties=[2, 1], holding=[])
    boxes, kept = change.of((6, 3), PLACED["replicas"])
    assert (plan([TensorDemand("w", 4, boxes)]), list(kept)) == ((), [2, 1])


def test_all_replicas_share_the_sending() -> None:
    change = MeshChange(ElasticMesh((2, 2)), ElasticMesh((4, 2)), parties=range(8), holding=[])
    boxes, _ = change.of((6, 3), PLACED["replicas"])
    sent = [move.source for move in plan(TensorDemand(f"w{number}", 4, boxes) for number in range(4))]
    assert {party: sent.count(party) for party in range(4)} == dict.fromkeys(range(4), 4)


def test_each_of_a_thousand_ranks_plans_its_own_moves_of_a_shrinking_mesh() -> None:
    """By one that looks at every pair of ranks for each tensor this takes minutes."""
    before, after, rows = ElasticMesh((1024,)), ElasticMesh((1023,)), 1024 * 1023
    change = MeshChange(before, after, parties=range(1023), holding=[])
    wanted = []
    for number in range(300):
        boxes, kept = change.of((rows,), (Shard(0),))
        wanted.append(TensorDemand(f"w{number}", 4, boxes))
    for party in (0, 511, 1022):
        moves = plan(wanted, party)
        new = Counter(move.name for move in moves for _ in range(move.box.count) if move.destination == party)
        assert not kept
        assert set(new.values()) == {1024}
        assert len(new) == 300
    assert not {move.source for move in plan(wanted, 1022)} - {1021, 1022, 1023}


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_places_and_groups_are_those_of_the_ranks_row_by_row(shape: tuple[int, ...]) -> None:
    mesh, ranks = ElasticMesh(shape), np.arange(math.prod(shape)).reshape(shape)
    for rank in range(mesh.world):
        assert ranks[mesh.coordinate(rank)] == rank
        for dim in range(len(shape)):
            at = tuple(slice(None) if dim == other else here for other, here in enumerate(mesh.coordinate(rank)))
            assert mesh.group(dim, rank) == tuple(ranks[at].tolist())
        assert dict(mesh.groups_beside_world(rank)) == {
            dim: mesh.group(dim, rank) for dim, size in enumerate(shape) if size != mesh.world
        }


def test_a_mesh_grows_and_shrinks_by_whole_rows() -> None:
    mesh = ElasticMesh((2, 2))
    assert [mesh.of(world).shape for world in (2, 4, 6)] == [(1, 2), (2, 2), (3, 2)]
    assert ElasticMesh((3,)).of(5).shape == (5,)
    for world in (1, 3, 5):
        with pytest.raises(UserError, match=rf"a mesh of shape \[2, 2\]: .* multiple of 2 ranks, and not to {world}"):
            mesh.of(world)


@pytest.mark.parametrize("name", PLACED)
def test_placements_are_written_and_read(name: str) -> None:
    assert read_placements(write_placements(PLACED[name])) == PLACED[name]


@pytest.mark.parametrize("row", range(1, 9))
@pytest.mark.parametrize("pod", range(1, 9))
def test_pods_tear_rows_unless_each_row_is_in_one_pod_or_consists_of_pods(row: int, pod: int) -> None:
    rows = [set(range(first, first + row)) for first in range(0, row * pod, row)]
    pods = [set(range(first, first + pod)) for first in range(0, row * pod, pod)]
    whole = all(one <= other or other <= one or not one & other for one in rows for other in pods)
    assert ElasticMesh((pod, row)).tears_rows(pod) is not whole
