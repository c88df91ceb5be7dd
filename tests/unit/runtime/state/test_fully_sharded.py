"""A model of one process, sharded over a placeholder of the ranks: what can change its ranks, and what it keeps."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from perdure.checkpoint.boxes import placements_over
from perdure.group.peers import Alone
from perdure.group.world import NO_MESSAGE, foreign, has_placeholder, install_placeholder, uninstall
from perdure.live.liveness import unknown_keeper
from perdure.loop.run import Run
from perdure.state import keepers
from perdure.state.fully_sharded import (
    _GRAD_DTYPE_SET,
    COMPILED,
    Resharded,
    elastic_mesh,
    gathers,
    groups,
    holds_sums,
    infos,
    keeps_others,
    let_go,
    meshes,
    obstacle,
    options,
    own_divisor,
    references,
    strays,
    take_groups,
    unknown,
)
from perdure.state.registry import Registry
from perdure.wire.settings import Settings
from tests.unit.runtime.session.sharded import Block, Net

WORLD = 4


@pytest.fixture
def fake(meshes_end: None) -> None:
    """torch's own: further groups can be made beside it."""
    dist.init_process_group("fake", store=HashStore(), rank=1, world_size=WORLD)


def sharded(**options: Any) -> Any:
    net: Any = Net(23)
    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)), **options}
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def without_own(mesh: DeviceMesh) -> Any:
    """A net of which the root has no parameters; over tensor parallelism, if the mesh has it."""
    net, parallel = nn.Sequential(*(Block(4) for _ in range(3))), "tp" in (mesh.mesh_dim_names or ())
    for part in net.children() if parallel else ():
        parallelize_module(part, mesh["tp"], split(), src_data_rank=None)
    for part in (*net.children(), net):
        fully_shard(part, mesh=mesh["dp"] if parallel else mesh)
    return net


def split() -> Any:
    """How tensor parallelism splits a block."""
    return {"a": ColwiseParallel(), "b": RowwiseParallel()}


def hooked() -> Any:
    net = sharded()
    net.set_all_reduce_hook(lambda _: None)
    return net


def changed(change: Callable[[Any], None]) -> Any:
    net = sharded()
    change(net)
    return net


class OwnAllGather(DefaultAllGather):
    pass


class OwnReduceScatter(DefaultReduceScatter):
    pass


def shaped(*shape: int) -> Callable[[], Any]:
    return lambda: sharded(mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))


def of_two_meshes() -> Any:
    net = shaped(2, 2)()
    net.late = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (WORLD,)))
    return net


def sharded_again() -> Any:
    net = sharded(reshard_after_forward=2)
    net.set_reshard_after_forward(True)
    return net


REFUSED: Mapping[str, tuple[Callable[[], Any], str]] = {
    "a part of a larger mesh": (
        lambda: sharded(mesh=init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("one", "all"))["all"]),
        "not its first dimension",
    ),
    "a pipeline's stage": (
        lambda: sharded(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))["dp"]),
        "nothing is split along the other dimension 'pp'",
    ),
    "replicas in a part of a larger mesh": (
        lambda: sharded(
            mesh=init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "replicate", "shard"))["replicate", "shard"]
        ),
        "a mesh of 3 dimensions",
    ),
    "a gathering of its own": (
        lambda: changed(lambda net: net.set_custom_all_gather(OwnAllGather())),
        "collectives of the script's own",
    ),
    "a reduction of its own": (
        lambda: changed(lambda net: net.set_custom_reduce_scatter(OwnReduceScatter())),
        "collectives of the script's own",
    ),
    "a group of its own": (
        lambda: changed(lambda net: net.set_separate_reduce_scatter_group()),
        "a separate process group",
    ),
    "whole replicas": (lambda: replicate(nn.Linear(4, 4)), "wrap it with session.wrap"),
    "two meshes": (of_two_meshes, "several meshes"),
    "a hook": (hooked, "an all-reduce hook"),
    "sharded again": (lambda: sharded(reshard_after_forward=2), "reshard_after_forward"),
    "sharded again, and changed": (sharded_again, "is sharded over several meshes"),
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


@pytest.mark.usefixtures("placeholder")
def test_replicas_are_sharded_over_placeholders_and_their_groups_are_not_taken_for_the_scripts_own() -> None:
    net = shaped(2, 2)()
    assert obstacle("model", net, WORLD) == ""
    assert elastic_mesh([net]).shape == (2, 2)
    assert len(foreign()) == 2
    assert foreign(groups([net])) == []
    with pytest.raises(RuntimeError, match="error_on_collective"):
        net.embedding.weight.full_tensor()
    own: Any = dist.new_group([0, 1])
    assert foreign(groups([net])) == [own.group_name]


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize(
    "message",
    [
        dist.send,
        dist.recv,
        dist.isend,
        dist.irecv,
        lambda tensor, to: dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, to)]),
        lambda _, to: dist.send_object_list([None], to),
        lambda _, of: dist.recv_object_list([None], of),
    ],
)
def test_a_message_over_a_placeholder_fails_and_none_fails_after_it(message: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=NO_MESSAGE):
        message(torch.ones(1), 0)
    uninstall()
    assert [one.__code__.co_name for one in (dist.isend, dist.irecv)] == ["isend", "irecv"]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("what", REFUSED)
def test_other_shards_do_not_change_ranks_with_the_reason(what: str) -> None:
    make, why = REFUSED[what]
    assert why in obstacle("model", make(), WORLD)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("tied", [False, True])
def test_assigned_parameters_change_ranks_unless_that_has_untied_some(*, tied: bool) -> None:
    net: Any = Net(23)
    if not tied:
        net.head = nn.Linear(14, 37)
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)
    why = obstacle("model", net, WORLD)
    untied = "of shape [37, 14] that fully_shard has not made: load_state_dict(assign=True) has untied a parameter"
    assert untied in why if tied else why == ""


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
def test_what_is_gathered_for_tensor_parallelism_is_no_obstacle() -> None:
    net = parallel()
    shards = list(net.parameters())
    net.blocks[0].unshard()
    assert isinstance(net.blocks[0].a.weight, DTensor)
    assert obstacle("model", net, WORLD) == ""
    assert strays(shards, [net]) == []


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


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("names", [("dp",), ("replicate", "shard"), ("dp", "tp")])
def test_an_evaluation_before_a_move_does_not_change_what_the_next_step_gathers(names: tuple[str, ...]) -> None:
    """torch gathers in a backward pass by its notes of forward passes, and a newcomer has none. Where the root has
    parameters of its own, what is gathered once more is still whole."""
    shape = (WORLD // 2, 2) if len(names) > 1 else (WORLD,)

    def collectives(net: Any) -> dict[Any, int]:
        loss = net(torch.ones(2, 14)).sum()
        with CommDebugMode() as seen:
            loss.backward()
        return dict(seen.comm_counts)

    stayer, newcomer = (without_own(init_device_mesh("cpu", shape, mesh_dim_names=names)) for _ in range(2))
    collectives(stayer)
    with torch.no_grad():
        stayer(torch.ones(2, 14))
    for part in (*stayer.children(), stayer):
        part.reshard()
    for net in (stayer, newcomer):
        take_groups([net])
    assert collectives(stayer) == collectives(newcomer)


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize("shape", [(WORLD,), (2, 2)])
def test_another_sharded_model_is_found_and_one_that_the_script_has_dropped_is_not(shape: tuple[int, ...]) -> None:
    """Nobody would give it the groups of a newer run."""
    gc.collect()  # models of earlier tests
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    student, teacher = without_own(mesh), sharded(mesh=mesh)
    prepared = Resharded([student, teacher], rank=1, world=6)
    assert not keeps_others([student, teacher]), "what is prepared for another size has no groups"
    del prepared
    assert keeps_others([student])
    del teacher
    assert not keeps_others([student])


@pytest.mark.usefixtures("placeholder")
def test_the_mesh_over_which_torch_tries_a_function_is_not_the_scripts_own() -> None:
    """torch keeps it for good, so no rank of the process could change any more."""
    net = sharded()
    propagator = DTensor._op_dispatcher.sharding_propagator
    known = {id(mesh) for mesh, _ in keepers.made()}
    weight = next(net.parameters())
    propagator.decomp_strategy._fake_meshes.clear()
    with suppress(RuntimeError):  # a placeholder computes nothing, but torch has laid it out by then
        nn.functional.huber_loss(weight, weight)
    assert [mesh for mesh, _ in keepers.made() if id(mesh) not in known], "torch has made none"
    assert unknown_keeper(lambda: meshes([net])) == ""


@pytest.mark.usefixtures("placeholder")
def test_a_part_of_a_known_mesh_that_is_made_during_the_look_is_not_the_scripts_own() -> None:
    """The script's thread may make it while another one looks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net, made = sharded(mesh=mesh), list[Any]()

    def known() -> list[Any]:
        found = meshes([net])
        made.append(mesh["replicate"])
        return found

    assert unknown_keeper(known) == ""
    assert made[0] in meshes([net])


@pytest.fixture
def compiler() -> Iterator[None]:
    """It keeps nothing of the test's."""
    yield
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.usefixtures("fake", "compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # it is torch's compiler that looks
def test_compiled_code_with_a_dtensor_is_told_as_what_keeps_the_ranks() -> None:
    """torch's compiler copies the mesh, to compare with it, and the script has made none."""
    net = parallel(wide=22)
    for block in net.blocks:
        block.compile(backend="eager")
    net(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert unknown_keeper(lambda: meshes([net])) == COMPILED
    kept: list[Any] = strays(list(net.parameters()), net.modules())  # the gradients
    assert {type(one._local_tensor) for one in kept} == {torch.Tensor}
    own = copy.deepcopy(net.blocks[0].a.weight.device_mesh)
    assert [why for mesh, why in keepers.made() if mesh is own] == ["a DeviceMesh of the script's own"]


def frozen(net: Any) -> None:
    net.blocks[0].requires_grad_(False)


SET: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "requires_grad": ("model.blocks.0", frozen),
    "gradient_divide_factor": ("model", lambda net: net.set_gradient_divide_factor(6.0)),
    "reduce_grads": ("model.blocks.1", lambda net: net.blocks[1].set_requires_gradient_sync(False)),
    "all_reduce_grads": ("model.blocks.1", lambda net: net.blocks[1].set_requires_all_reduce(False)),
    "reshard_after_forward": ("model.blocks.1", lambda net: net.blocks[1].set_reshard_after_forward(False)),
    "_states_to_forward_prefetch": ("model", lambda net: net.set_modules_to_forward_prefetch([net.blocks[0]])),
    "_states_to_backward_prefetch": ("model", lambda net: net.set_modules_to_backward_prefetch([net.blocks[0]])),
    "reshard_after_backward": ("model.blocks.0", lambda net: net.set_reshard_after_backward(False)),
    "unshard_in_backward": ("model", lambda net: net.set_unshard_in_backward(False)),
    "unshard_async_op": ("model.blocks.1", lambda net: net._set_unshard_async_op(True)),
    "force_sum_reduction_for_comms": ("model", lambda net: net.set_force_sum_reduction_for_comms(True)),
    "reduce_scatter_unused_params": ("model.blocks.0", lambda net: net.set_reduce_scatter_unused_params(True)),
    "reduce_scatter_max_input_buffers": ("model.blocks.0", lambda net: net.set_reduce_scatter_max_input_buffers(2)),
    "keep_unsharded_storage": ("model.blocks.0", lambda net: net.set_keep_unsharded_storage(True)),
    "is_last_backward": ("model", lambda net: net.blocks[1].set_is_last_backward(False)),
    "manual_backward_finalization": ("model", lambda net: net.set_manual_backward_finalization(True)),
}
SINCE_2_15 = {"keep_unsharded_storage", "manual_backward_finalization"}
SEEN_AS = {"_auto_reshard_after_forward": "reshard_after_forward", "post_forward_mesh_info": "reshard_after_forward"}
IN_THE_WAY = {"_all_gather_comm", "_reduce_scatter_comm", "_all_reduce_hook", "reduce_scatter_process_group"}
"""What keeps the ranks when a script sets it, so that the reason is told."""
HARMLESS = {"post_optim_event", "_all_reduce_hook_stream"}
"""An event for which the next pass waits, and that it forgets; and what counts with the hook alone."""


def set_by(method: ast.AST, helpers: Mapping[str, ast.AST]) -> Iterator[str]:
    """The attributes that it assigns, also through methods of these names."""
    for node in ast.walk(method):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Call(func=ast.Attribute(attr=name)) if name in helpers and helpers[name] is not method:
                yield from set_by(helpers[name], helpers)


def setters_of(module: Any, kind: str) -> dict[str, ast.AST]:
    classes = (one for one in ast.parse(inspect.getsource(module)).body if isinstance(one, ast.ClassDef))
    methods = next(one.body for one in classes if one.name == kind)
    found = {one.name: one for one in methods if isinstance(one, ast.FunctionDef)}
    return {name: one for name, one in found.items() if name.lstrip("_").startswith("set_")}


def test_whatever_a_setter_of_fsdp_changes_is_compared_with_a_newcomers_or_in_the_way_of_a_move() -> None:
    """By torch's own source: a setter that a newer torch adds is found here."""
    setters = setters_of(_fully_shard, "FSDPModule")
    helpers = setters | setters_of(_fsdp_param_group, "FSDPParamGroup")
    by_setter = {name: {*set_by(one, helpers)} for name, one in setters.items() if not name.startswith("_")}
    assert len(by_setter) >= 20
    assert [name for name, found in by_setter.items() if not found] == []
    found = {SEEN_AS.get(one, one) for attributes in by_setter.values() for one in attributes}
    assert found - SET.keys() - IN_THE_WAY - HARMLESS == set()


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("name", SET)
def test_what_a_script_sets_in_fsdp_is_seen_and_a_pass_changes_none_of_it(name: str) -> None:
    path, change = SET[name]
    if name in SINCE_2_15 and not hasattr(FSDPModule, f"set_{name}"):
        pytest.skip(f"this torch has no set_{name}")
    net = sharded()
    before = options({"model": net})
    net(torch.zeros(1, 4, dtype=torch.long))
    assert options({"model": net}) == before
    change(net)
    after = options({"model": net})
    assert after[path][name] != before[path][name]


@pytest.mark.usefixtures("fake")
@pytest.mark.skipif(not hasattr(FSDPModule, "finalize_backward"), reason="this torch always finishes by itself")
def test_a_backward_pass_that_the_script_has_to_finish_is_seen() -> None:
    net: Any = sharded()
    net.set_manual_backward_finalization(True)
    assert not holds_sums([net])
    net(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert holds_sums([net])
    handle = net.finalize_backward(async_op=True)
    assert holds_sums([net])
    handle.wait()
    assert not holds_sums([net])


@pytest.mark.usefixtures("placeholder")
def test_only_another_divisor_of_gradients_than_one_depends_on_the_ranks() -> None:
    net = shaped(2, 2)()
    assert own_divisor([net]) is None
    net.set_gradient_divide_factor(1.0)
    assert own_divisor([net]) is None
    net.set_gradient_divide_factor(4.0)
    assert own_divisor([net]) == 4.0


@pytest.mark.usefixtures("placeholder")
def test_a_model_that_got_or_replaced_a_parameter_needs_other_shards() -> None:
    net = sharded()
    made = Resharded([net], rank=1, world=6)
    assert made.fits([net])
    net.late = fully_shard(nn.Linear(4, 4), mesh=net.embedding.weight.device_mesh)
    assert not made.fits([net])
    made = Resharded([net], rank=1, world=6)
    net.load_state_dict({name: value.detach().clone() for name, value in net.state_dict().items()}, assign=True)
    for param in (param for part in net.modules() for param in params_of(part)):
        param.reset_sharded_param()  # as torch does with the first pass after that
    assert not made.fits([net])


@pytest.mark.skipif(not hasattr(torch.Tensor, _GRAD_DTYPE_SET), reason="FSDP2 does not keep it before torch 2.15")
@pytest.mark.usefixtures("placeholder")
def test_gradients_have_the_type_at_another_size_that_the_script_has_given_them() -> None:
    net: Any = nn.Linear(4, 4, dtype=torch.bfloat16)
    for parameter in net.parameters():
        parameter.grad_dtype = torch.float32
    fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))
    made = Resharded([net], rank=1, world=6)
    memories = [(part, made.placed(part, made.room_for(part).memory())[0]) for part in net.parameters()]
    uninstall()
    install_placeholder(rank=1, world=6)
    take_groups([net])
    made.install(memories)
    assert [one.sharded_grad_dtype for one in params_of(net)] == [torch.float32] * 2


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("world", [WORLD, 6])
def test_gradients_that_a_script_keeps_are_zeros_after_a_move(*, world: int, keeps: bool) -> None:
    """An optimizer steps by them: AdamW decays a layer that the next step leaves out. Others are dropped."""
    net = sharded()
    registry = Registry()
    registry.add("model", net)
    made = Resharded([net], rank=1, world=world)
    for _ in range(2):
        for one in net.blocks.parameters():
            one.grad = one.grad if keeps and one.grad is not None else torch.ones_like(one)
        registry.note_gradients()
    uninstall()
    install_placeholder(rank=1, world=world)
    with registry.zeroing_gradients():
        take_groups([net])
        if world != WORLD:
            made.install([(one, made.placed(one, made.room_for(one).memory())[0]) for one in net.parameters()])
    used = list(net.blocks.parameters())
    if keeps:
        assert [described(one.grad) for one in used] == [(*described(one)[:-1], False) for one in used]
        assert not any(one.grad.to_local().any() for one in used)
    else:
        assert [one.grad for one in used] == [None] * len(used)
    assert net.embedding.weight.grad is None


@pytest.mark.usefixtures("placeholder")
def test_a_move_is_no_sign_that_the_script_drops_gradients() -> None:
    net = sharded()
    registry = Registry()
    registry.add("model", net)
    for moves in (True, False, False):
        for one in net.parameters():
            one.grad = one.grad if one.grad is not None else torch.ones_like(one)
        registry.note_gradients()
        if moves:
            with registry.zeroing_gradients():
                take_groups([net])
    assert registry.state(None).objects["model"]["gradients"]


@pytest.mark.usefixtures("placeholder")
def test_a_part_of_a_mesh_is_made_once_for_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP has one for each parameter, and each takes a millisecond in which the ranks stand still."""
    net, made, plain = shaped(2, 2)(), [], DeviceMesh._create_sub_mesh

    def noted(mesh: Any, *arguments: Any) -> Any:
        made.append(mesh)
        return plain(mesh, *arguments)

    monkeypatch.setattr(DeviceMesh, "_create_sub_mesh", noted)
    take_groups([net])
    assert len(made) == 1
    assert {mesh.get_local_rank() for mesh in meshes([net]) if mesh.ndim == 1} == {1}


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize("shape", [(WORLD,), (2, 2)])
def test_a_training_that_has_ended_keeps_no_group(shape: tuple[int, ...]) -> None:
    net = sharded() if len(shape) == 1 else shaped(*shape)()
    let_go([net])
    assert (references([net]), groups([net])) == (0, [])
    uninstall()
    with pytest.raises(RuntimeError, match="process group"):
        net.embedding.weight.full_tensor()


def parallel(pair: int = 2, *, wide: int = 23) -> Any:
    """Tensor parallelism in pairs of ranks, and FSDP2 over it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // pair, pair), mesh_dim_names=("dp", "tp"))
    net = Net(wide)
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], split(), src_data_rank=None)
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(net, mesh=mesh["dp"])


def replicated() -> Any:
    return shaped(dist.get_world_size() // 2, 2)()


def grouped() -> Any:
    """Blocks that are gathered together."""
    net, mesh = Net(23), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard([*net.blocks], mesh=mesh)
    return fully_shard(net, mesh=mesh)


KINDS: Mapping[str, Callable[[], Any]] = {"fsdp": sharded, "hsdp": replicated, "tp": parallel, "grouped": grouped}


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize("kind", ["hsdp", "tp"])
def test_no_note_of_a_mesh_of_two_dimensions_keeps_a_group_that_was_there_before(kind: str) -> None:
    net = KINDS[kind]()
    before, kept = groups([net]), [id(mesh) for mesh in meshes([net])]
    uninstall()
    install_placeholder(rank=1, world=WORLD)
    take_groups([net])
    values = [value for info in infos([net]) for value in vars(info).values()]
    found = [*values, *(mesh.get_group(dim) for mesh in meshes([net]) for dim in range(mesh.ndim))]
    assert [one for one in found if any(one is old for old in before)] == []
    assert all(any(one is new for new in groups([net])) for one in found if isinstance(one, dist.ProcessGroup))
    assert [id(mesh) for mesh in meshes([net])] == kept


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize(
    ("kind", "rank", "world"),
    [
        ("fsdp", 0, 3), ("fsdp", 2, 3), ("fsdp", 5, 7), ("fsdp", 1, 2),
        ("hsdp", 0, 2), ("hsdp", 3, 4), ("hsdp", 6, 8), ("hsdp", 3, 6),
        ("tp", 0, 2), ("tp", 3, 4), ("tp", 6, 8), ("tp", 5, 6), ("grouped", 1, 3),
    ],
)  # fmt: skip
def test_a_model_of_another_size_is_what_torch_shards_at_that_size(kind: str, rank: int, world: int) -> None:
    made = KINDS[kind]
    net = made()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    for parameter in net.parameters():
        optimizer.state[parameter] = {"exp_avg": torch.zeros_like(parameter, requires_grad=False)}
    kept = [(id(one), one.requires_grad) for one in net.parameters()]
    parts = [*net.parameters(), *(values["exp_avg"] for values in optimizer.state.values())]
    assert strays(parts, [net]) == []
    assert strays(parts[1:], [net]) == [parts[0]]
    before, kept_meshes = [described(part) for part in parts], keepers.made()
    made_anew = Resharded([net], rank=rank, world=world)
    assert made_anew.fits([net])
    memories = [(part, made_anew.placed(part, made_anew.room_for(part).memory())[0]) for part in parts]
    assert [described(part) for part in parts] == before, "nothing is changed yet"
    assert [one for one in keepers.made() if not any(one[0] is mesh for mesh, _ in kept_meshes)] == []
    uninstall()
    install_placeholder(rank=rank, world=world)
    take_groups([net])
    made_anew.install(memories)
    fresh = made()
    assert [described(one) for one in net.parameters()] == [described(one) for one in fresh.parameters()]
    assert [described(values["exp_avg"]) for values in optimizer.state.values()] == [
        (*described(one)[:-1], False) for one in fresh.parameters()
    ]
    assert [(id(one), one.requires_grad) for one in net.parameters()] == kept
    assert {one.device_mesh for one in parts} <= set(meshes([net]))
    assert facts(net) == facts(fresh)
    assert [noted(info) for info in infos([net])] == [noted(info) for info in infos([fresh])]
    assert [mesh.get_coordinate() for mesh in meshes([net])] == [mesh.get_coordinate() for mesh in meshes([fresh])]


@pytest.mark.usefixtures("placeholder")
def test_what_lies_over_a_part_of_a_mesh_lies_over_all_of_it_also_if_that_part_has_all_ranks() -> None:
    """As with a script's `--tp 1`."""
    net = parallel(1)
    assert None not in [placements_over(one, elastic_mesh([net])) for one in net.parameters()]


@pytest.mark.usefixtures("fake")
def test_each_rank_shards_again_at_a_boundary_whether_it_takes_a_snapshot_there_or_not(tmp_path: Path) -> None:
    """A pass without gradients leaves the outermost part whole. If some ranks did not, the next one would gather it on
    the others alone."""
    run = Run(Settings(tmp_path.as_uri(), uid="u", run=1, rank=1, world=WORLD))
    run.peers, net = Alone(1, WORLD), sharded()
    run.registry.add("model", net)
    net.unshard()
    assert not run.images.wanted
    run.images.reach_safe_point()
    assert all(isinstance(one, DTensor) for one in net.parameters())


@pytest.mark.usefixtures("placeholder")
def test_new_shards_are_where_the_old_ones_are() -> None:
    with torch.device("meta"):
        net = without_own(init_device_mesh("cpu", (WORLD,)))
    made = Resharded([net], rank=1, world=6)
    assert {made.room_for(part).memory().device.type for part in net.parameters()} == {"meta"}


@pytest.mark.usefixtures("placeholder")
@pytest.mark.parametrize("kind", KINDS)
def test_what_torch_knows_of_another_rank_in_an_equal_mesh_is_forgotten(kind: str) -> None:
    """A member may be rank 1 of 4, then 1 of 2, then 2 of 4. torch remembers the shapes of parts by meshes, and the
    first mesh and the last one compare equal."""
    net = KINDS[kind]()
    before = [made_by_torch(part) for part in net.parameters()]
    for rank, world in ((1, 2), (2, 4)):
        made = Resharded([net], rank=rank, world=world)
        memories = [(part, made.placed(part, made.room_for(part).memory())[0]) for part in net.parameters()]
        uninstall()
        install_placeholder(rank=rank, world=world)
        take_groups([net])
        made.install(memories)
    after = [made_by_torch(part) for part in net.parameters()]
    assert after == [tuple(part.to_local().shape) for part in net.parameters()]
    assert after != before, "the ranks hold parts of other sizes, or this shows nothing"


def made_by_torch(part: Any) -> tuple[int, ...]:
    """The shape of this rank's part of a new tensor, which torch works out once for a mesh."""
    return tuple(part.new_zeros(part.shape).to_local().shape)


@pytest.mark.usefixtures("placeholder")
def test_a_newcomer_without_a_sharded_model_has_no_groups_to_take() -> None:
    take_groups([])
    assert has_placeholder()


def noted(info: Any) -> dict[str, Any]:
    """FSDP's note of a mesh; of a group rank and size."""
    found = {name: value for name, value in vars(info).items() if isinstance(value, int | None)}
    sizes = {name: (value.rank(), value.size()) for name, value in vars(info).items() if hasattr(value, "rank")}
    return found | sizes | {"shape": tuple(info.mesh.shape)}


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
