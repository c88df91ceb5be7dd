"""What keeps the ranks of a sharded model, as a party finds it before the vote: one process, over a placeholder."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from perdure.checkpoint import boxes
from perdure.checkpoint.background import arena
from perdure.checkpoint.manifest import SHARED
from perdure.checkpoint.state import RankState
from perdure.errors import UserError
from perdure.live import resharding
from perdure.live.effects import Effects
from perdure.live.header import Header
from perdure.live.keys import FORMAT, StoreKeys
from perdure.live.liveness import UNREGISTERED, kept_world, obstacle
from perdure.live.protocol.parties import Attempt
from perdure.live.transfer import describe, preallocate, to_preallocate
from perdure.loop.run import Run
from perdure.state.fully_sharded import infos
from perdure.state.registry import Registry
from perdure.wire import Handover
from perdure.wire.settings import NO_MEMBER, Settings

pytestmark = pytest.mark.usefixtures("placeholder")

IN_TWO: Any = {"hsdp": ("replicate", "shard"), "tp": ("dp", "tp")}
"""Two replicas of two ranks each, and pairs of ranks that split the work on a batch."""


TORN = (
    "groups of 2 ranks for tensor parallelism do not fit into pods of 3 ranks: let processesPerReplica be a multiple "
    "of 2"
)


def shard(net: nn.Module, how: str, mesh: Any) -> Any:
    if how == "tp":
        parallelize_module(net, mesh["tp"], ColwiseParallel(), src_data_rank=None)
    return fully_shard(net, mesh=mesh["dp"] if how == "tp" else mesh)


def effects(world: int, joins: tuple[int, ...], leavers: tuple[int, ...], how: str = "hsdp") -> Effects:
    """Those of old rank 1 of four. `how`: fsdp, or one of `IN_TWO`."""
    registry, names = Registry(), IN_TWO.get(how, ("dp",))
    mesh = init_device_mesh("cpu", (2, 2) if how in IN_TWO else (4,), mesh_dim_names=names)
    registry.add("model", shard(nn.Linear(4, 4), how, mesh))
    settings = Settings("file:///nowhere", uid="uid", run=1, rank=1, world=4, member=NO_MEMBER)
    run = SimpleNamespace(registry=registry, settings=settings, world=4, framework=None, joining=False, replicas=())
    run.collectives_before = 0
    attempt = Attempt(1, 2, 4, joins, leavers)
    assert attempt.new_world == world
    block = Handover(1, 4, joins, leavers, "127.0.0.1:1", 60, "token")
    return Effects(cast("Run", run), attempt, attempt.of_old(1), block, "127.0.0.1:2")


def model(found: Effects) -> Any:
    return found.run.registry.sharded_modules[0]


def test_an_unknown_error_of_torch_is_an_obstacle_to_this_size_and_does_not_reach_the_script() -> None:
    found = effects(6, (2, 3), ())
    for info in infos(found.run.registry.sharded_modules):
        info.shard_mesh_dim = 7
    found.resharding.prepare()
    assert "index out of range" in found.resharding.obstacle


@pytest.mark.parametrize("how", IN_TWO)
@pytest.mark.parametrize("pod", [1, 2, 3, 4])
def test_pods_of_several_ranks_that_tear_groups_of_tensor_parallelism_change_in_place(how: str, pod: int) -> None:
    """With one rank in each pod every group lies in several; replicas and their shards may lie anywhere."""
    run: Any = effects(4, (), (), how).run
    run.settings = replace(run.settings, pod=pod)
    why = obstacle(run)
    assert why == ("" if pod != 3 or how == "hsdp" else TORN)


@pytest.mark.parametrize(("world", "joins", "leavers"), [(6, (2, 3), ()), (2, (), (2, 3))])
def test_a_divisor_of_gradients_that_the_script_has_set_keeps_the_size(
    world: int, joins: tuple[int, ...], leavers: tuple[int, ...]
) -> None:
    """Nobody knows whether the newer run's should be another."""
    found = effects(world, joins, leavers)
    model(found).set_gradient_divide_factor(4.0)
    found.resharding.prepare()
    assert "divides gradients by 4 (set_gradient_divide_factor)" in found.resharding.obstacle


def test_a_newcomer_whose_script_sets_other_options_of_the_shards_does_not_join() -> None:
    found = effects(4, (3,), (3,))
    header = cast("Header", SimpleNamespace(shards={}, options=found.run.registry.sharding_options()))
    found.resharding.check_shards(header, {})
    model(found).set_requires_all_reduce(False)
    with pytest.raises(UserError, match="model has all_reduce_grads=False, and True on the old ranks"):
        found.resharding.check_shards(header, {})


def test_a_model_that_gets_a_part_after_an_offer_ends_the_attempt_before_anything_is_sent() -> None:
    found = effects(6, (2, 3), ())
    found.resharding.prepare()
    assert found.resharding._resharded is not None
    net = model(found)
    net.late = fully_shard(nn.Linear(4, 4), mesh=net.weight.device_mesh)
    with pytest.raises(UserError, match="has got or replaced parameters since this attempt began"):
        found.resharding.allocate_new_shards(cast("Any", None), cast("Any", None))


@pytest.mark.parametrize("how", ["fsdp", *IN_TWO])
def test_a_sharded_model_that_is_not_registered_keeps_the_ranks_in_words_of_its_own(how: str) -> None:
    found = effects(4, (3,), (3,), how)
    assert kept_world(found.run) == ""
    found.resharding.check_moment()
    teacher = shard(nn.Linear(4, 4), how, model(found).weight.device_mesh._get_root_mesh())
    assert kept_world(found.run) == UNREGISTERED
    with pytest.raises(UserError, match="is not registered: register it, too"):
        found.resharding.check_moment()
    found.run.registry.add("teacher", teacher)
    assert kept_world(found.run) == ""
    found.resharding.check_moment()


@pytest.mark.parametrize("how", IN_TWO)
@pytest.mark.parametrize(("world", "joins", "leavers"), [(3, (), (0,)), (3, (), (1,)), (5, (4,), ())])
def test_ranks_that_do_not_fill_the_rows_of_a_mesh_are_an_obstacle_before_the_stop(
    how: str, world: int, joins: tuple[int, ...], leavers: tuple[int, ...]
) -> None:
    found = effects(world, joins, leavers, how)
    found.resharding.prepare()
    assert f"a multiple of 2 ranks, and not to {world}" in found.resharding.obstacle


@pytest.mark.parametrize("how", ["fsdp", *IN_TWO])
def test_a_newcomer_receives_the_shards_of_an_optimizers_state_into_memory_that_it_has_taken_before(how: str) -> None:
    """And memory that was taken for other things stays out of it."""
    trained, fresh = (registered(how) for _ in range(2))
    weight: Any = trained.sharded_modules[0].weight
    trained.named["optimizer"].state[weight] = {"step": torch.ones(()), "exp_avg": torch.zeros_like(weight)}
    state = trained.state(None)
    items = to_preallocate(trained.grown())
    assert [item.name for item in items] == ["optimizer/model.weight/exp_avg"]
    room = preallocate(items, fresh.owners_of(items))
    (memory,) = room.values()
    assert boxes.layout_of(memory) == boxes.layout_of(weight)
    targets = fresh.targets(state.objects, describe(state), room)
    assert targets[SHARED, items[0].name] is memory
    for odd in (torch.zeros(256, 256), boxes.like(weight, torch.float64)):
        targets = fresh.targets(state.objects, describe(state), dict.fromkeys(room, odd))
        assert boxes.layout_of(targets[SHARED, items[0].name]) == boxes.layout_of(weight)
        assert targets[SHARED, items[0].name].dtype == torch.float32
    assert preallocate(items, registered("whole").owners_of(items)) == {}, "no script needs all of it"


def registered(how: str) -> Registry:
    registry, net = Registry(), nn.Linear(256, 256)
    if how != "whole":
        names = IN_TWO.get(how, ("dp",))
        mesh = init_device_mesh("cpu", (2, 2) if how in IN_TWO else (4,), mesh_dim_names=names)
        shard(net, how, mesh)
    registry.add("model", net)
    registry.add("optimizer", torch.optim.Adam(net.parameters()))
    return registry


@pytest.mark.parametrize("how", ["fsdp", *IN_TWO])
def test_memory_for_new_shards_is_taken_before_the_stop_and_used_as_long_as_it_fits(how: str) -> None:
    found = effects(6, (2, 3), (), how)
    found.resharding.prepare()
    found.resharding.take_memory()
    taken = dict(found.resharding._memory or {})
    assert set(taken) == {"model.weight", "model.bias"}
    found.resharding.allocate_new_shards(header_of(found), RankState({}, {}, {}))
    assert {
        name: place.memory.untyped_storage().data_ptr() for (_, name), place in found.resharding.places.items()
    } == {name: memory.untyped_storage().data_ptr() for name, memory in taken.items()}
    found.resharding.forget_new_shards()
    assert found.resharding.places == {}


def test_memory_that_does_not_fit_any_more_is_not_used() -> None:
    found = effects(6, (2, 3), ())
    found.resharding.prepare()
    found.resharding._memory = {"model.weight": torch.full((3,), 7.0), "model.bias": torch.full((2,), 7.0).double()}
    found.resharding.allocate_new_shards(header_of(found), RankState({}, {}, {}))
    assert {place.memory.dtype for place in found.resharding.places.values()} == {torch.float32}
    assert not any(place.memory.any() for place in found.resharding.places.values())


def header_of(found: Effects) -> Header:
    return cast("Header", SimpleNamespace(shards=dict.fromkeys(found.run.registry.sharded_tensors())))


def test_an_attempt_that_is_over_keeps_no_memory_and_takes_none() -> None:
    found = effects(6, (2, 3), ())
    found.resharding.prepare()
    found.resharding.take_memory()
    found.resharding.free_memory()
    assert found.resharding._memory is None
    found.resharding.take_memory()
    assert found.resharding._memory is None


def test_memory_that_training_may_need_is_taken_in_the_stop_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = effects(6, (2, 3), ())
    found.resharding.prepare()
    monkeypatch.setattr(arena, "free_memory", lambda: 2**20)
    found.resharding.take_memory()
    assert found.resharding._memory == {}
    found.resharding.allocate_new_shards(header_of(found), RankState({}, {}, {}))
    assert len(found.resharding.places) == 2


def test_shards_for_which_a_container_has_no_memory_end_the_attempt_and_not_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = effects(6, (2, 3), ())
    found.resharding.prepare()
    monkeypatch.setattr(resharding, "free_memory", lambda: 4)
    with pytest.raises(UserError, match="there is no memory for its new shards"):
        found.resharding.allocate_new_shards(header_of(found), RankState({}, {}, {}))
    assert found.resharding.places == {}


@pytest.mark.parametrize("how", IN_TWO)
def test_whole_rows_are_none(how: str) -> None:
    found = effects(6, (2, 3), (), how)
    found.resharding.prepare()
    assert (found.resharding.obstacle, found.resharding._resharded is None) == ("", False)


@pytest.mark.parametrize("how", IN_TWO)
def test_a_newcomer_whose_script_makes_another_mesh_does_not_join(how: str) -> None:
    found, store = effects(4, (3,), (3,), how), HashStore()
    found._keys = StoreKeys(store, found.attempt, found.party, cast("Any", None))
    store.set("warm/0", json.dumps([FORMAT, "same\na mesh of shape [4, 1] in the newer run"]))
    with pytest.raises(UserError, match=r"it has a mesh of shape \[4, 1\] .*, and not a mesh of shape \[2, 2\]"):
        found.get_warm("same")
