"""Takes models that torch's `fully_shard` shards to other ranks in the living process: the script keeps its objects.

Mesh, parameters and optimizer state stay the same Python objects; what torch remembers of the old ranks in them is
replaced. torch has no public way for that, so only this module uses the private names of FSDP2 and DTensor, and
`unknown` says whether the installed torch has them as they are used here. Nothing here communicates.

Called by perdure.live through the registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from perdure.checkpoint import boxes
from perdure.state.shards import sharded_parts

_INFO: Final = "FSDPMeshInfo"
_COMMS: Final = {"_all_gather_comm": "DefaultAllGather", "_reduce_scatter_comm": "DefaultReduceScatter"}
"""What does the collectives, and torch's own class for it."""


@cache
def unknown() -> str:
    """The name that this torch lacks and that a live hand-over of a sharded model needs; "" if there is none."""
    try:
        from torch._C._distributed_c10d import FakeProcessGroup  # noqa: PLC0415 - not before a model is sharded
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415
        from torch.distributed.fsdp._fully_shard import _fsdp_common as common  # noqa: PLC0415
        from torch.distributed.fsdp._fully_shard import _fsdp_param as param  # noqa: PLC0415
        from torch.distributed.tensor import DTensor  # noqa: PLC0415
    except ImportError as error:
        return str(error)
    needed: list[tuple[Any, str]] = [
        (FakeProcessGroup.Options, "error_on_collective"),
        (common, "FSDPMeshInfo"),
        (param, "FSDPParam"),
        (param.FSDPParam, "_init_sharded_param"),
        (param.FSDPParam, "reset_sharded_param"),
        (param.FSDPParam, "_setattr_on_modules"),
        (common.FSDPMeshInfo, "__post_init__"),
        (DeviceMesh, "_compute_coordinate_on_dim"),
        (DTensor, "_op_dispatcher"),
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),  # noqa: SLF001
    ]
    return next(
        (f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in needed if not hasattr(owner, name)), ""
    )


def obstacle(name: str, module: nn.Module, world: int) -> str:
    """Why this module's shards cannot go to other ranks while it trains; "" if they can, or if it has none."""
    if not any(map(boxes.is_sharded, (*module.parameters(), *module.buffers()))):
        return ""
    if missing := unknown():
        return f"{name} is sharded, and torch {torch.__version__} has no {missing}"
    held = list(_params([module]))
    own = {id(param.sharded_param) for param in held}
    if any(boxes.is_sharded(one) and id(one) not in own for one in (*module.parameters(), *module.buffers())):
        return f"{name} has sharded tensors that fully_shard has not made"
    if any(param.is_dtensor for param in held):
        return f"{name} is sharded over more than one dimension of a mesh"
    if why := next(filter(None, map(_custom, _groups([module]))), ""):
        return f"{name} {why}"
    for info in infos([module]):
        if type(info).__name__ != _INFO or info.mesh.ndim != 1 or info.mesh._get_root_mesh() is not info.mesh:  # noqa: SLF001
            return f"{name} is sharded over more than one dimension of a mesh, or replicated, too"
        if info.mesh.mesh.flatten().tolist() != list(range(world)):
            return f"{name} is sharded over some of the ranks, or in another order"
        if info.reduce_scatter_process_group is not None:
            return f"{name} has a process group of its own for gradients"
    return ""


def _custom(group: Any) -> str:
    """What the script has set in a group of parameters and that keeps the ranks."""
    if group.post_forward_mesh_info not in (None, group.mesh_info):
        return "is sharded again over some of the ranks after the forward pass (reshard_after_forward=...)"
    if group._all_reduce_hook is not None:  # noqa: SLF001
        return "has an all-reduce hook of the script's own"
    if any(type(getattr(group, name)).__name__ != own for name, own in _COMMS.items()):
        return "has collectives of the script's own"
    return ""


def _groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """FSDP's groups of parameters."""
    for part in (part for module in modules for part in sharded_parts(module)):
        yield from (group for group in part._get_fsdp_state()._fsdp_param_groups if group is not None)  # noqa: SLF001


def _params(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """FSDP's objects for parameters."""
    return (param for group in _groups(modules) for param in group.fsdp_params)


def infos(modules: Iterable[nn.Module]) -> list[Any]:
    """FSDP's notes of meshes, each once."""
    found: dict[int, Any] = {}
    for group in _groups(modules):
        ones = (group.mesh_info, group.post_forward_mesh_info, *(param.mesh_info for param in group.fsdp_params))
        found |= {id(one): one for one in ones if one is not None}
    return list(found.values())


def meshes(modules: Iterable[nn.Module]) -> list[Any]:
    """The meshes over which they are sharded, each once."""
    return list({id(info.mesh): info.mesh for info in infos(modules)}.values())


def references(modules: Sequence[nn.Module]) -> int:
    """How many references to torch's WORLD these have, which `take_groups` replaces."""
    kept = [*(vars(info) for info in infos(modules)), *(mesh._pg_registry for mesh in meshes(modules))]  # noqa: SLF001
    return sum(value is dist.group.WORLD for values in kept for value in values.values())


def take_groups(modules: Sequence[nn.Module]) -> None:
    """Lets them use torch's present WORLD, of which they have the rank and the size already.

    Gradients are dropped, as by a restart: a newcomer has none, and a part of a gradient is none.
    """
    for mesh in meshes(modules):
        mesh._dim_group_names = [dist.group.WORLD.group_name]  # type: ignore[union-attr]  # noqa: SLF001
        mesh._pg_registry = dict.fromkeys(mesh._dim_group_names, dist.group.WORLD)  # noqa: SLF001
    for info in infos(modules):
        info.__post_init__()
    for param in _params(modules):
        param.sharded_param.grad = None
    _forget_layouts()


def _forget_layouts() -> None:
    """DTensor remembers how it has laid out results, by meshes that were equal, whatever their ranks are now."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - as above

    torch._C._clear_DTensor_sharding_propagator_cache()  # noqa: SLF001
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # noqa: SLF001
