"""Tensors as safetensors objects, and how they are shared out, checksummed and verified.

The checksums are those of fixed blocks, so that a range read can be verified too; the object's own is their
combination. Called by save, load and inspect; knows nothing of the log.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import safetensors
import safetensors.torch
import torch
from awscrt.checksums import combine_crc64nvme
from torch import Tensor

from perdure.checkpoint.entry import checksum
from perdure.checkpoint.manifest import Item, Shard
from perdure.errors import Corrupt, UserError

BLOCK_BYTES: Final = 8 * 1024 * 1024


def share_out(tensors: Mapping[str, Tensor], world: int) -> list[list[str]]:
    """Which rank writes which names: largest first to the rank with the least so far. Every rank finds the same."""
    loads = [(0, rank) for rank in range(world)]
    names: list[list[str]] = [[] for _ in range(world)]
    for size, name in sorted((-_bytes(tensor), name) for name, tensor in tensors.items()):
        load, rank = heapq.heappop(loads)
        names[rank].append(name)
        heapq.heappush(loads, (load - size, rank))
    return names


def _check_plain(name: str, tensor: Tensor) -> None:
    kind = type(tensor.detach())
    if kind is not Tensor:
        raise UserError(f"tensor {name} is a {kind.__name__}: only plain tensors, whole on every rank, can be saved")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UserError(f"tensor {name} is sparse or quantized: only dense tensors can be saved")


def layout(tensors: Mapping[str, Tensor]) -> list[list[object]]:
    """Names, types and shapes, in an order of their own: equal on two ranks if they hold the same tensors."""
    return [[name, _dtype(tensor), list(tensor.shape)] for name, tensor in sorted(tensors.items())]


def pack(parts: Mapping[str, Mapping[str, Tensor]]) -> tuple[bytes, tuple[Item, ...]]:
    """One safetensors object with the tensors of each part, copied out of training's hands, and its list of items."""
    flat: dict[str, Tensor] = {}
    items: list[Item] = []
    for part, tensors in parts.items():
        for name, tensor in tensors.items():
            _check_plain(name, tensor)
            # A copy of its own: safetensors refuses tensors that share memory, and training goes on changing them.
            copy = tensor.detach().to("cpu", copy=True)
            # Conjugation may be a mere flag on the tensor, which the bytes do not show.
            flat[f"{part}/{name}"] = copy.resolve_conj().resolve_neg().contiguous()
            items.append(Item(part, name, _dtype(tensor), tuple(tensor.shape)))
    try:
        return safetensors.torch.save(flat, metadata={"format": "pt"}), tuple(items)
    except (KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"these tensors cannot be saved: {error}: check their types, {sorted(flat)[:5]}") from error


def unpack(shard: Shard, data: bytes) -> dict[str, dict[str, Tensor]]:
    """The tensors of each part. Corrupt unless they are exactly what the manifest lists."""
    try:
        flat = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise Corrupt(f"{shard.key} is not safetensors: {error}") from error
    parts: dict[str, dict[str, Tensor]] = {}
    for item in shard.items:
        tensor = flat.pop(f"{item.part}/{item.name}", None)
        if tensor is None or (_dtype(tensor), tuple(tensor.shape)) != (item.dtype, item.shape):
            raise Corrupt(f"{shard.key} does not hold {item.name} as its manifest says")
        parts.setdefault(item.part, {})[item.name] = tensor
    if flat:
        raise Corrupt(f"{shard.key} holds {min(flat)}, which its manifest does not list")
    return parts


def describe(key: str, data: bytes, items: tuple[Item, ...]) -> Shard:
    """What a manifest says of a shard with these bytes."""
    blocks = block_checksums(data)
    return Shard(key, len(data), combine(blocks, len(data), BLOCK_BYTES), BLOCK_BYTES, blocks, items)


def block_checksums(data: bytes) -> tuple[str, ...]:
    """One checksum per BLOCK_BYTES."""
    view = memoryview(data)
    return tuple(checksum(view[start : start + BLOCK_BYTES]) for start in range(0, len(view), BLOCK_BYTES))


def combine(blocks: Sequence[str], size: int, block_bytes: int) -> str:
    """The checksum of the whole object from those of its blocks."""
    total, left = 0, size
    for block in blocks:
        length = min(block_bytes, left)
        total, left = combine_crc64nvme(total, int(block, 16), length), left - length
    return f"{total:016x}"


def verify(shard: Shard, data: bytes) -> None:
    """Corrupt unless these are the bytes that were saved."""
    if len(data) != shard.size:
        raise Corrupt(f"{shard.key} has {len(data)} bytes instead of {shard.size}")
    view = memoryview(data)
    for start, expected in zip(_starts(shard), shard.blocks, strict=True):
        if checksum(view[start : start + shard.block_bytes]) != expected:
            raise Corrupt(f"{shard.key} is damaged in the block that begins at byte {start}")
    if combine(shard.blocks, shard.size, shard.block_bytes) != shard.crc:
        raise Corrupt(f"{shard.key}: its checksum in the manifest is not that of its blocks")


def _starts(shard: Shard) -> Iterable[int]:
    starts = range(0, shard.size, shard.block_bytes)
    if len(starts) != len(shard.blocks):
        raise Corrupt(f"{shard.key}: its manifest has {len(shard.blocks)} block checksums instead of {len(starts)}")
    return starts


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
