"""Plays, in this process alone, a change of a small sharded model from two ranks to three.

What this torch makes of it is compared with what it shards over three ranks itself. torch has no public way to change
the ranks of a sharded model, so the names that perdure.state.fully_sharded needs may be there and mean something else
in another version. Then members change in place, with what differs as the reason.

The script's generators, groups, meshes and hooks stay as they are, and none of them, nor its modes and defaults,
changes what is found. Called by perdure.live.liveness where a sharded model is registered, and at the latest when a
hand-over is offered: before training stops.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.modules import module

from perdure.errors import in_words
from perdure.group.world import another_world, install_echo
from perdure.state import keepers
from perdure.state.fully_sharded import Resharded, facts, forget_layouts, let_go, meshes, take_groups
from perdure.state.shards import sharded_parts

BEFORE: Final = (1, 2)
AFTER: Final = (2, 3)
"""Rank and size."""
ROWS: Final = 8
"""Uneven over three ranks, and each gets several."""
_DIMENSION: Final = "perdure_trial"
"""The name of the meshes' dimension. DTensor takes a layout that it remembers for any equal mesh, and meshes are equal
whose ranks and names are: without a name of its own the trial's model would get layouts over the script's mesh."""
_HOOKS: Final = "_global_"
"""How the names of torch's tables begin in which it keeps hooks for all modules."""


@dataclass(frozen=True)
class _Found:
    """What the trial has found."""

    why: str
    """"" if this torch can do it."""
    lasts: bool
    """Whether another trial would find the same. Not where this process only lacked memory or files."""


_FOUND: Final[list[_Found]] = []
"""What the last trial has found."""


def failure() -> str:
    """Why this torch cannot change the ranks of a sharded model; "" if it can, or if no main thread has asked yet."""
    tried = bool(_FOUND) and _FOUND[0].lasts
    if not tried and threading.current_thread() is threading.main_thread():
        _FOUND[:] = [_tried()]
    why = _FOUND[0].why if _FOUND else ""
    return why and f"the model is sharded, and a trial of torch {torch.__version__} has failed: {why}"


def _tried() -> _Found:
    try:
        with _aside():
            return _Found(_play(), lasts=True)
    except (MemoryError, OSError) as error:
        return _Found(in_words(error), lasts=False)
    except Exception as error:  # noqa: BLE001 - another torch may do anything
        return _Found(in_words(error), lasts=True)


@contextmanager
def _aside() -> Iterator[None]:
    """Meanwhile the script's modes and hooks do not count, and afterwards nothing that was made here is alive."""
    collects, known = gc.isenabled(), {id(mesh) for mesh, _ in keepers.made()}
    gc.disable()  # so that all that is made here stays young, and is found without a look at the script's objects
    try:
        with ExitStack() as modes:
            for mode in (torch.device("cpu"), torch.inference_mode(False), torch.enable_grad()):
                modes.enter_context(mode)
            modes.enter_context(torch.autocast("cpu", enabled=False))
            modes.enter_context(_no_hooks())
            yield
    finally:
        for mesh, _ in keepers.made():
            if id(mesh) not in known and isinstance(mesh, DeviceMesh):
                keepers.disregard(mesh)
        try:
            forget_layouts()
        finally:
            gc.collect(0)
            if collects:
                gc.enable()


@contextmanager
def _no_hooks() -> Iterator[None]:
    """Meanwhile torch has no hooks for all modules. What the script keeps of its own hooks stays good."""
    tables = {
        name: table for name, table in vars(module).items() if name.startswith(_HOOKS) and isinstance(table, dict)
    }
    vars(module).update({name: type(table)() for name, table in tables.items()})
    try:
        yield
    finally:
        vars(module).update(tables)


def _play() -> str:
    """How what has changed its ranks differs from what torch makes at once; "" if it does not."""
    with another_world():
        install_echo(*BEFORE)
        moved, moments = _made()
        _passed(moved)
        for part in sharded_parts(moved):
            part.reshard()
        kept = [id(one) for one in (*moved.parameters(), *moments, *meshes([moved]))]
        rank, world = AFTER
        prepared = Resharded([moved], rank=rank, world=world)
        memories = [(one, _filled(prepared, one, number)) for number, one in _numbered(moved, moments)]
    with another_world():
        install_echo(*AFTER)
        take_groups([moved])
        prepared.install(memories)
        fresh, fresh_moments = _made()
        if [id(one) for one in (*moved.parameters(), *moments, *meshes([moved]))] != kept:
            return "parameters, optimizer state or meshes are other objects afterwards"
        for pair in zip((*moved.parameters(), *moments), (*fresh.parameters(), *fresh_moments), strict=True):
            if why := _unlike(*pair):
                return why
        if facts([moved]) != facts([fresh]):
            return "FSDP2's own notes are others than those of a model that is sharded over these ranks at once"
        for _ in range(2):
            if not _alike(_passed(moved), _passed(fresh)):
                return "a step computes something else than in a model that is sharded over these ranks at once"
        let_go([moved, fresh])
    return ""


class _Layer(nn.Module):
    """`scale` has one element, so that some ranks hold nothing of it."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_values(1, (rows, 2)))
        self.scale = nn.Parameter(_values(2, (1,)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight @ self.weight.T * self.scale


def _values(number: int, shape: tuple[int, ...]) -> Tensor:
    """Drawn from no generator."""
    return (torch.arange(math.prod(shape), dtype=torch.float32) + number).reciprocal().reshape(shape)


def _made() -> tuple[Any, list[Tensor]]:
    """A model that torch shards over the present ranks, and what an optimizer would keep for its parameters."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - not before a model is sharded

    net: Any = nn.Sequential(_Layer(ROWS), _Layer(ROWS))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=(_DIMENSION,))
    for part in (net[0], net):
        fully_shard(part, mesh=mesh)
    return net, [one.detach().clone() for one in net.parameters()]


def _numbered(net: nn.Module, moments: list[Tensor]) -> list[tuple[int, Tensor]]:
    """All sharded tensors, each with the number of its values."""
    return [(1 + place % 2, one) for place, one in enumerate((*net.parameters(), *moments))]


def _filled(prepared: Resharded, tensor: Tensor, number: int) -> Tensor:
    memory, box = prepared.placed(tensor, prepared.room_for(tensor).memory().zero_())
    part = tuple(slice(begin, begin + size) for begin, size in zip(box.offset, box.sizes, strict=True))
    memory.copy_(_values(number, tuple(tensor.shape))[part])
    return memory


def _unlike(moved: Any, fresh: Any) -> str:
    if (moved.shape, moved.placements, moved.requires_grad) != (fresh.shape, fresh.placements, fresh.requires_grad):
        return f"a tensor of shape {list(fresh.shape)} is placed as {moved.placements}, and not {fresh.placements}"
    mine, whole = moved.to_local(), fresh.to_local()
    if mine.stride() != whole.stride() or not torch.equal(mine, whole):
        return f"a rank's part of a tensor of shape {list(fresh.shape)} is {list(mine.shape)}, or has other values"
    return ""


def _passed(net: nn.Module) -> list[Tensor]:
    """The output and the gradients of a step, if all ranks had what this one has."""
    output: Tensor = net(_values(1, (1, ROWS)))
    output.sum().backward()
    found = [output.detach(), *(one.grad.to_local().clone() for one in net.parameters() if one.grad is not None)]  # type: ignore[attr-defined]
    for one in net.parameters():
        one.grad = None
    return found


def _alike(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
