"""A model of one process, sharded over a placeholder of the ranks: what can change its ranks, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from perdure.group.world import NO_COLLECTIVE, has_placeholder, install_placeholder, uninstall
from perdure.state.fully_sharded import infos, meshes, obstacle, references, take_groups, unknown
from tests.unit.runtime.session.sharded import Net

WORLD = 4


@pytest.fixture
def placeholder() -> Iterator[None]:
    install_placeholder(rank=1, world=WORLD)
    yield
    uninstall()


@pytest.fixture
def fake() -> Iterator[None]:
    """torch's own: further groups can be made beside it."""
    dist.init_process_group("fake", store=HashStore(), rank=1, world_size=WORLD)
    yield
    uninstall()


def sharded(**options: Any) -> Any:
    net: Any = Net(23)
    options = {"mesh": init_device_mesh("cpu", (WORLD,)), **options}
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def hooked() -> Any:
    net = sharded()
    net.set_all_reduce_hook(lambda _: None)
    return net


def shaped(*shape: int) -> Callable[[], Any]:
    return lambda: sharded(mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))


REFUSED = {
    "HSDP": (shaped(2, 2), "more than one dimension"),
    "a part of a larger mesh": (
        lambda: sharded(mesh=init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("one", "all"))["all"]),
        "more than one dimension",
    ),
    "a hook": (hooked, "an all-reduce hook"),
    "sharded again": (lambda: sharded(reshard_after_forward=2), "reshard_after_forward"),
}


def test_this_torch_has_all_names() -> None:
    assert unknown() == ""


@pytest.mark.usefixtures("placeholder")
def test_a_model_can_be_sharded_over_a_placeholder_and_nothing_is_computed_over_it() -> None:
    net = sharded()
    assert obstacle("model", net, WORLD) == ""
    assert has_placeholder()
    assert dist.get_backend() == "gloo"
    for collective in (dist.barrier, lambda: dist.all_reduce(torch.ones(1)), net.embedding.weight.full_tensor):
        with pytest.raises(RuntimeError, match="error_on_collective"):
            collective()
    with pytest.raises(RuntimeError, match=NO_COLLECTIVE):
        dist.new_group([0, 1])


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("what", REFUSED)
def test_other_shards_do_not_change_ranks_with_the_reason(what: str) -> None:
    make, why = REFUSED[what]
    assert why in obstacle("model", make(), WORLD)


@pytest.mark.usefixtures("fake")
def test_shards_over_some_of_the_ranks_do_not_change_ranks() -> None:
    assert "some of the ranks" in obstacle("model", sharded(), WORLD + 1)


def test_a_whole_model_has_no_shards_to_move() -> None:
    assert obstacle("model", nn.Linear(2, 2), WORLD) == ""


@pytest.mark.usefixtures("placeholder")
def test_nothing_keeps_the_group_that_was_there_before() -> None:
    net = sharded()
    before, noted = dist.group.WORLD, len(infos([net]))
    assert references([net]) == noted + len(meshes([net]))
    net.embedding.weight.grad = torch.zeros_like(net.embedding.weight)
    uninstall()
    install_placeholder(rank=1, world=WORLD)
    take_groups([net])
    assert dist.group.WORLD is not before
    assert references([net]) == noted + len(meshes([net])), "all of them are to the present group"
    assert {mesh.get_group() for mesh in meshes([net])} == {dist.group.WORLD}
    assert net.embedding.weight.grad is None
