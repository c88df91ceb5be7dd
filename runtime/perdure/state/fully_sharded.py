"""Takes models that torch's `fully_shard` shards to other ranks in the living process: the script keeps its objects.

Mesh, parameters and optimizer state stay the same Python objects; what torch remembers of the old ranks in them is
replaced. torch has no public way for that, so only this module uses the private names of FSDP2 and DTensor, and
`unknown` says whether the installed torch has them as they are used here. Nothing here communicates.

Called by perdure.live through the registry.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from perdure.checkpoint import boxes
from perdure.errors import UserError
from perdure.layout.box import Box
from perdure.layout.elastic import ElasticMesh
from perdure.state import keepers
from perdure.state.shards import sharded_parts

_FSDP: Final = "FSDPMeshInfo"
_HSDP: Final = "HSDPMeshInfo"
_DDP: Final = "DDPMeshInfo"
"""torch's classes for what FSDP notes of a mesh."""
_REDUCES: Final = "_reduce_scatter_comm"
_COMMS: Final = {"_all_gather_comm": "DefaultAllGather", _REDUCES: "DefaultReduceScatter"}
"""What does the collectives, and torch's own class for it."""
_SPEC: Final = "DTensorSpec"
COMPILED: Final = (
    "compiled code with a DTensor in it, which keeps the ranks that it was compiled for: leave tensor parallelism and "
    "the optimizer's step uncompiled"
)
_COMPILES: Final = "try_get"
"""What says whether this thread compiles."""
_GET_RANK: Final = "get_rank"
"""What torch's meshes ask for this process's rank."""
_OPTIONS: Final = (
    "reduce_grads",
    "all_reduce_grads",
    "reshard_after_backward",
    "unshard_in_backward",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
    "reduce_scatter_unused_params",
    "reduce_scatter_max_input_buffers",
    "unshard_async_op",
    "offload_policy",
)
"""What the script can set in a group of parameters and changes what it gathers and reduces, and when."""
_KEEP_STORAGE: Final = "keep_unsharded_storage"
"""What the script can set in parameters. FSDP2 has it since torch 2.15."""
_BACKWARD: Final = ("is_last_backward", "manual_backward_finalization")
"""What the script can set of a whole model's backward passes. FSDP2 has the second since torch 2.15."""
_UNFINISHED: Final = ("manual_backward_finalization_active", "gradient_reduction_pending")
"""Whether the script has still to finish a backward pass, or to wait for its end."""
_PREFETCHES: Final = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")
_GRAD_DTYPE_SET: Final = "_has_grad_dtype_override"
"""Whether the script has set the type of a parameter's gradients. FSDP2 keeps it since torch 2.15."""
_SPECS: Final = "_sharding_spec_by_dtype"
"""Layouts that torch 2.15 remembers for a parameter."""
_ORDER: Final = "post_forward_order"
"""Where FSDP notes forward passes."""


_KEPT: Final = {
    "mesh_info",
    "post_forward_mesh_info",
    "sharded_param",
    "_sharded_param_data",
    "_orig_param_uid",
    _SPECS,
    "_setattr_on_modules",
    "_init_shard_mesh",
    "_shard_mesh",
    "_spmd_mesh",
}
"""What a sharded parameter keeps at another size, or gets with its memory."""


@cache
def unknown() -> str:
    """The name that this torch lacks and that a live hand-over of a sharded model needs; "" if there is none."""
    try:
        from torch._C._distributed_c10d import FakeProcessGroup  # noqa: PLC0415 - not before a model is sharded
        from torch.distributed.fsdp._fully_shard import _fsdp_common as common  # noqa: PLC0415
        from torch.distributed.fsdp._fully_shard import _fsdp_param as param  # noqa: PLC0415
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group  # noqa: PLC0415
        from torch.distributed.tensor import DTensor, _redistribute  # noqa: PLC0415

        context = group.FSDPCommContext()
        context.lazy_init(torch.device("cpu"))
        needed: list[tuple[Any, str]] = [
            (FakeProcessGroup.Options, "error_on_collective"),
            (param.FSDPParam, "_init_sharded_param"),
            (param.FSDPParam, "_init_sharded_post_forward_param_metadata"),
            (common.FSDPMeshInfo, "__post_init__"),
            (common.HSDPMeshInfo, "__post_init__"),
            (context, _ORDER),
            (_redistribute._gen_transform_infos, "cache_clear"),  # noqa: SLF001
            (DeviceMesh, "_get_root_mesh"),
            (DeviceMesh, "_create_sub_mesh"),
            (DeviceMesh, "_get_slice_mesh_layout"),
            (device_mesh, _GET_RANK),
            (DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding, "cache_clear"),  # noqa: SLF001
            (torch._C, "_clear_DTensor_sharding_propagator_cache"),  # noqa: SLF001
        ]
    except (ImportError, AttributeError) as error:
        return str(error)
    return next(
        (f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in needed if not hasattr(owner, name)), ""
    )


def obstacle(name: str, module: nn.Module, world: int) -> str:
    """Why this module's shards cannot go to other ranks while it trains; "" if they can, or if it has none.

    From any thread: between forward and backward the module may have whole parameters in place of its shards.
    """
    present = [*module.parameters(), *module.buffers()]
    if not sharded_parts(module) and not any(map(boxes.is_sharded, present)):
        return ""
    if missing := unknown():
        return f"{name} is sharded, and torch {torch.__version__} has no {missing}"
    try:
        why = _obstacle(module, present, world)
    except (AttributeError, TypeError) as error:
        why = f"is sharded by torch {torch.__version__} in an unknown way ({error})"
    return why and f"{name} {why}"


def _obstacle(module: nn.Module, present: Iterable[Tensor], world: int) -> str:
    held = list(_params([module]))
    own = {id(one) for param in held for one in (param.sharded_param, _gathered(param))}
    if odd := [one for one in present if boxes.is_sharded(one) and id(one) not in own]:
        return f"has a sharded tensor of shape {list(odd[0].shape)} that fully_shard has not made{_untied(module)}"
    if why := next(filter(None, map(_custom, _groups([module]))), ""):
        return why
    notes = infos([module])
    of_meshes = {(type(info), id(info.mesh)): info for info in notes}  # a large model has hundreds of one mesh
    for info in of_meshes.values():
        if why := _unknown_mesh(info, held):
            return f"is sharded over {why}"
    if any(info.reduce_scatter_process_group is not None for info in notes):
        return "has a separate process group for gradients"
    roots = _roots([module])
    if any(root.mesh.flatten().tolist() != list(range(world)) for root in roots):
        return "is sharded over some of the ranks, or in another order"
    if any(mesh._dim_group_names is None or mesh._pg_registry is None for mesh in meshes([module])):  # noqa: SLF001
        return "has a mesh without process groups"
    if len({tuple(root.shape) for root in roots}) > 1 or _several(roots):
        return "is sharded over several meshes"
    gathers([module])
    holds_sums([module])
    _noted_passes([module])
    options({"": module})
    return ""


def _untied(module: nn.Module) -> str:
    """The cause, if `load_state_dict(assign=True)` has made one parameter into several."""
    for param in _params([module]):
        at = param._module_info  # noqa: SLF001
        tied = zip(at.shared_modules, at.shared_param_names, strict=True)
        if any(getattr(part, name) is not getattr(at.module, at.param_name) for part, name in tied):
            return ": load_state_dict(assign=True) has untied a parameter, so load without assign"
    return ""


def _unknown_mesh(info: Any, held: Iterable[Any]) -> str:
    """The mesh, if it is none over which `fully_shard` shards alone, beside replicas, or over tensor parallelism; "" if
    it is."""
    mesh, root, kind = info.mesh, _root(info.mesh), type(info).__name__
    if root._flatten_mapping:  # noqa: SLF001
        return "a mesh of which dimensions were made one"
    if root.ndim > 2:
        return f"a mesh of {root.ndim} dimensions"
    if mesh is root and (kind, mesh.ndim) in {(_FSDP, 1), (_HSDP, 2)} and not any(param.is_dtensor for param in held):
        return ""
    if kind == _FSDP and root.ndim == 2 and mesh.mesh_dim_names == root.mesh_dim_names[:1]:
        return _not_parallel(root, held)
    return "a part of a mesh that is not its first dimension, or beside tensor parallelism over another mesh"


def _not_parallel(root: Any, held: Iterable[Any]) -> str:
    """The mesh, unless tensor parallelism splits parameters along its second dimension; "" if it does."""
    layouts = [param._unsharded_dtensor_spec for param in held if param.is_dtensor]  # noqa: SLF001
    if not layouts:
        return f"a part of a mesh, and nothing is split along the other dimension {root.mesh_dim_names[1]!r}"
    if any(_root(one.mesh) is not root or one.mesh.mesh_dim_names != root.mesh_dim_names[1:] for one in layouts):
        return "several meshes"
    return ""


def _root(mesh: Any) -> Any:
    return mesh._get_root_mesh()  # noqa: SLF001


def _roots(modules: Iterable[nn.Module]) -> list[Any]:
    """The meshes over which they are sharded, each whole and once."""
    return list({id(root): root for root in map(_root, (info.mesh for info in infos(modules)))}.values())


def _several(roots: Sequence[Any]) -> bool:
    """Whether there are several meshes with groups of their own."""
    return len(roots) > 1 and any(root.ndim > 1 for root in roots)


def elastic_mesh(modules: Sequence[nn.Module]) -> ElasticMesh:
    """The mesh over which they are sharded. UserError if there are several."""
    roots = _roots(modules)
    shapes = {tuple(root.shape) for root in roots}
    if len(shapes) != 1 or _several(roots):
        raise UserError("the sharded models have different meshes: shard them over one")
    return ElasticMesh(shapes.pop())


def _custom(group: Any) -> str:
    """What the script has set in a group of parameters and that keeps the ranks."""
    if type(group.mesh_info).__name__ == _DDP:
        return "is replicated by torch's replicate(): wrap it with session.wrap"
    if group.post_forward_mesh_info not in (None, group.mesh_info):
        return "is sharded again over some of the ranks after the forward pass (reshard_after_forward=...)"
    if group._all_reduce_hook is not None:  # noqa: SLF001
        return "has an all-reduce hook of the script's own"
    if any(type(_unwatched(getattr(group, name))).__name__ != own for name, own in _COMMS.items()):
        return "has collectives of the script's own"
    return ""


class ShardWatch(Protocol):
    """Looks at gradients where FSDP2 averages them."""

    def before_shards(self, parameters: Sequence[Tensor], gradients: Tensor) -> Callable[[Tensor], None]:
        """Sees this rank's gradients of these parameters, in one tensor. The returned function is called with this
        rank's shard of their mean."""
        ...


class WatchedReduceScatter:
    """torch's own, and what looks at its input and its output."""

    def __init__(self, group: Any, watch: ShardWatch) -> None:
        self.torchs = getattr(group, _REDUCES)
        self._params, self._watch = group.fsdp_params, watch

    def allocate(self, *size: Any, **options: Any) -> Tensor:
        """As torch's."""
        memory: Tensor = self.torchs.allocate(*size, **options)
        return memory

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """As torch's. A sum that is divided elsewhere has no look."""
        if op != dist.ReduceOp.AVG or async_op:
            return self.torchs(output_tensor, input_tensor, group, op, async_op)
        see_shard = self._watch.before_shards([one.sharded_param for one in self._params], input_tensor)
        self.torchs(output_tensor, input_tensor, group, op)
        see_shard(output_tensor)
        return None

    def __deepcopy__(self, memo: Any) -> Any:
        """A copied model is not looked at."""
        return copy.deepcopy(self.torchs, memo)


def _unwatched(comm: Any) -> Any:
    return comm.torchs if isinstance(comm, WatchedReduceScatter) else comm


def watch(modules: Sequence[nn.Module], watch: ShardWatch) -> None:
    """From now on `watch` sees the gradients of these models, where they are sharded over a mesh of one dimension by
    torch's own collectives."""
    for group in _groups(modules):
        plain = type(group.mesh_info).__name__ == _FSDP and _root(group.mesh_info.mesh).ndim == 1
        if plain and type(getattr(group, _REDUCES)).__name__ == _COMMS[_REDUCES]:
            setattr(group, _REDUCES, WatchedReduceScatter(group, watch))


def watch_no_more(modules: Sequence[nn.Module]) -> None:
    """Nothing sees their gradients any more."""
    for group in _groups(modules):
        setattr(group, _REDUCES, _unwatched(getattr(group, _REDUCES)))


def _groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """FSDP's groups of parameters, each once: `fully_shard([norm, head])` makes one of several modules."""
    parts = (part for module in modules for part in sharded_parts(module))
    found = (group for part in parts for group in part._get_fsdp_state()._fsdp_param_groups)  # noqa: SLF001
    yield from {id(group): group for group in found if group is not None}.values()


def _params(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """FSDP's objects for parameters."""
    return (param for group in _groups(modules) for param in group.fsdp_params)


def options(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, str]]:
    """What the script has set in FSDP's parts and changes their collectives, by the parts' full names. The modules are
    by name."""
    found = dict[str, dict[str, Any]]()
    for name, module in modules.items():
        parts, within = {id(part): path for path, part in module.named_modules()}, set[int]()
        for part in sharded_parts(module):
            state, path = part._get_fsdp_state(), ".".join(filter(None, (name, parts[id(part)])))  # noqa: SLF001
            if id(part) not in within:
                found[path] = dict(_options_of_backward(state))
                within |= {id(inner) for inner in part.modules()}
            for number, group in enumerate(state._fsdp_param_groups):  # noqa: SLF001
                at = f"{path}.{number}" if number else path
                found[at] = found.get(at, {}) | dict(_options(state, group, parts))
    return {path: {option: repr(value) for option, value in values.items()} for path, values in found.items()}


def _options_of_backward(state: Any) -> Iterator[tuple[str, Any]]:
    """The outermost part's, because the others take these with the first pass."""
    context = state._state_ctx  # noqa: SLF001
    yield from ((name, getattr(context, name)) for name in _BACKWARD if hasattr(context, name))


def _options(state: Any, group: Any, parts: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    yield "requires_grad", [param.sharded_param.requires_grad for param in group.fsdp_params]
    again = group.post_forward_mesh_info is not None
    yield "reshard_after_forward", None if state._auto_reshard_after_forward else again  # noqa: SLF001
    for name in _OPTIONS:
        yield name, getattr(group, name)
    yield "mp_policy", list(dict.fromkeys(param.mp_policy for param in group.fsdp_params))
    yield _KEEP_STORAGE, [getattr(param, _KEEP_STORAGE, False) for param in group.fsdp_params]
    for name in _PREFETCHES:
        yield name, [[parts.get(id(part)) for part in one._modules] for one in getattr(state, name)]  # noqa: SLF001


def own_divisor(modules: Iterable[nn.Module]) -> float | None:
    """What the script divides gradients by, in place of the number of ranks; None if it has set nothing, or 1."""
    found = (group.gradient_divide_factor for group in _groups(modules))
    return next((factor for factor in found if factor not in (None, 1)), None)


def _gathered(param: Any) -> Any:
    """What the module has in place of the shards for a forward pass, if FSDP has gathered it already. Under tensor
    parallelism it is a sharded tensor, too."""
    return getattr(param, "_unsharded_param", None)


def gathers(modules: Iterable[nn.Module]) -> bool:
    """Whether the script has begun to gather parameters, and has not waited for them. Other ranks of a newer run
    would not take part."""
    return any(group._all_gather_result is not None for group in _groups(modules))  # noqa: SLF001


def infos(modules: Iterable[nn.Module]) -> list[Any]:
    """FSDP's notes of meshes, each once."""
    return list({id(one): one for module in modules for one in _infos(module)}.values())


def _infos(module: nn.Module) -> list[Any]:
    def read() -> list[Any]:
        found: dict[int, Any] = {}
        for group in _groups([module]):
            of_params = (one for param in group.fsdp_params for one in (param.mesh_info, param.post_forward_mesh_info))
            ones = (group.mesh_info, group.post_forward_mesh_info, *of_params)
            found |= {id(one): one for one in ones if one is not None}
        return list(found.values())

    return boxes.once(("infos", id(module)), read)


def batch_mesh(modules: Iterable[nn.Module]) -> Any:
    """The mesh over whose ranks `fully_shard` shards them, each with its own share of a batch; None if this torch does
    not say."""
    with suppress(AttributeError, TypeError):
        return next((info.mesh for info in infos(modules)), None)
    return None


def keeps_others(modules: Iterable[nn.Module]) -> bool:
    """Whether other models than these are sharded as well: their groups would stay those of the older run. Only for the
    main thread."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import DataParallelMeshInfo  # noqa: PLC0415 - as above

    own = set(map(id, infos(modules)))

    def found() -> bool:
        return any(id(one) not in own and _has_group(one) for one in keepers.alive(DataParallelMeshInfo))

    if found():
        gc.collect()  # a model that the script has dropped may wait for that
        return found()
    return False


def _has_group(info: Any) -> bool:
    """Whether it has process groups: copies for another size have none."""
    return any(isinstance(kept, dist.ProcessGroup) for kept in vars(info).values())


def holds_sums(modules: Iterable[nn.Module]) -> bool:
    """Whether each replica keeps sums of gradients that it has not added to the others' yet
    (`set_requires_all_reduce(False)`), or a backward pass waits for the script to finish it
    (`set_manual_backward_finalization(True)`, since torch 2.15)."""
    some = list(modules)
    contexts = [part._get_fsdp_state()._state_ctx for module in some for part in sharded_parts(module)]  # noqa: SLF001
    waits = any(getattr(context, name, None) for context in contexts for name in _UNFINISHED)
    return waits or any(group._partial_reduce_output is not None for group in _groups(some))  # noqa: SLF001


def _noted_passes(modules: Iterable[nn.Module]) -> list[list[Any]]:
    """FSDP's notes of forward passes, those of an evaluation, too. The next backward pass gathers by them, and a
    newcomer without such notes would not take part."""
    held = list(_groups(modules))
    begun = [group.comm_ctx for group in held if hasattr(group.comm_ctx, _ORDER)]  # torch makes it with the first pass
    indices = [group._post_forward_indices for group in held]  # noqa: SLF001
    return [*indices, *(getattr(context, _ORDER) for context in begun)]


def meshes(modules: Iterable[nn.Module]) -> list[Any]:
    """The meshes over which they are sharded, each before its parts: `mesh["shard"]` is one, too."""
    roots = _roots(modules)
    return [*roots, *_parts_of(roots)]


def _parts_of(roots: Iterable[Any]) -> list[Any]:
    """All meshes that are dimensions of these."""
    ids = set(map(id, roots))
    found = [mesh for mesh, _ in keepers.made() if isinstance(mesh, DeviceMesh) and id(mesh) not in ids]
    return [mesh for mesh in found if id(_root(mesh)) in ids]


def _compiles() -> bool:
    """Whether this thread compiles code of the script now. The mesh of a DTensor in it is then copied, and later calls
    are compared with the copy; the script does not run meanwhile."""
    from torch._guards import CompileContext  # noqa: PLC0415 - as above

    return getattr(CompileContext, _COMPILES)() is not None


keepers.watch_copies(DeviceMesh, _compiles, COMPILED)


def has_no_groups(thing: Any) -> bool:
    """Whether it is a mesh over which no rank can reach another: one that is being made, one that was prepared for
    another size, or the one of one rank over which DTensor tries a function once and which it then keeps for good."""
    return isinstance(thing, DeviceMesh) and getattr(thing, "_dim_group_names", None) is None


def references(modules: Sequence[nn.Module]) -> int:
    """How many references to torch's WORLD these have, which `take_groups` replaces."""
    kept = [*(vars(info) for info in infos(modules)), *(mesh._pg_registry for mesh in meshes(modules))]  # noqa: SLF001
    return sum(value is dist.group.WORLD for values in kept for value in values.values())


def groups(modules: Iterable[nn.Module]) -> list[Any]:
    """The process groups of their meshes."""
    return [group for mesh in meshes(modules) for group in mesh._pg_registry.values()]  # noqa: SLF001


def take_groups(modules: Sequence[nn.Module]) -> None:
    """Lets their meshes be those of torch's present WORLD, with new groups.

    Gradients are dropped, as by a restart: a newcomer has none, and a part of a gradient is none.
    """
    if not modules:
        return
    shape = elastic_mesh(modules).of(dist.get_world_size()).shape
    parts: dict[tuple[int, Any], Any] = {}
    made: Any
    for mesh in meshes(modules):
        root, names = _root(mesh), mesh.mesh_dim_names
        if mesh is root:
            made = init_device_mesh(mesh.device_type, shape, mesh_dim_names=names)
        elif (made := parts.get((id(root), names))) is None:  # FSDP has the same part once for each parameter
            made = root._create_sub_mesh(root._get_slice_mesh_layout(names), names)  # noqa: SLF001
            parts[id(root), names] = made
        keepers.disregard(made)
        now = {**vars(made), "_pg_registry": dict(made._pg_registry)}  # noqa: SLF001
        vars(mesh).update(now)  # first, because other threads may read it
        for name in vars(mesh).keys() - now.keys():
            delattr(mesh, name)
    for info in infos(modules):
        info.__post_init__()
    for one in (*(param.sharded_param for param in _params(modules)), *(p for m in modules for p in m.parameters())):
        one.grad = None
    for passes in _noted_passes(modules):
        passes.clear()
    forget_layouts()


def let_go(modules: Sequence[nn.Module]) -> None:
    """Drops their groups, which then end although the script keeps its model and its mesh: collectives of the model
    fail from now on. In a torch that keeps groups elsewhere these stay until the process ends."""
    with suppress(AttributeError, TypeError):
        for mesh in meshes(modules):
            mesh._pg_registry = {}  # noqa: SLF001
        for info in infos(modules):
            vars(info).update({name: None for name, kept in vars(info).items() if isinstance(kept, dist.ProcessGroup)})


def facts(modules: Iterable[nn.Module]) -> list[Any]:
    """What FSDP has computed from rank and size, for each parameter and each note of a mesh."""
    of_params = [
        (one.sharded_size, one.padded_sharded_param_size, one._sharded_param_data.shape, one._sharding_spec)  # noqa: SLF001
        for one in _params(modules)
    ]
    return [*of_params, *map(_of_info, infos(modules))]


def _of_info(info: Any) -> dict[str, Any]:
    """Its numbers; of a group rank and size."""
    found = {name: value for name, value in vars(info).items() if isinstance(value, int | None)}
    groups = {name: value for name, value in vars(info).items() if isinstance(value, dist.ProcessGroup)}
    sizes = {name: (group.rank(), group.size()) for name, group in groups.items()}
    return found | sizes | {"mesh": (tuple(info.mesh.shape), info.mesh.get_coordinate())}


def forget_layouts() -> None:
    """DTensor remembers how it has laid out results, by meshes that were equal, whatever their ranks are now."""
    from torch.distributed.tensor import DTensor, _redistribute  # noqa: PLC0415 - as above

    _redistribute._gen_transform_infos.cache_clear()  # noqa: SLF001
    torch._C._clear_DTensor_sharding_propagator_cache()  # noqa: SLF001
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # noqa: SLF001


@dataclass(frozen=True)
class _Made:
    """What torch computes for one parameter from a rank and a size."""

    param: Any
    tensor: Any
    """The sharded parameter, which stays the same object."""
    dtype: torch.dtype
    values: Mapping[str, Any]
    padded: torch.Size
    """The size of the memory in which this rank's part begins."""
    dim: int
    """The dimension along which it is sharded, and padded."""


@dataclass(frozen=True)
class ShardMemory:
    """What memory a part of a sharded tensor needs, with padding."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    """Where the present part is."""

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def memory(self) -> Tensor:
        """New memory, with any content."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def fits(self, memory: Tensor) -> bool:
        """Whether this memory is as needed."""
        return (tuple(memory.shape), memory.dtype, memory.device) == (self.shape, self.dtype, self.device)


class Resharded:
    """The shards of these modules for another rank and size, beside the present ones, which stay as they are.

    It is made before the stop, and by torch's own code; what it must not change of FSDP's objects is done on copies.
    """

    def __init__(self, modules: Sequence[nn.Module], *, rank: int, world: int) -> None:
        """Raises UserError if a parameter cannot be sharded over so many ranks."""
        self._rank, self._mesh = rank, elastic_mesh(modules).of(world)
        with _ranked(rank):
            self._meshes = _meshes_like(modules, self._mesh.shape, rank)
            self._infos = {id(info): self._info(info) for info in infos(modules)}
            self._made = {id(param.sharded_param): self._make(param) for param in _params(modules)}
        for mesh in _parts_of(self._meshes.values()):
            keepers.disregard(mesh)  # torch has made it beside ours, and DTensor's caches keep it
        self._padded: dict[int, Tensor] = {}
        """The memory with padding of each parameter's part, by the parameter's id."""

    def fits(self, modules: Iterable[nn.Module]) -> bool:
        """Whether these still have the parameters for which it was made: a script may add and replace some."""
        held = list(_params(modules))
        return len(held) == len(self._made) and all(map(self._has, held))

    def _has(self, param: Any) -> bool:
        made = self._made.get(id(param.sharded_param))
        return made is not None and made.param is param and made.dtype == param.sharded_param.dtype

    def room_for(self, tensor: Tensor) -> ShardMemory:
        """What memory this rank's part of a parameter or an optimizer's state needs."""
        made = self._made.get(id(tensor))
        shape = self._box(tensor).sizes if made is None else tuple(made.padded)
        return ShardMemory(shape, tensor.dtype, boxes.local(tensor).device)

    def placed(self, tensor: Tensor, memory: Tensor) -> tuple[Tensor, Box]:
        """Where in this memory, which fits, that part goes, and the box that belongs there. What it does not fill is
        zero, and stays."""
        box = self._box(tensor)
        made = self._made.get(id(tensor))
        if made is None:
            return memory, box
        self._padded[id(tensor)] = memory
        return memory.narrow(made.dim, 0, box.sizes[made.dim]), box

    def install(self, found: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Makes the modules, whose meshes are the newer run's already, those of the new rank and size. `found`: each
        sharded tensor with its filled memory."""
        memories = {id(tensor): memory for tensor, memory in found}
        for made in self._made.values():
            param, tensor = made.param, made.tensor
            vars(param).update(made.values)
            param._sharded_param_data = self._padded[id(tensor)].view(-1)  # noqa: SLF001
            vars(param).get(_SPECS, {}).clear()
            param.all_gather_outputs = []
            vars(param).pop("_unsharded_param", None)
            _become(tensor, memories.pop(id(tensor)), param._sharding_spec)  # noqa: SLF001
        for tensor, memory in found:
            if id(tensor) in memories:
                _become(tensor, memory, _spec_over(tensor._spec, tensor._spec.mesh))  # type: ignore[attr-defined]  # noqa: SLF001
        forget_layouts()

    def _box(self, tensor: Tensor) -> Box:
        layout = boxes.layout_over(tensor, self._mesh)
        held = layout.at(self._mesh.coordinate(self._rank))
        if len(held) > 1:
            raise UserError(f"a tensor of shape {list(tensor.shape)} lies in several pieces on one rank")
        shape = layout.local_shape(self._mesh.coordinate(self._rank))
        return held[0].box if held else Box((0,) * len(shape), shape)

    def _info(self, info: Any) -> Any:
        like, at = copy.copy(info), self._mesh.coordinate(self._rank)
        like.mesh = self._meshes[id(info.mesh)]
        dim = 0 if like.mesh.ndim == 1 else info.shard_mesh_dim
        like.shard_mesh_size, like.shard_mesh_rank = self._mesh.shape[dim], at[dim]
        like.shard_process_group = None  # so that it keeps no group
        if type(info).__name__ == _HSDP:
            like.replicate_mesh_size, like.replicate_mesh_rank = self._mesh.shape[0], at[0]
            like.replicate_process_group = None
        return like

    def _make(self, param: Any) -> _Made:
        made, tensor = copy.copy(param), param.sharded_param
        made._setattr_on_modules = lambda _: None  # noqa: SLF001
        made._init_shard_mesh = lambda: None  # noqa: SLF001
        if param.post_forward_mesh_info is not None:
            made.post_forward_mesh_info = self._infos[id(param.post_forward_mesh_info)]
        whole = nn.Parameter(self._whole(param), requires_grad=tensor.requires_grad)
        if getattr(tensor, _GRAD_DTYPE_SET, False):
            whole.grad_dtype = tensor.grad_dtype
        placed = param.fsdp_placement
        try:
            made._init_sharded_param(whole, param.device, lambda _: placed, self._infos[id(param.mesh_info)])  # noqa: SLF001
            if made.post_forward_mesh_info is not None:
                made._init_sharded_post_forward_param_metadata(whole)  # noqa: SLF001
        except (NotImplementedError, AssertionError) as error:
            raise UserError(f"torch cannot shard a parameter over {self._mesh.world} ranks: {error}") from error
        if tuple(made.sharded_size) != self._box(tensor).sizes:
            raise UserError(f"torch lays out a parameter of shape {list(tensor.shape)} in another way than expected")
        before = vars(param)
        changed = {
            name: _over_live_mesh(value, before.get(name))
            for name, value in vars(made).items()
            if name not in _KEPT and value is not before.get(name)
        }
        return _Made(param, tensor, tensor.dtype, changed, made.padded_sharded_param_size, placed.dim)

    def _whole(self, param: Any) -> Tensor:
        """What FSDP shards of a parameter, without memory: all of it, or this rank's part in tensor parallelism."""
        dtype = param.sharded_param.dtype
        if not param.is_dtensor:
            return torch.empty(param._orig_size, dtype=dtype, device="meta")  # noqa: SLF001
        spec = param._unsharded_dtensor_spec  # noqa: SLF001
        from torch.distributed.tensor import DTensor  # noqa: PLC0415 - as above

        sizes = boxes.local_shape(spec, self._mesh.coordinate(self._rank)[1:])
        local = torch.empty(sizes, dtype=dtype, device="meta")
        return DTensor.from_local(
            local, self._meshes[id(spec.mesh)], spec.placements, run_check=False, shape=spec.shape, stride=spec.stride
        )


def _over_live_mesh(value: Any, before: Any) -> Any:
    """The value. A layout becomes one over the script's mesh, which will be the newer run's."""
    return _spec_over(value, before.mesh) if type(value).__name__ == _SPEC else value


def _spec_over(spec: Any, mesh: Any) -> Any:
    """A copy of a layout, over this mesh."""
    found = copy.copy(spec)
    found.mesh = mesh  # this also clears its cached hash
    return found


def _meshes_like(modules: Iterable[nn.Module], shape: Sequence[int], rank: int) -> dict[int, Any]:
    """Meshes without groups for each of the modules' meshes, by its id, in which this process has another rank."""
    found: dict[int, Any] = {}
    parts: dict[tuple[int, Any], Any] = {}
    made: Any
    for mesh in meshes(modules):
        root, names = _root(mesh), mesh.mesh_dim_names
        if mesh is root:
            ranks = torch.arange(math.prod(shape)).view(*shape)
            made = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=names, _init_backend=False, _rank=rank)
            made._dim_group_names = []  # noqa: SLF001
        elif (made := parts.get((id(root), names))) is None:
            like = found[id(root)]
            made = like._create_sub_mesh(like._get_slice_mesh_layout(names), names)  # noqa: SLF001
            parts[id(root), names] = made
        keepers.disregard(made)
        found[id(mesh)] = made
    return found


@contextmanager
def _ranked(rank: int) -> Iterator[None]:
    """Meanwhile torch's meshes take this process for this rank. Only for the main thread."""
    found = getattr(device_mesh, _GET_RANK)
    setattr(device_mesh, _GET_RANK, lambda *_: rank)
    try:
        yield
    finally:
        setattr(device_mesh, _GET_RANK, found)


def _become(tensor: Any, memory: Tensor, spec: Any) -> None:
    """Gives a sharded tensor other memory and another layout. Its shape is the whole one's, and stays."""
    tensor._local_tensor, tensor._spec = memory, spec  # noqa: SLF001


def strays(known: Collection[Tensor], modules: Iterable[nn.Module]) -> list[Tensor]:
    """Sharded tensors that the script keeps and that are none of the known ones: averages of weights, norms. What FSDP
    gathers of the modules' parameters for tensor parallelism is known, too, and what its compiler traces with has no
    values."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - as above

    own = {*map(id, known), *map(id, map(_gathered, _params(modules)))}

    def found() -> list[Tensor]:
        every = (one for one in gc.get_referrers(DTensor) if isinstance(one, DTensor) and id(one) not in own)
        return [one for one in every if type(one._local_tensor).__name__ != "FakeTensor"]  # noqa: SLF001 - see above

    if left := found():
        left.clear()
        gc.collect()  # some may only wait for that
        return found()
    return []
