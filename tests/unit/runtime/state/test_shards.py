"""What cannot be saved of a sharded model is refused by name when it is registered, and what its boxes are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from perdure.checkpoint import boxes
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.stage import layout, share_of, stage, stage_own
from perdure.errors import UserError
from perdure.layout import sharding
from perdure.layout.box import Box
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace
from perdure.state.registry import Registry
from perdure.state.shards import refuse_sharded
from tests.support.store import MemoryStore
from tests.unit.runtime.session.test_restoring import Kept, registry, saved


@pytest.fixture(autouse=True)
def rank_1_of_4() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


def module(tensor: Tensor) -> nn.Module:
    made = nn.Module()
    made.weight = nn.Parameter(tensor)
    return made


def placed(local: Tensor, *placements: Placement, mesh: Any = None, shape: tuple[int, ...] | None = None) -> DTensor:
    mesh = mesh or init_device_mesh("cpu", (4,))
    size, stride = (torch.Size(shape), torch.empty(shape).stride()) if shape else (None, None)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=size, stride=stride)


def flat() -> nn.Module:
    net: nn.Module = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(net)
    return net


def quantised() -> nn.Module:
    made: Any = module(placed(torch.ones(2), Shard(0)))
    made.weight._local_tensor = torch.ones(2).as_subclass(type("Packed", (Tensor,), {}))
    found: nn.Module = made
    return found


def on_two_ranks() -> Tensor:
    return placed(torch.ones(2), Shard(0), mesh=DeviceMesh("cpu", [0, 1]))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "partial": (
        lambda: module(placed(torch.ones(2), Partial())),
        r"tensor net\.weight is placed as Partial.*: redistri",
    ),
    "quantised": (
        quantised,
        r"tensor net\.weight is a .*Packed: only plain tensors, and DTensors of",
    ),
    "some ranks": (
        lambda: module(on_two_ranks()),
        r"tensor net\.weight lies on the ranks \[0, 1\] of 4: .* one mesh of",
    ),
    "FSDP1": (flat, r"register\(net=...\): .* FullyShardedDataParallel, .*: shard it with torch\..*\.fully_shard"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_saved_is_refused_when_it_is_registered(what: str) -> None:
    make, why = REFUSED[what]
    with pytest.raises(UserError, match=why):
        Registry().add("net", make())


def engine() -> nn.Module:
    made: nn.Module = type("Engine", (nn.Module,), {"__module__": "deepspeed.runtime.engine"})()
    return made


def zero() -> Any:
    return type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})(nn.Linear(1, 1).parameters(), lr=0.1)


def quantized() -> nn.Module:
    made = nn.Module()
    made.weight = torch.nn.Buffer(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    return made


README = (Path(__file__).parents[4] / "README.md").read_text()
PROMISED: dict[str, tuple[Callable[[], Any], str]] = {
    "FSDP1": (flat, "FullyShardedDataParallel, which keeps its parameters in one flat tensor"),
    "DeepSpeed": (engine, "DeepSpeed's Engine keeps a part of the state on each rank"),
    "ZeRO": (zero, "ZeroRedundancyOptimizer keeps a part of its state on each rank"),
    "pipeline parallelism": (lambda: module(on_two_ranks()), r"lies on the ranks \[0, 1\] of 4"),
    "sparse tensors": (lambda: Kept({"t": torch.ones(2).to_sparse()}), "is sparse_coo: only dense tensors"),
    "quantized tensors": (quantized, "is quantized: only dense tensors"),
    "objects that only pickle could save": (lambda: Kept({"f": [print]}), r"objects\['it'\]\['f'\]\[0\] is a builtins"),
}


def test_the_readmes_third_column_names_all_that_is_tried_below() -> None:
    (row,) = re.findall(r"\*\*Refused\*\* with an error \|\n.*\n\|.*\|(.*)\|$", README, re.MULTILINE)
    named = row.strip().replace("sparse and quantized", "sparse tensors, quantized")
    assert re.split(r"[,;] ", named) == list(PROMISED)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.* deprecated:UserWarning")
@pytest.mark.parametrize("what", PROMISED)
def test_what_the_readme_calls_refused_is_refused_before_anything_is_saved(what: str) -> None:
    make, why = PROMISED[what]
    with pytest.raises(UserError, match=why):
        saved(registry(it=make()))


def test_a_sharded_module_is_not_registered_late() -> None:
    net = nn.Linear(4, 4)
    fully_shard(net, mesh=init_device_mesh("cpu", (4,)))
    with pytest.raises(UserError, match=r"register\(net=...\): a sharded module .* before restore\(\)"):
        Registry().add("net", net, late=True)


def test_a_sharded_module_is_not_wrapped() -> None:
    net = nn.Linear(4, 4)
    refuse_sharded(net)
    fully_shard(net, mesh=init_device_mesh("cpu", (4,)))
    with pytest.raises(UserError, match=r"the model is sharded, .*: train it as it is"):
        refuse_sharded(net)


def test_a_part_whose_shape_is_not_what_its_placements_say_is_refused() -> None:
    with pytest.raises(UserError, match=r"of shape \[6\], .* has \[3\] on this rank, where its placements say \[2\]"):
        boxes.held(placed(torch.ones(3), Shard(0), shape=(6,)))
    with pytest.raises(UserError, match=r"has \[2\] on this rank, where its placements say \[0\]"):
        boxes.held(placed(torch.ones(2), Shard(0), shape=(1,)))


def test_what_is_sharded_over_one_dimension_of_a_mesh_is_replicated_along_the_other() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = placed(torch.ones(3, 2), Shard(0), mesh=mesh["dp"], shape=(5, 2))
    assert boxes.holders(tensor) == {Box((0, 0), (3, 2)): (0, 1), Box((3, 0), (2, 2)): (2, 3)}
    assert [one.box for one in boxes.held(tensor)] == [Box((0, 0), (3, 2))]


def test_a_tensor_without_elements_and_one_without_dimensions_have_one_box_that_all_hold() -> None:
    for tensor in (placed(torch.ones(0, 3), Shard(0), shape=(0, 3)), placed(torch.tensor(1.0), Replicate())):
        (one,) = boxes.held(tensor)
        assert one.box == Box.whole(tensor.shape)
        assert boxes.holders(tensor) == {one.box: (0, 1, 2, 3)}


def test_while_no_mesh_changes_each_is_read_once_and_no_tensor_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch needs a quarter of a millisecond for a mesh. A tensor that lived on would be one of the script's own."""
    mesh, reads = init_device_mesh("cpu", (4,)), list[DeviceMesh]()
    own: Any = vars(DeviceMesh)["mesh"]

    def read(self: DeviceMesh) -> Tensor:
        reads.append(self)
        found: Tensor = own.fget(self)
        return found

    monkeypatch.setattr(DeviceMesh, "mesh", property(read))
    with boxes.meshes_stay():
        kept = [placed(torch.ones(2, 3), Shard(0), mesh=mesh) for _ in range(3)]
        reads.clear()
        for tensor in kept:
            boxes.refuse("net.weight", tensor)
            assert [one.box for one in boxes.held(tensor)] == [Box((2, 0), (2, 3))]
        assert len(reads) == 1
        dropped = ref(kept.pop())
        del tensor
        assert dropped() is None


def test_a_tensor_that_has_the_memory_of_an_earlier_one_is_not_taken_for_it() -> None:
    mesh, ids = init_device_mesh("cpu", (4,)), set[int]()
    with boxes.meshes_stay():
        for number in range(100):
            tensor = placed(torch.ones(2), (Shard(0), Replicate())[number % 2], mesh=mesh)
            assert boxes.split_dimensions(tensor) == 1 - number % 2
            assert boxes.layout_of(tensor).placements == ((sharding.Shard(0), sharding.Replicate())[number % 2],)
            ids.add(id(tensor))
            del tensor
    assert len(ids) < 100


def test_a_hand_over_has_what_a_commit_holds_beside_its_tensors_and_refuses_the_same() -> None:
    state = registry(net=nn.Linear(2, 2)).state({"own": 3})
    for rank in (0, 1):
        whole, rest = stage(state, rank, 4), stage_own(state, rank, 4)
        assert (rest.rank, rest.world, rest.state, rest.objects) == (rank, 4, whole.state, whole.objects)
    odd = replace(state, shared={"net.weight": placed(torch.ones(3), Shard(0), shape=(6,))})
    for staged in (stage, stage_own):
        with pytest.raises(UserError, match="where its placements say"):
            staged(odd, 1, 4)


def test_after_a_warm_up_torch_knows_each_operation_of_a_restore_and_no_value_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Linear(8, 8)
    fully_shard(net, mesh=init_device_mesh("cpu", (4,)))
    held = registry(net=net)
    state = held.state(None)
    before = {name: boxes.local(tensor).clone() for name, tensor in state.shared.items()}
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    work_out, worked_out = propagator.propagate_op_sharding_non_cached, list[str]()

    def recorded(schema: Any) -> Any:
        worked_out.append(str(schema.op))
        return work_out(schema)

    monkeypatch.setattr(propagator, "propagate_op_sharding_non_cached", recorded)
    propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
    held.warm_up()
    assert {"aten.detach.default", "aten.copy_.default"} <= set(worked_out)
    worked_out.clear()
    held.load(state)
    assert worked_out == []
    assert all(torch.equal(before[name], boxes.local(tensor)) for name, tensor in state.shared.items())


def test_ranks_with_the_same_boxes_have_the_same_part_of_a_model() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    of_hsdp = placed(torch.ones(3), Replicate(), Shard(0), mesh=mesh, shape=(6,))
    everywhere = placed(torch.ones(6), Replicate(), Replicate(), mesh=mesh)
    assert boxes.parts([of_hsdp, everywhere, torch.ones(2)], 4) == (0, 1, 0, 1)
    assert boxes.parts([placed(torch.ones(1), Shard(0), shape=(4,)), of_hsdp], 4) == (0, 1, 2, 3)
    assert boxes.parts([torch.ones(2)], 4) == (0, 0, 0, 0)


def test_the_parts_write_every_box_of_a_model_once() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    of_hsdp = placed(torch.ones(3), Replicate(), Shard(0), mesh=mesh, shape=(5,))
    named = {"whole": torch.ones(2), "sharded": of_hsdp, "scale": torch.ones(1)}
    parts = boxes.parts(named.values(), 4)
    written = [list(share_of(rank, named, 2, parts)) for rank in range(2)]
    assert {("sharded", Box((0,), (3,)))} <= set(written[0])
    assert {("sharded", Box((3,), (2,)))} <= set(written[1])
    assert sorted(name for part in written for name, _ in part) == ["scale", "sharded", "sharded", "whole"]


def test_ranks_that_shard_a_tensor_otherwise_have_another_layout() -> None:
    tensors = [
        placed(torch.ones(2, 4), Shard(0), shape=(8, 4)),
        placed(torch.ones(8, 1), Shard(1), shape=(8, 4)),
        placed(torch.ones(8, 4), Replicate()),
        torch.ones(8, 4),
    ]
    assert len({str(layout({"w": tensor})) for tensor in tensors}) == 4


class Alike:
    """Four ranks that all say what this one says."""

    rank, world = 1, 4

    def gather(self, doing: str, value: Any) -> list[Any]:
        return json.loads(json.dumps([value] * self.world)) if doing else []

    def broadcast(self, doing: str, value: Any) -> Any:
        return self.gather(doing, value)[0]


def test_a_save_reads_a_mesh_no_oftener_for_more_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes a quarter of a millisecond, for which training stands still."""
    reads = list[DeviceMesh]()
    mesh, plain = init_device_mesh("cpu", (4,)), DeviceMesh.mesh

    def read(one: DeviceMesh) -> Tensor:
        reads.append(one)
        return plain.fget(one)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(DeviceMesh, "mesh", property(read))
    counts = list[int]()
    for many in (1, 9):
        net = nn.ModuleList(module(placed(torch.ones(2, 4), Shard(0), mesh=mesh, shape=(8, 4))) for _ in range(many))
        registry = Registry()
        registry.add("net", net)
        saver = Checkpointer(MemoryStore(), Alike(), None, 1, 3, NoTrace(), Timings(), partial(registry.state, None))
        reads.clear()
        saver.stage_now()
        counts.append(len(reads))
    assert 0 < counts[0] == counts[1]


def test_optimizer_state_in_other_shards_than_its_parameter_s_is_refused_when_it_is_saved() -> None:
    net = module(placed(torch.ones(2, 4), Shard(0), shape=(8, 4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    registry = Registry()
    registry.add("net", net)
    registry.add("optimizer", optimizer)
    (parameter,) = net.parameters()
    optimizer.state[parameter]["momentum_buffer"] = placed(torch.ones(2, 4), Shard(0), shape=(8, 4))
    registry.state(None)
    optimizer.state[parameter]["momentum_buffer"] = placed(torch.ones(8, 1), Shard(1), shape=(8, 4))
    with pytest.raises(UserError, match=r"optimizer 'optimizer' keeps momentum_buffer of net\.weight in shards that"):
        registry.state(None)
