"""Which share of a batch a rank has in a mesh, before and after a change: one process, over a placeholder."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from perdure.group.world import install_placeholder, uninstall
from perdure.loop.data.batch_share import BatchShare, share_in
from perdure.state.fully_sharded import take_groups
from tests.unit.runtime.loop.data.test_evenness import _loader

NAMES = ("dp", "tp")


@pytest.mark.usefixtures("meshes_end")
@pytest.mark.parametrize(
    ("rank", "dp", "tp", "everyone"),
    [
        (0, BatchShare(0, 2), BatchShare(0, 2), BatchShare(0, 4)),
        (1, BatchShare(0, 2, first=False), BatchShare(1, 2), BatchShare(1, 4)),
        (2, BatchShare(1, 2), BatchShare(0, 2, first=False), BatchShare(2, 4)),
    ],
)
def test_ranks_of_a_row_have_one_share_and_the_first_of_them_records(
    rank: int, dp: BatchShare, tp: BatchShare, everyone: BatchShare
) -> None:
    install_placeholder(rank=rank, world=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES)
    assert [share_in(mesh["dp"]), share_in(mesh["tp"]), share_in(mesh)] == [dp, tp, everyone]


@pytest.mark.usefixtures("placeholder")
def test_a_loader_follows_its_mesh_to_another_size() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net: Any = fully_shard(nn.Linear(4, 4), mesh=mesh)
    loader, _ = _loader(2)
    loader.mesh = mesh["replicate"]
    loader.share(1, 4)
    assert (loader._rank, loader._world, loader._records) == (0, 2, False)
    uninstall()
    install_placeholder(rank=4, world=6)
    take_groups([net])
    loader.share(4, 6)
    assert (loader._rank, loader._world, loader._records) == (2, 3, True)
