"""Tensors as bytes and back: of any dtype, on any device, a small piece at a time.

Nothing here makes a second whole tensor. Contiguous tensors are read and written in place, others through pieces of a
few MiB. So a save or a restore needs no memory beyond its buffers. Called by stage and load.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import torch
from awscrt.checksums import crc64nvme
from torch import Tensor
from torch.nn.parameter import is_lazy

from perdure.checkpoint import boxes
from perdure.errors import UserError
from perdure.layout import memory_order as layout
from perdure.layout.row_major import pieces

PIECE_BYTES: Final = 8 * 1024 * 1024

_CARRIERS: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
}
"""Types that every safetensors library knows. All others are stored as bytes, and the manifest has their type."""

_SPREAD: Final = 2 * -3523014627193176566
"""An even number near 2**64 divided by the golden ratio, as a signed one: its multiples are spread out."""
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_name(tensor: Tensor) -> str:
    """The dtype as in manifests."""
    return str(tensor.dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype that manifests call so. UserError if this torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UserError(f"the checkpoint holds tensors of type {name}, which torch {torch.__version__} does not know")
    return found


def size_of(tensor: Tensor) -> int:
    """Size of the tensor's elements in bytes."""
    return tensor.numel() * tensor.element_size()


def carrier(tensor: Tensor) -> tuple[str, list[int]]:
    """Type and shape under which a safetensors file holds the tensor."""
    known = _CARRIERS.get(tensor.dtype)
    if known:
        return known, list(tensor.shape)
    width = tensor.element_size()
    return "U8", [*tensor.shape, width] if width > 1 else list(tensor.shape)


def address(tensor: Tensor) -> int:
    """Where the memory of this rank's part begins; 0 if there is none."""
    return boxes.local(tensor).untyped_storage().data_ptr()


def refuse_odd(name: str, tensor: Tensor) -> None:
    """UserError with a remedy if this tensor could not be saved, or not be loaded again."""
    if is_lazy(tensor):
        raise UserError(f"tensor {name} has no shape yet: run the model once before it is registered")
    if boxes.is_sharded(tensor):
        boxes.refuse(name, tensor)
        tensor = boxes.local(tensor)
    kind = type(tensor.detach())
    if kind is not Tensor:
        raise UserError(
            f"tensor {name} is a {kind.__module__}.{kind.__qualname__}: only plain tensors, and DTensors of them, can "
            f"be saved: register an object whose state_dict gives these"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        what = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UserError(f"tensor {name} is {what}: only dense tensors can be saved: keep it dense, or out of the state")
    if tensor.device.type == "meta":
        raise UserError(f"tensor {name} is on the meta device and has no values: materialize the model first")
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        raise UserError(f"tensor {name} has released its memory: register what the optimizer steps, or a copy of it")


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements may share memory, as in an expanded tensor, so that it cannot be written to."""
    return layout.overlaps_itself(tensor.shape, tensor.stride())


def memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """The order of its dimensions in memory, outermost first; None for row-major order."""
    return None if tensor.is_contiguous() else layout.memory_order(tensor.shape, tensor.stride())


def empty(
    dtype: str,
    shape: tuple[int, ...],
    device: torch.device | None = None,
    *,
    order: Sequence[int] | None = None,
) -> Tensor:
    """A new tensor with the memory order of `memory_order`. UserError if this torch has no such dtype."""
    found = dtype_of(dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*support is experimental", category=UserWarning)
        way = list(order or range(len(shape)))
        rows = torch.empty([shape[number] for number in way], dtype=found, device=device or torch.device("cpu"))
        return rows.permute([way.index(number) for number in range(len(shape))])


def strided_like(tensor: Tensor, other: Tensor) -> Tensor:
    """With the other's strides, if they differ only in dimensions of one element, because kernels compare all
    strides."""
    if tensor.shape != other.shape or tensor.stride() == other.stride():
        return tensor
    if boxes.is_sharded(tensor) or any(
        one != two and size > 1 for one, two, size in zip(tensor.stride(), other.stride(), tensor.shape, strict=True)
    ):
        return tensor
    return tensor.as_strided(tensor.shape, other.stride())


def in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A copy with this memory order."""
    return empty(dtype_name(tensor), tuple(tensor.shape), tensor.device, order=order).copy_(tensor)


def checksum(tensor: Tensor) -> int:
    """Checksum of its elements in row-major order, to compare tensors on devices of one kind. Computed on the
    device. The tensor is a plain one."""
    if tensor.device.type != "cpu":
        return weighted_sum(tensor)
    total = 0
    for piece in read(tensor):
        total = crc64nvme(piece, total)
    return total


def digest(sums: Mapping[str, int]) -> int:
    """One checksum of all, from each one's, by name."""
    return int(crc64nvme("".join(f"{name} {sums[name]} " for name in sorted(sums)).encode()))


def weighted_sum(tensor: Tensor) -> int:
    """The elements' bits as integers, each multiplied by an odd number for its place, modulo 2**64.

    Any single different element changes it, and only the result leaves the device.
    """
    total, at = torch.zeros((), dtype=torch.int64, device=tensor.device), 0
    for piece in _pieces(tensor.detach(), PIECE_BYTES):
        words = _flat(_as_integers(piece.resolve_conj().resolve_neg()).contiguous()).to(torch.int64)
        places = torch.arange(at, at + words.numel(), dtype=torch.int64, device=words.device)
        total, at = total + (words * (places * _SPREAD + 1)).sum(), at + words.numel()
    return int(total)


def read(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of its elements in row-major order, at most PIECE_BYTES at a time. A view is valid until the tensor
    changes or the next one is requested."""
    for piece in _pieces(tensor.detach(), PIECE_BYTES):
        yield memory(to_bytes(piece))


def memory(row: Tensor) -> memoryview:
    """The memory of bytes on the CPU. `Tensor.numpy` would forbid any later resize of the tensor they belong to."""
    return np.from_dlpack(row).data


def to_bytes(tensor: Tensor) -> Tensor:
    """The bytes of its elements in row-major order, on the CPU: its memory, or a copy where that is not the same."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return _bytes(_as_integers(plain).contiguous().cpu())


def flat_bytes(tensor: Tensor) -> Tensor | None:
    """The memory of its elements in row-major order, as bytes; None if it is elsewhere, or in another order."""
    plain = not tensor.is_conj() and not tensor.is_neg() and tensor.is_contiguous()
    return _bytes(_as_integers(tensor.detach())) if plain and tensor.device.type == "cpu" else None


def writable(tensor: Tensor) -> memoryview | None:
    """Like `flat_bytes`, to write to; None also for a tensor without elements."""
    flat = flat_bytes(tensor)
    return memory(flat) if flat is not None and flat.numel() else None


def from_bytes(data: memoryview, dtype: torch.dtype) -> Tensor:
    """Elements in row-major order as one row: a view of their bytes, if these lie as elements have to."""
    row = torch.frombuffer(data, dtype=torch.uint8)
    return (row.clone() if row.data_ptr() % dtype.itemsize else row).view(dtype)


def write(tensor: Tensor, data: memoryview) -> None:
    """Write the bytes of all its elements, in row-major order. There is at least one."""
    direct = writable(tensor)
    if direct is None:
        fill(tensor, from_bytes(data, tensor.dtype).view(tensor.shape))
    else:
        direct[:] = data


def cpu_by_default() -> AbstractContextManager[object]:
    """New tensors are on the CPU. torch's context for a device doubles the cost of each operation, so it is entered
    only where another device is set."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def fill(tensor: Tensor, values: Tensor) -> None:
    """Write values of the same dtype and shape, bit by bit."""
    target = tensor.detach()
    if target.is_conj() or target.is_neg():
        target.copy_(values)
    else:
        _as_integers(target).copy_(_as_integers(values))


def _flat(tensor: Tensor) -> Tensor:
    """A contiguous tensor as one row. `reshape` would leave one element the stride of a dimension of size 1."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _bytes(integers: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, as one row."""
    return _flat(integers).view(torch.uint8)


def _as_integers(tensor: Tensor) -> Tensor:
    """The elements as integers of their width: not every dtype can be copied, but these all can."""
    width = tensor.element_size()
    if width in _INTEGERS:
        return tensor.view(_INTEGERS[width])
    return torch.view_as_real(tensor).view(torch.int64)  # complex128 is the only wider one


def _pieces(tensor: Tensor, limit: int) -> Iterator[Tensor]:
    """Views of the tensor in row-major order, of at most `limit` bytes each."""
    if size_of(tensor) <= limit:
        if tensor.numel():
            yield tensor
        return
    rows = tensor.view(-1) if tensor.is_contiguous() else tensor
    for box in pieces(rows.shape, limit // tensor.element_size()):
        yield boxes.view(rows, box)
