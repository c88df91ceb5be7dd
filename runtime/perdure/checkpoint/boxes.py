"""The boxes of a DTensor, a tensor that is sharded over the ranks: which are here, and which ranks hold the same.

Everything follows from the tensor's own spec: shape, mesh and placements. So ranks do not communicate, and no rank ever
allocates the whole tensor. Called by tensors, stage, load and the state's room; no other module looks into a DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from perdure.errors import UserError
from perdure.layout.box import Box
from perdure.layout.elastic import ElasticMesh
from perdure.layout.sharding import Layout, Part, Placement, Replicate, Shard, StridedShard

_KIND: Final = "DTensor"
"""By its name, because its import takes longer than the rest of a registration of a whole model."""


class _Placed(NamedTuple):
    """How tensors lie over a mesh of all ranks."""

    mesh: Any
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    """Row by row."""
    placements: tuple[Any, ...]
    own_mesh: Any
    """The tensors' own, which may be a part of the mesh."""

    @property
    def is_everywhere(self) -> bool:
        """Whether all ranks are in the mesh."""
        return sorted(self.ranks) == list(range(_world()))

    @property
    def coordinate(self) -> tuple[int, ...]:
        """Where this rank is in the mesh."""
        return tuple(self.mesh.get_coordinate())


class _CachedLayout:
    """How tensors of one shape lie over a mesh."""

    def __init__(self, placed: _Placed, shape: tuple[int, ...]) -> None:
        self._placed = placed
        self.layout = Layout(shape, placed.shape, placed.ranks, placed.placements)

    @cached_property
    def own(self) -> tuple[Part, ...]:
        """What this rank holds."""
        return self.layout.at(self._placed.coordinate)

    @cached_property
    def can_be_saved(self) -> bool:
        """Whether each rank knows its part, and all ranks are in the mesh."""
        return None not in self.layout.placements and self._placed.is_everywhere

    @cached_property
    def text(self) -> str:
        """The layout as text."""
        return str(self.layout)


@dataclass(frozen=True)
class _Seen:
    """What was read while no mesh changes."""

    placed: dict[tuple[int, Any], _Placed] = field(default_factory=dict)
    """By a tensor's own mesh and placements."""
    alike: dict[tuple[int, tuple[int, ...]], _CachedLayout] = field(default_factory=dict)
    """By the id of what `placed` has, and a tensor's shape."""
    specs: dict[int, tuple[Any, _CachedLayout]] = field(default_factory=dict)
    """By the id of a tensor's spec, which is kept, so that no other one gets the id. The tensor is not: a
    hand-over looks for tensors that the script keeps, and torch swaps none that has a weak reference."""
    made: dict[tuple[str, int], Any] = field(default_factory=dict)
    """What `once` has made."""


_SEEN: Final[ContextVar[_Seen | None]] = ContextVar("perdure_meshes", default=None)

Made = TypeVar("Made")


def once(key: tuple[str, int], make: Callable[[], Made]) -> Made:
    """What `make` returns; within `meshes_stay` it is made once for each key. The key is a name and the id of something
    that lives at least as long."""
    seen = _SEEN.get()
    if seen is None:
        return make()
    if key not in seen.made:
        seen.made[key] = make()
    return cast(Made, seen.made[key])


@contextmanager
def meshes_stay() -> Iterator[None]:
    """No mesh changes within the block, and no tensor gets another one or other placements, so each is read once: torch
    needs a quarter of a millisecond for that, and a state has thousands of tensors."""
    seen = _SEEN.get()
    token = _SEEN.set(_Seen() if seen is None else seen)
    try:
        yield
    finally:
        _SEEN.reset(token)


@dataclass(frozen=True)
class HeldBox:
    """A box that this rank holds."""

    box: Box
    memory: Tensor
    """Its elements: a view of this rank's part."""


def is_sharded(value: Any) -> bool:
    """Whether it is a DTensor; one that is replicated only is one, too."""
    return isinstance(value, Tensor) and _is_kind(type(value))


@cache
def _is_kind(kind: type) -> bool:
    return _KIND in (one.__name__ for one in kind.__mro__)


def split_dimensions(value: Any) -> int:
    """Along how many dimensions of its mesh the tensor is sharded; 0 for a plain tensor."""
    if not is_sharded(value):
        return 0
    return sum(not isinstance(_read(placement), Replicate) for placement in value.placements)


def placements_over(tensor: Tensor, mesh: ElasticMesh) -> tuple[Placement, ...] | None:
    """How a tensor is placed over this mesh; None if it is placed over another one."""
    layout = layout_of(tensor)
    if (layout.mesh, layout.ranks) != (mesh.shape, tuple(range(mesh.world))) or None in layout.placements:
        return None
    return layout.placements


def layout_over(tensor: Tensor, mesh: ElasticMesh) -> Layout:
    """The tensor's layout if its mesh becomes this one."""
    return mesh.layout(tuple(tensor.shape), layout_of(tensor).placements)


def local_shape(spec: Any, coordinate: Sequence[int]) -> tuple[int, ...]:
    """The shape of the part at this coordinate of its mesh of a tensor that is laid out so."""
    placements: tuple[Any, ...] = tuple(map(_read, spec.placements))
    shape = tuple(spec.shape)
    return Layout(shape, tuple(spec.mesh.shape), tuple(range(spec.mesh.size())), placements).local_shape(coordinate)


def local(tensor: Tensor) -> Tensor:
    """This rank's part, which may be empty; of a plain tensor all of it."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor._local_tensor  # type: ignore[attr-defined]  # noqa: SLF001 - to_local() makes a parameter of it
    return part.detach()


def held(tensor: Tensor) -> list[HeldBox]:
    """The non-empty boxes of a sharded tensor that this rank holds.

    If a tensor has no elements, each rank holds all of it. UserError if the rank's part does not match its placements.
    """
    cached, memory = _cached(tensor), local(tensor)
    layout = cached.layout
    if not tensor.numel():
        return [HeldBox(Box.whole(layout.shape), memory.new_empty(layout.shape))]
    mine = cached.own
    ends = [tuple(map(sum, zip(part.local_offset, part.box.sizes, strict=True))) for part in mine]
    sizes = tuple(map(max, *ends)) if len(ends) > 1 else ends[0] if ends else None
    if memory.numel() if sizes is None else tuple(memory.shape) != sizes:
        raise UserError(
            f"a tensor of shape {list(layout.shape)}, placed as {described(tensor)}, has {list(memory.shape)} on this "
            f"rank, where its placements say {list(sizes or (0,))}: only what torch's own placements lay out is saved"
        )
    return [HeldBox(part.box, view(memory, Box(part.local_offset, part.box.sizes))) for part in mine]


def view(memory: Tensor, box: Box) -> Tensor:
    """The elements of this box of `memory`."""
    if memory.shape == box.sizes:
        return memory
    return memory[tuple(map(slice, box.offset, box.end))]


def holders(tensor: Tensor) -> Mapping[Box, tuple[int, ...]]:
    """Each box of a sharded tensor, and the ranks that hold it. Equal on all ranks."""
    return layout_of(tensor).holders()


def parts(tensors: Iterable[Tensor], world: int) -> tuple[int, ...]:
    """For each rank of the world the number of its part: ranks that hold the same boxes of all these tensors have the
    same one. All 0 if no tensor is sharded. Equal on all ranks."""
    held: list[list[tuple[int, Box]]] = [[] for _ in range(world)]
    for number, tensor in enumerate(filter(is_sharded, tensors)):
        for box, ranks in holders(tensor).items():
            for rank in ranks:
                held[rank].append((number, box))
    kinds = {boxes: number for number, boxes in enumerate(dict.fromkeys(map(frozenset, held)))}
    return tuple(kinds[frozenset(boxes)] for boxes in held)


def described(tensor: Tensor) -> str:
    """Mesh and placements as text; "" for a plain tensor. Equal on ranks that lay it out alike."""
    if not is_sharded(tensor):
        return ""
    return _cached(tensor).text


def are_alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether each rank holds the same elements of both."""
    return is_sharded(tensor) and is_sharded(other) and layout_of(tensor) == layout_of(other)


def like(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """A new tensor of another dtype, laid out as `owner`: same mesh, placements and strides."""
    return torch.empty_like(owner.detach(), dtype=dtype)


def fill(tensor: Tensor, found: Tensor) -> None:
    """Copy `found` into `tensor`; if only `tensor` is sharded, this rank's boxes of it. Both have the same shape."""
    if is_sharded(tensor) and not is_sharded(found):
        for one in held(tensor):
            one.memory.copy_(view(found, one.box))
    else:
        tensor.copy_(found)


def refuse(name: str, tensor: Tensor) -> None:
    """UserError if this DTensor could not be saved, or not be loaded again."""
    cached, placed = _cached(tensor), cast(Any, tensor)
    if cached.can_be_saved:
        return
    for placement in placed.placements:
        if _read(placement) is None:
            raise UserError(
                f"tensor {name} is placed as {placement!r}, of which no rank knows its part: redistribute it to Shard "
                f"or Replicate"
            )
    raise UserError(
        f"tensor {name} lies on the ranks {list(cached.layout.ranks)} of {_world()}: only tensors that lie on all "
        f"ranks can be saved: make one mesh of all ranks with names for its dimensions, and shard over these"
    )


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _cached(tensor: Tensor) -> _CachedLayout:
    seen = _SEEN.get() or _Seen()
    spec = tensor._spec  # type: ignore[attr-defined]  # noqa: SLF001 - device_mesh and placements are made from it
    if known := seen.specs.get(id(spec)):
        return known[1]
    placed, shape = _placed(tensor, seen), tuple(tensor.shape)
    cached = seen.alike.setdefault((id(placed), shape), _CachedLayout(placed, shape))
    seen.specs[id(spec)] = spec, cached
    return cached


def _placed(tensor: Any, seen: _Seen) -> _Placed:
    key = id(tensor.device_mesh), tuple((type(one), one) for one in tensor.placements)  # some are equal across types
    if key in seen.placed:
        return seen.placed[key]
    mesh, placements = _mesh(tensor)
    ranks = mesh.mesh
    found = _Placed(mesh, tuple(ranks.shape), tuple(ranks.flatten().tolist()), placements, tensor.device_mesh)
    seen.placed[key] = found
    return found


def _mesh(tensor: Any) -> tuple[Any, tuple[Any, ...]]:
    """The mesh that all ranks are in, and a placement for each of its dimensions.

    FSDP2 beside tensor parallelism shards the non-parallel tensors over one dimension of the script's mesh. Along the
    others each rank has a different mesh, and the same tensor: so there it is replicated, also if only one rank is.
    """
    mesh, placements = tensor.device_mesh, tuple(map(_read, tensor.placements))
    root = getattr(mesh, "_root_mesh", None)
    names = mesh.mesh_dim_names or ()
    if root is None or root is mesh or not set(names) <= set(root.mesh_dim_names or ()):
        return mesh, placements
    placed = dict(zip(names, placements, strict=True))
    return root, tuple(placed.get(name, Replicate()) for name in root.mesh_dim_names)


def layout_of(tensor: Tensor) -> Layout:
    """Which rank holds which boxes of a sharded tensor. Equal on all ranks."""
    return _cached(tensor).layout


def _read(placement: Any) -> Placement | None:
    """torch's placement as ours; None for one that no box follows from."""
    match type(placement).__name__:
        case "Replicate":
            return Replicate()
        case "Shard":
            return Shard(placement.dim)
        case "_StridedShard":
            return StridedShard(placement.dim, placement.split_factor)
        case _:
            return None
