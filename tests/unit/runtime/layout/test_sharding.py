"""What a rank holds, against torch: each rank of a fake world shards a tensor whose elements are their own numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from perdure.errors import UserError
from perdure.layout import sharding
from perdure.layout.sharding import Replicate, Shard, StridedShard, parts

SIZES = (1, 2, 3, 5, 7, 8, 12, 13)
LINES: list[tuple[int, ...]] = [(1,), (2,), (3,), (5,), (8,)]
GRIDS: list[tuple[int, ...]] = [(2, 2), (2, 3), (3, 2), (4, 2), (1, 4)]


def theirs(placement: sharding.Placement) -> Placement:
    match placement:
        case Replicate():
            return TorchReplicate()
        case Shard(dim):
            return TorchShard(dim)
        case StridedShard(dim, split_factor):
            return _StridedShard(dim, split_factor=split_factor)


def shards_of(shape: Sequence[int], mesh: tuple[int, ...], placements: Sequence[sharding.Placement]) -> Iterator[str]:
    """Where a rank's local tensor is not what its parts say; each rank has its own fake world."""
    numbers = torch.arange(math.prod(shape)).reshape(tuple(shape))
    for rank, coordinate in enumerate(itertools.product(*map(range, mesh))):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=math.prod(mesh))
        try:
            made = init_device_mesh("cpu", mesh)
            held: DTensor = distribute_tensor(numbers, made, [theirs(one) for one in placements], src_data_rank=None)
            local = held.to_local()
        finally:
            dist.destroy_process_group()
        ours = torch.full(local.shape, -1)
        for part in parts(shape, mesh, coordinate, placements):
            here = tuple(slice(at, at + size) for at, size in zip(part.local_offset, part.box.sizes, strict=True))
            there = tuple(slice(at, end) for at, end in zip(part.box.offset, part.box.end, strict=True))
            assert (ours[here] == -1).all(), "twice"
            ours[here] = numbers[there]
        if not torch.equal(ours, local):
            yield f"{shape} on {mesh} as {placements}, rank {rank}: {local} is not {ours}"


@pytest.mark.parametrize("mesh", LINES, ids=str)
def test_one_dimension_of_a_mesh_holds_what_torch_gives_it(mesh: tuple[int, ...]) -> None:
    for shape in [(size,) for size in SIZES] + [(3, 5), (5, 0), (4, 7, 2)]:
        every: list[sharding.Placement] = [Replicate(), *map(Shard, range(len(shape)))]
        for placement in every:
            assert list(shards_of(shape, mesh, [placement])) == []


@pytest.mark.parametrize("mesh", GRIDS, ids=str)
def test_two_dimensions_of_a_mesh_hold_what_torch_gives_them(mesh: tuple[int, ...]) -> None:
    for shape in ((7, 5), (13, 3), (2, 9), (1, 1)):
        every: list[sharding.Placement] = [Replicate(), Shard(0), Shard(1)]
        for first, second in itertools.product(every, repeat=2):
            assert list(shards_of(shape, mesh, [first, second])) == []


@pytest.mark.parametrize("mesh", GRIDS, ids=str)
def test_fsdp_over_tensor_parallelism_holds_what_torch_gives_it(mesh: tuple[int, ...]) -> None:
    """The second mesh dimension has been cut first, evenly or not."""
    for shape in [(size, 2) for size in SIZES]:
        assert list(shards_of(shape, mesh, [StridedShard(0, mesh[1]), Shard(0)])) == []


def test_a_scalar_is_held_whole() -> None:
    (part,) = parts((), (2,), (1,), [Replicate()])
    assert (part.box.count, part.local_offset) == (1, ())


@pytest.mark.parametrize(
    ("shape", "placements", "why"),
    [
        ((2,), [Shard(1)], "of 1 dimensions cannot be sharded along dimension 1"),
        ((2,), [StridedShard(-1, 2)], "along dimension -1"),
        ((2,), [], "a mesh of 1 dimensions has 0 placements"),
    ],
    ids=["no-such-dimension", "negative", "none"],
)
def test_placements_that_do_not_fit_are_refused(
    shape: tuple[int, ...], placements: list[sharding.Placement], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        parts(shape, (2,), (0,), placements)
