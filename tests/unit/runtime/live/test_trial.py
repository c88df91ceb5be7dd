"""A small sharded model changes its ranks in a world of its own, and a torch that does it in another way is seen."""

from __future__ import annotations

import gc
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param
from torch.distributed.tensor import DTensor
from torch.nn.modules import module

from perdure.group.world import guard_world, has_placeholder, install_placeholder, kept, lift_guard
from perdure.live import trial
from perdure.live.liveness import obstacle
from perdure.loop.run import Run
from perdure.state import keepers
from perdure.wire import Env
from perdure.wire.settings import read_settings
from tests.unit.runtime.state.test_fully_sharded import sharded

Change = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _nothing_is_known(meshes_end: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_FOUND", [])


def changed(owner: Any, name: str, make: Callable[[Any], Any]) -> Change:
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def renamed(plain: Any) -> Any:
    """FSDP2 keeps its memory under another name."""
    other = {"_sharded_param_data": "_memory"}
    return lambda param, name, value: plain(param, other.get(name, name), value)


def once(plain: Any) -> Any:
    """A note of a mesh takes its group once."""
    return lambda info: None if hasattr(info, "shard_mesh_size") else plain(info)


def backwards(plain: Any) -> Any:
    """A part has its rows in another order."""
    return lambda tensor, chunks, dim: [one.flip(dim) for one in plain(tensor, chunks, dim=dim)]


def remembering(plain: Any) -> Any:
    """A parameter remembers over how many ranks it was gathered first."""

    def init(param: Any, numels: Any, dtypes: Any, world: int, *others: Any, **named: Any) -> None:
        plain(param, numels, dtypes, vars(param).setdefault("_first_world", world), *others, **named)

    return init


ANOTHER: Mapping[str, tuple[Change, str]] = {
    "a method less": (lambda patch: patch.delattr(DeviceMesh, "_get_root_mesh"), "_get_root_mesh"),
    "another name": (changed(_fsdp_param.FSDPParam, "__setattr__", renamed), "_sharded_param_data"),
    "groups are taken once": (changed(_fsdp_common.FSDPMeshInfo, "__post_init__", once), "FSDP2's own notes"),
    "rows in another order": (changed(_fsdp_param, "_chunk_with_empty", backwards), "a rank's part"),
    "sizes are remembered": (changed(_fsdp_param.FSDPParam, "init_all_gather_outputs", remembering), ""),
}


@pytest.mark.parametrize("what", ANOTHER)
def test_another_torch_is_refused_with_what_differs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, why = ANOTHER[what]
    change(monkeypatch)
    found = trial.failure()
    assert found.startswith(f"the model is sharded, and a trial of torch {torch.__version__} has failed: ")
    assert why in found


def test_a_torch_that_cannot_go_on_after_a_failed_pass_still_changes_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-over happens behind a whole step."""
    monkeypatch.delattr(FSDPModule, "reset_iter_state")
    assert trial.failure() == ""


@contextmanager
def equal_meshes() -> Iterator[None]:
    """The script has a parameter that is sharded as one of the trial's, over a mesh of as many ranks."""
    install_placeholder(rank=0, world=2)
    net = trial._Layer(trial.ROWS)
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    yield
    for parameter in net.parameters():
        assert parameter.detach().device_mesh.get_group() is dist.group.WORLD  # type: ignore[attr-defined]


@contextmanager
def hooks_of_all_modules() -> Iterator[None]:
    """They see each module that is called, made, or given a parameter."""
    seen: list[object] = []

    def see(*given: object) -> None:
        seen.append(given)

    added = [
        module.register_module_forward_pre_hook(see),
        module.register_module_forward_hook(see, always_call=True),
        module.register_module_full_backward_pre_hook(see),
        module.register_module_full_backward_hook(see),
        module.register_module_parameter_registration_hook(see),
        module.register_module_module_registration_hook(see),
    ]
    try:
        yield
        assert not seen
        nn.Sequential(nn.Linear(1, 1))(torch.ones(1, requires_grad=True)).sum().backward()
        assert len(seen) == 2 * 4 + 2 + 1  # both modules pass four, one has two parameters, and one has a part
    finally:
        for one in added:
            one.remove()
    seen.clear()
    nn.Linear(1, 1)(torch.ones(1))
    assert not seen


@contextmanager
def defaults() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@contextmanager
def modes() -> Iterator[None]:
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@pytest.mark.parametrize("state", [equal_meshes, hooks_of_all_modules, defaults, modes])
def test_nothing_of_the_script_changes_what_is_found(state: Callable[[], AbstractContextManager[None]]) -> None:
    with state():
        assert trial.failure() == ""


@pytest.mark.parametrize(
    ("error", "lasts"), [(MemoryError(), False), (OSError("no more files"), False), (KeyError(), True)]
)
def test_what_is_no_fault_of_torch_is_tried_again(
    error: Exception, *, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(_fsdp_param, "_chunk_with_empty", fail)
        failed = trial.failure()
    assert type(error).__name__ in failed or str(error) in failed
    assert trial.failure() == (failed if lasts else "")


def no_world() -> None:
    """As a script on one rank."""


def real() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    dist.new_group([0])


def placeholder() -> None:
    install_placeholder(rank=1, world=4)
    sharded()


def guarded() -> None:
    guard_world(lambda: pytest.fail("the script has made no group"))


def there() -> list[Any]:
    """What a script could see of its groups, generators, hooks and modes."""
    functions = [inspect.unwrap(one) for one in (dist.init_process_group, dist.isend, dist.irecv)]
    tables = [dict(distributed_c10d._world.pg_map), dict(distributed_c10d._world.pg_names)]
    generators = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]
    noted = [(mesh, why) for mesh, why in keepers.made()]
    world = [dist.group.WORLD, distributed_c10d._world, distributed_c10d.ProcessGroupGloo, has_placeholder(), kept(0)]
    modes = [torch.is_grad_enabled(), torch.get_default_device(), gc.isenabled()]
    hooks = [sys.excepthook, torch.nn.modules.module._global_forward_hooks.copy()]
    named = [dist.get_backend(), dist.get_rank()] if dist.is_initialized() else []
    codes = [one.__code__ for one in functions]
    return [*world, *tables, *generators, *noted, *modes, *hooks, *named, *codes]


def alive() -> int:
    """How many sharded tensors and meshes there are."""
    return len([one for one in gc.get_objects() if type(one) in {DTensor, DeviceMesh} or isinstance(one, FSDPModule)])


@pytest.mark.parametrize("where", [no_world, real, placeholder, guarded])
def test_a_trial_leaves_nothing_behind(where: Callable[[], None]) -> None:
    trial.failure()  # torch imports something with the first one
    trial._FOUND.clear()
    where()
    gc.collect()
    before, living = there(), alive()
    assert trial.failure() == ""
    assert there() == before
    assert alive() == living
    lift_guard()


@pytest.mark.usefixtures("placeholder")
def test_groups_can_be_made_and_resolved_after_a_trial() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    before = [mesh.get_group(dim) for dim in range(2)]
    assert trial.failure() == ""
    assert [mesh.get_group(dim) for dim in range(2)] == before
    assert init_device_mesh("cpu", (4,)).get_group() is dist.group.WORLD


def test_only_the_main_thread_plays_and_others_learn_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def ask() -> None:
        found.append(trial.failure())

    ANOTHER["a method less"][0](monkeypatch)
    for before in (ask, trial.failure, ask):
        thread = threading.Thread(target=before) if before is ask else None
        if thread is None:
            before()
        else:
            thread.start()
            thread.join()
    assert found[0] == ""
    assert "_get_root_mesh" in found[1]


@pytest.mark.usefixtures("placeholder")
def test_a_sharded_model_continues_in_place_with_a_torch_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(read_settings({Env.RUN: "1", "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "MASTER_PORT": "1"}))
    run.registry.add("model", sharded())
    assert obstacle(run) == ""
    trial._FOUND.clear()
    ANOTHER["rows in another order"][0](monkeypatch)
    assert "a rank's part" in obstacle(run)
