"""What keeps the ranks of a sharded model, as a party finds it before the vote: one process, over a placeholder."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from perdure.errors import UserError
from perdure.group.world import install_placeholder, uninstall
from perdure.live.effects import Effects, Header
from perdure.live.liveness import UNREGISTERED, kept_world
from perdure.live.protocol.parties import Attempt
from perdure.loop.run import Run
from perdure.state import keepers
from perdure.state.fully_sharded import _forget_layouts, infos
from perdure.state.registry import Registry
from perdure.wire import Handover
from perdure.wire.settings import NOBODY, Settings

NAMES = ("replicate", "shard")


@pytest.fixture(autouse=True)
def placeholder() -> Iterator[None]:
    install_placeholder(rank=1, world=4)
    yield
    uninstall()
    _forget_layouts()  # later tests may have equal meshes


def effects(world: int, joins: tuple[int, ...], leavers: tuple[int, ...], shape: tuple[int, ...] = (2, 2)) -> Effects:
    """Old rank 1 of four, whose model has replicas of two ranks."""
    registry = Registry()
    registry.add(
        "model", fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", shape, mesh_dim_names=NAMES[-len(shape) :]))
    )
    settings = Settings("file:///nowhere", uid="uid", run=1, rank=1, world=4, member=NOBODY)
    run = SimpleNamespace(registry=registry, settings=settings, world=4, driven_by="", joining=False, replicas=())
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
    found.prepare_shards()
    assert "index out of range" in found.size_obstacle


@pytest.mark.parametrize(("world", "joins", "leavers"), [(6, (2, 3), ()), (2, (), (2, 3))])
def test_a_divisor_of_gradients_that_the_script_has_set_keeps_the_size(
    world: int, joins: tuple[int, ...], leavers: tuple[int, ...]
) -> None:
    """Nobody knows whether the newer run's should be another."""
    found = effects(world, joins, leavers)
    model(found).set_gradient_divide_factor(4.0)
    found.prepare_shards()
    assert "divides gradients by 4 (set_gradient_divide_factor)" in found.size_obstacle


def test_a_newcomer_whose_script_sets_other_options_of_the_shards_does_not_join() -> None:
    found = effects(4, (3,), (3,))
    header = cast("Header", SimpleNamespace(shards={}, options=found.run.registry.sharding_options()))
    found._check_shards(header, {})
    model(found).set_requires_all_reduce(False)
    with pytest.raises(UserError, match="model has all_reduce_grads=False, and True on the old ranks"):
        found._check_shards(header, {})


def test_a_model_that_gets_a_part_after_an_offer_ends_the_attempt_before_anything_is_sent() -> None:
    found = effects(6, (2, 3), ())
    found.prepare_shards()
    assert found.resharded is not None
    net = model(found)
    net.late = fully_shard(nn.Linear(4, 4), mesh=net.weight.device_mesh)
    with pytest.raises(UserError, match="has got or replaced parameters since this attempt began"):
        found._make_rooms(cast("Any", None), cast("Any", None), found.resharded)


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_sharded_model_that_is_not_registered_keeps_the_ranks_in_words_of_its_own(shape: tuple[int, ...]) -> None:
    gc.collect()  # models of earlier tests
    for mesh, _ in keepers.made():
        keepers.disregard(mesh)  # torch's caches keep some of earlier tests
    found = effects(4, (3,), (3,), shape)
    assert kept_world(found.run) == ""
    found._check_moment()
    mesh = model(found).weight.device_mesh
    teacher: Any = fully_shard(nn.Linear(4, 4), mesh=mesh._get_root_mesh())
    assert kept_world(found.run) == UNREGISTERED
    with pytest.raises(UserError, match="is not registered: register it, too"):
        found._check_moment()
    found.run.registry.add("teacher", teacher)
    assert kept_world(found.run) == ""
    found._check_moment()
