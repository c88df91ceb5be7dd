"""Stages a rank's part of a commit: its tensors with their layout, and everything else as text.

Staging makes no copy: the bytes are read from the live tensors when they are written, so training has to wait until
then, or the caller has to pass copies. Staging refuses what cannot be saved or loaded again, before a byte is written.
Called by save, and by the dry run in restore.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.codec import encode
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item
from perdure.checkpoint.state import State
from perdure.checkpoint.upload import Staged
from perdure.layout.plan import Wanted, plan

_ALIGNMENT: Final = 8
_STORE: Final = 0
"""Where all tensors go."""


def stage(state: State, rank: int, world: int) -> Staged:
    """This rank's part of a commit of `state`. Raises UserError with what cannot be saved and the remedy."""
    for name, tensor in {**state.shared, **state.replicated}.items():
        tensors.refuse_odd(name, tensor)
    parts = {SHARED: {name: state.shared[name] for name in share_out(state.shared, world)[rank]}}
    if rank == 0:
        parts[REPLICATED] = dict(state.replicated)
    flat = {(part, name): tensor for part, named in parts.items() for name, tensor in named.items()}
    header, items = lay_out(flat)
    objects = encode(dict(state.objects), "objects")  # on every rank, because any rank may hold what cannot be saved
    size = items[-1].end if items else len(header)
    own = encode(state.rank, "rank")
    order = [flat[item.part, item.name] for item in items]
    return Staged(rank, world, size, items, own, None if rank else objects, partial(_bytes, header, order))


def share_out(named: Mapping[str, Tensor], world: int) -> list[list[str]]:
    """Which rank writes which tensors: the largest first, to the rank with the least so far. Equal on all ranks."""
    names: list[list[str]] = [[] for _ in range(world)]
    wanted = (
        Wanted.whole(name, tensor.shape, tensors.size_of(tensor), range(world), [_STORE])
        for name, tensor in named.items()
    )
    for move in plan(wanted):
        names[move.source].append(move.name)
    return names


def layout(named: Mapping[str, Tensor]) -> list[list[object]]:
    """Names, dtypes, shapes and memory orders, sorted: equal on two ranks if they hold tensors of the same layout."""
    return [
        [name, tensors.dtype_name(tensor), list(tensor.shape), tensors.memory_order(tensor)]
        for name, tensor in sorted(named.items())
    ]


def lay_out(flat: Mapping[tuple[str, str], Tensor]) -> tuple[bytes, tuple[Item, ...]]:
    """The header of a safetensors file with these tensors, and each tensor's place in the file, in order.

    The widest elements come first, so that all tensors are aligned.
    """
    order = sorted(flat, key=lambda key: (-flat[key].element_size(), key))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for part, name in order:
        dtype, shape = tensors.carrier(flat[part, name])
        start, end = end, end + tensors.size_of(flat[part, name])
        header[f"{part}/{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return head, tuple(_item(part, name, flat[part, name], header, len(head)) for part, name in order)


def _item(part: str, name: str, tensor: Tensor, header: Mapping[str, Any], head: int) -> Item:
    start, _ = header[f"{part}/{name}"]["data_offsets"]
    return replace(described(part, name, tensor), start=head + start)


def described(part: str, name: str, tensor: Tensor) -> Item:
    """A tensor as a manifest lists it, with start 0."""
    size, order = tensors.size_of(tensor), tensors.memory_order(tensor)
    return Item(part, name, tensors.dtype_name(tensor), tuple(tensor.shape), tensor.device.type, 0, size, order)


def _bytes(header: bytes, order: list[Tensor]) -> Iterator[memoryview]:
    yield memoryview(header)
    for tensor in order:
        flat = tensors.flat_bytes(tensor)
        if flat is None:
            yield from tensors.read(tensor)
        else:
            yield flat.numpy().data
