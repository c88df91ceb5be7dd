"""Stages a rank's part of a commit: its tensors with their layout, and everything else as text.

Staging makes no copy: the bytes are read from the live tensors when they are written. So training has to wait until
then, or the caller has to pass copies. Staging refuses state that cannot be saved or loaded again before it writes a
byte. Called by save, and by the dry run in restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.codec import encode
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item
from perdure.checkpoint.state import RankState
from perdure.checkpoint.upload import Staged, head_of, without_tensors
from perdure.layout.box import Box
from perdure.layout.plan import Redistribution, TensorDemand, plan
from perdure.layout.sharding import Layout

_ALL: Final = Box((), ())
_STORE: Final = -1
"""Where all tensors go."""


@dataclass(frozen=True)
class Piece:
    """A tensor, or a box of a sharded one, as a shard holds it."""

    part: str
    name: str
    tensor: Tensor
    """The whole one."""
    memory: Tensor
    """The tensor to write: the same, or this rank's view of the box."""
    box: Box | None = None

    @property
    def key(self) -> str:
        """Its name in the safetensors file."""
        whole = f"{self.part}/{self.name}"
        return whole if self.box is None else f"{whole}[{','.join(map(_range, self.box.offset, self.box.end))}]"


@dataclass(frozen=True, eq=False)
class LiveBytes:
    """A shard's bytes, read from the live tensors."""

    header: bytes
    pieces: Sequence[Piece]

    def __call__(self) -> Iterator[memoryview]:
        """In order."""
        yield memoryview(self.header)
        for piece in self.pieces:
            yield from bytes_of(piece.memory)


def stage(state: RankState, rank: int, world: int, parts: Sequence[int] = ()) -> Staged:
    """This rank's part of a commit of `state`. Raises UserError with what cannot be saved and the remedy.

    With `parts` it is what part `rank` of `world` holds of the state; `parts` is each rank's (boxes.parts).
    """
    held = _checked(state)
    pieces = [_piece(name, state.shared[name], box, held) for name, box in share_of(rank, state.shared, world, parts)]
    if rank == 0:
        pieces += [Piece(REPLICATED, name, tensor, tensor) for name, tensor in state.replicated.items()]
    pieces.sort(key=lambda piece: (-piece.memory.element_size(), piece.part, piece.name, piece.box or _ALL))
    header, items = lay_out(pieces)
    size = items[-1].end if items else len(header)
    return replace(_own(state, rank, world), size=size, items=items, pieces=LiveBytes(header, pieces))


def stage_own(state: RankState, rank: int, world: int) -> Staged:
    """As `stage`, without the tensors, which are only checked."""
    _checked(state)
    return _own(state, rank, world)


def _own(state: RankState, rank: int, world: int) -> Staged:
    objects = encode(dict(state.objects), "objects")  # on every rank, because any rank may hold what cannot be saved
    return without_tensors(rank, world, encode(state.rank, "rank"), None if rank else objects)


def _checked(state: RankState) -> dict[str, list[boxes.HeldBox]]:
    """The boxes that this rank holds of each sharded tensor. UserError for a tensor that cannot be saved."""
    for name, tensor in {**state.shared, **state.replicated}.items():
        tensors.refuse_odd(name, tensor)
    return {name: boxes.held(tensor) for name, tensor in state.shared.items() if boxes.is_sharded(tensor)}


def share_of(
    rank: int, named: Mapping[str, Tensor], world: int, parts: Sequence[int] = ()
) -> Iterator[tuple[str, Box]]:
    """Which boxes of which tensors this rank writes, of those that it holds: the largest first, to the rank with the
    least so far. The ranks' shares are disjoint, and together all there is."""
    alike: dict[Layout, Redistribution] = {}

    def wanted(name: str, tensor: Tensor) -> TensorDemand:
        if not boxes.is_sharded(tensor):
            return TensorDemand.whole(name, tensor.shape, tensors.size_of(tensor), range(world), [_STORE])
        lies = boxes.layout_of(tensor)
        if lies not in alike:
            alike[lies] = _to_store(lies.holders(), parts)
        return TensorDemand(name, tensor.element_size(), alike[lies])

    for move in plan([wanted(name, tensor) for name, tensor in named.items()], rank):
        yield move.name, move.box


def _to_store(holders: Mapping[Box, Sequence[int]], parts: Sequence[int]) -> Redistribution:
    if parts:
        holders = {box: tuple(sorted({parts[rank] for rank in ranks})) for box, ranks in holders.items()}
    return Redistribution(holders, dict.fromkeys(holders, (_STORE,)))


def _piece(name: str, tensor: Tensor, box: Box, held: Mapping[str, Sequence[boxes.HeldBox]]) -> Piece:
    if name not in held:
        return Piece(SHARED, name, tensor, tensor)
    memory = next(one.memory for one in held[name] if one.box == box)
    return Piece(SHARED, name, tensor, memory, box)


def layout(named: Mapping[str, Tensor]) -> list[list[object]]:
    """Names, dtypes, shapes, memory orders and how they are sharded, sorted: equal on two ranks if they hold tensors of
    the same layout."""
    return [
        [name, tensors.dtype_name(tensor), list(tensor.shape), tensors.memory_order(tensor), boxes.described(tensor)]
        for name, tensor in sorted(named.items())
    ]


def lay_out(pieces: Sequence[Piece]) -> tuple[bytes, tuple[Item, ...]]:
    """The header of a safetensors file with these pieces, and each one's place in the file, in order.

    Those with the widest elements must come first, so that all are aligned.
    """
    header = dict[str, Any]()
    end = 0
    for piece in pieces:
        dtype, shape = tensors.carrier(piece.memory)
        start, end = end, end + tensors.size_of(piece.memory)
        header[piece.key] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    head = head_of(header)
    return head, tuple(_item(piece, header, len(head)) for piece in pieces)


def _item(piece: Piece, header: Mapping[str, Any], head: int) -> Item:
    start, _ = header[piece.key]["data_offsets"]
    size = tensors.size_of(piece.memory)
    return replace(described(piece.part, piece.name, piece.tensor), start=head + start, size=size, box=piece.box)


def _range(start: int, end: int) -> str:
    return f"{start}:{end}"


def described(part: str, name: str, tensor: Tensor) -> Item:
    """A tensor as a manifest lists it, as a whole, with start 0."""
    size, order = tensors.size_of(tensor), tensors.memory_order(tensor)
    return Item(part, name, tensors.dtype_name(tensor), tuple(tensor.shape), tensor.device.type, 0, size, order)


def bytes_of(tensor: Tensor) -> Iterable[memoryview]:
    """Its bytes in row-major order. A view is valid until the tensor changes or the next one is requested."""
    flat = tensors.flat_bytes(tensor)
    return tensors.read(tensor) if flat is None else [tensors.memory(flat)]
