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
from torch.distributed.tensor import DTensor

from perdure.group.world import NO_COLLECTIVE, has_placeholder, install_placeholder, uninstall
from perdure.state.fully_sharded import (
    Resharded,
    gathers,
    infos,
    let_go,
    meshes,
    obstacle,
    references,
    strays,
    take_groups,
    unknown,
)
from perdure.state.registry import Registry
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
    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)), **options}
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


@pytest.mark.usefixtures("fake")
def test_a_model_is_sharded_while_its_parameters_are_whole_for_a_forward_pass() -> None:
    net: Any = fully_shard(Net(23), mesh=init_device_mesh("cpu", (WORLD,)))
    registry = Registry()
    registry.add("model", net)
    net.unshard()
    assert not any(isinstance(one, DTensor) for one in net.parameters())
    assert registry.sharded == "model"
    assert "some of the ranks" in registry.shards_obstacle(WORLD + 1)
    assert registry.shards_obstacle(WORLD) == ""


@pytest.mark.usefixtures("fake")
def test_a_gathering_that_nobody_has_waited_for_is_seen() -> None:
    net = sharded()
    assert not gathers([net])
    begun = net.blocks[1].unshard(async_op=True)
    assert gathers([net])
    begun.wait()
    assert not gathers([net])


@pytest.mark.usefixtures("fake")
def test_shards_of_a_torch_that_lacks_a_name_do_not_change_ranks() -> None:
    net = sharded()
    for info in infos([net]):
        del info.reduce_scatter_process_group
    assert "in an unknown way" in obstacle("model", net, WORLD)


def test_a_whole_model_has_no_shards_to_move() -> None:
    assert obstacle("model", nn.Linear(2, 2), WORLD) == ""


@pytest.mark.usefixtures("placeholder")
def test_nothing_keeps_the_group_that_was_there_before() -> None:
    net = sharded()
    before, noted = dist.group.WORLD, len(infos([net]))
    assert references([net]) == noted + len(meshes([net]))
    net.embedding.weight.grad = torch.zeros_like(net.embedding.weight)
    net.ignored = nn.Parameter(torch.ones(1))
    net.ignored.grad = torch.ones(1)
    uninstall()
    install_placeholder(rank=1, world=WORLD)
    take_groups([net])
    assert dist.group.WORLD is not before
    assert references([net]) == noted + len(meshes([net])), "all of them are to the present group"
    assert {mesh.get_group() for mesh in meshes([net])} == {dist.group.WORLD}
    assert (net.embedding.weight.grad, net.ignored.grad) == (None, None)


@pytest.mark.usefixtures("placeholder")
def test_a_training_that_has_ended_keeps_no_group() -> None:
    net = sharded()
    let_go([net])
    assert references([net]) == 0
    uninstall()
    with pytest.raises(RuntimeError, match="process group"):
        net.embedding.weight.full_tensor()


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize(("rank", "world"), [(0, 3), (2, 3), (5, 7), (1, 2)])
def test_a_model_of_another_size_is_what_torch_shards_at_that_size(rank: int, world: int) -> None:
    net = sharded()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    for parameter in net.parameters():
        optimizer.state[parameter] = {"exp_avg": torch.zeros_like(parameter, requires_grad=False)}
    kept = [(id(one), one.requires_grad) for one in net.parameters()]
    parts = [*net.parameters(), *(values["exp_avg"] for values in optimizer.state.values())]
    assert strays(parts) == []
    assert strays(parts[1:]) == [parts[0]]
    before = [described(part) for part in parts]
    made = Resharded([net], rank=rank, world=world)
    rooms = [(part, made.room(part)[0]) for part in parts]
    assert [described(part) for part in parts] == before, "nothing is changed yet"
    uninstall()
    install_placeholder(rank=rank, world=world)
    made.install(rooms)
    take_groups([net])
    fresh = sharded()
    assert [described(one) for one in net.parameters()] == [described(one) for one in fresh.parameters()]
    assert [described(values["exp_avg"]) for values in optimizer.state.values()] == [
        (*described(one)[:-1], False) for one in fresh.parameters()
    ]
    assert [(id(one), one.requires_grad) for one in net.parameters()] == kept
    assert {one.device_mesh for one in parts} == set(meshes([net]))
    assert facts(net) == facts(fresh)


def described(tensor: Any) -> tuple[Any, ...]:
    local = tensor._local_tensor
    return tuple(tensor.shape), tuple(local.shape), local.stride(), tensor.placements, tensor.requires_grad


def facts(net: Any) -> list[Any]:
    """What FSDP has computed for each parameter."""
    params = [one for part in net.modules() for one in params_of(part)]
    return [
        (one.sharded_size, one.padded_sharded_param_size, one._sharded_param_data.shape, one._sharding_spec)
        for one in params
    ]


def params_of(part: Any) -> list[Any]:
    groups = part._get_fsdp_state()._fsdp_param_groups if hasattr(part, "_get_fsdp_state") else []
    return [one for group in groups for one in group.fsdp_params]
