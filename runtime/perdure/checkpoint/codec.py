"""Python values as typed JSON text and back, for a closed set of types: nothing is pickled, and nothing changes.

Plain JSON loses types: `MultiStepLR.state_dict()` comes back with string keys and never decays. Here None, bool, int,
str, finite floats, lists and dicts with plain string keys are written as JSON. Everything else is an object `{"$":
type, "v": ...}`. A value outside of the set, or one that would come back different, is a UserError with its path.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from perdure.checkpoint.state import ArrayRef, TensorRef, TwinRef
from perdure.checkpoint.tensors import in_order, memory, memory_order
from perdure.errors import Corrupt, UserError
from perdure.log.entry import checksum

_TAG: Final = "$"
NUMPY_KINDS: Final = "biufc"
"""Kinds of arrays that can be stored: numbers and truth values."""
_SEQUENCES: Final[Mapping[type, str]] = {tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "torch.Size"}
_MAPPINGS: Final[Mapping[type, str]] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}


def encode(value: Any, where: str = "state") -> Any:
    """`value` as plain JSON values; `where` begins the paths in messages. UserError if it cannot come back the same."""
    try:
        encoded = _encode(value, where)
        back = decode(json.loads(json.dumps(encoded, allow_nan=False)))
        _check_same(value, back, where)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply, or contains itself: register a flatter state") from None
    return encoded


def checksum_of(value: Any) -> str:
    """Checksum of the encoded value: equal for equal values."""
    return checksum(json.dumps(encode(value), sort_keys=True).encode())


def decode(encoded: Any) -> Any:
    """The encoded value. Corrupt if this is no encoding."""
    match encoded:
        case None | bool() | int() | float() | str():
            return encoded
        case list():
            return [decode(item) for item in encoded]
        case {"$": str(kind)} if kind in _DECODERS:
            try:
                return _DECODERS[kind](encoded)
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise Corrupt(f"a {kind} in the checkpoint cannot be read: {error!r}") from error
        case dict() if _TAG not in encoded:
            return {key: decode(item) for key, item in encoded.items()}
    raise Corrupt(f"the checkpoint has a value of unknown type: {str(encoded)[:80]}")


def _encode(value: Any, where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_encode(item, f"{where}[{n}]") for n, item in enumerate(value)]
    if kind is dict and all(type(key) is str and key != _TAG for key in value):
        return {key: _encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    if kind in _MAPPINGS:
        return {_TAG: _MAPPINGS[kind], "v": _encode_pairs(value, where)}
    if kind in _SEQUENCES:
        items = [_encode(item, f"{where}[{n}]") for n, item in enumerate(value)]
        # A set has no order, so sort it: equal sets give equal text.
        return {_TAG: _SEQUENCES[kind], "v": sorted(items, key=json.dumps) if kind in (set, frozenset) else items}
    leaf = _encode_leaf(value)
    if leaf is None:
        raise UserError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: give a state_dict of "
            f"numbers, strings, bytes, lists, tuples, sets, dicts, Counters, numpy arrays and tensors"
        )
    return leaf


def _encode_pairs(value: Mapping[Any, Any], where: str) -> list[list[Any]]:
    return [[_encode(key, f"{where} key {key!r}"), _encode(item, f"{where}[{key!r}]")] for key, item in value.items()]


def _encode_leaf(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    if kind is float:
        return {_TAG: "float", "v": repr(value)}
    if kind in (bytes, bytearray):
        return {_TAG: kind.__name__, "v": _text(value)}
    if kind is complex:
        return {_TAG: "complex", "v": [repr(value.real), repr(value.imag)]}
    if kind in (TensorRef, TwinRef, ArrayRef):
        return _encode_ref(value)
    if kind is torch.dtype:
        return {_TAG: "torch.dtype", "v": str(value).removeprefix("torch.")}
    if kind is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
        dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        data = bytes(memory(dense.reshape(-1).view(torch.uint8)))
        dtype, order = str(value.dtype).removeprefix("torch."), memory_order(value) or ()
        return {_TAG: "tensor", "dtype": dtype, "shape": list(value.shape), **_ordered(order), "v": _text(data)}
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in NUMPY_KINDS:
        if kind is not np.ndarray and isinstance(value, np.ndarray):
            return None  # a subclass: masked, matrix
        name = "ndarray" if kind is np.ndarray else "numpy"
        order = array_order(value) if isinstance(value, np.ndarray) else ()
        data = in_rows(value, order).tobytes() if isinstance(value, np.ndarray) else value.tobytes()
        return {_TAG: name, "dtype": value.dtype.str, "shape": list(value.shape), **_ordered(order), "v": _text(data)}
    return None


def array_order(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The order of its dimensions in memory, outermost first; empty for row-major order, or if it overlaps itself."""
    if array.flags.c_contiguous:
        return ()
    wide = [number for number, size in enumerate(array.shape) if size > 1]
    order = sorted(wide, key=lambda number: -abs(array.strides[number]))
    if order == wide or any(array.strides[number] == 0 for number in wide):
        return ()
    return (*order, *(number for number, size in enumerate(array.shape) if size <= 1))


def in_rows(array: np.ndarray[Any, Any], order: Sequence[int]) -> np.ndarray[Any, Any]:
    """The array in its memory's order, as rows."""
    return np.ascontiguousarray(array.transpose(order) if order else array).reshape(
        [array.shape[number] for number in order] if order else array.shape
    )


def from_rows(flat: np.ndarray[Any, Any], shape: Sequence[int], order: Sequence[int]) -> np.ndarray[Any, Any]:
    """The array with this memory."""
    if not order:
        return flat.reshape(shape)
    back = [list(order).index(number) for number in range(len(shape))]
    return flat.reshape([shape[number] for number in order]).transpose(back)


def _ordered(order: Sequence[int]) -> dict[str, Any]:
    return {"order": list(order)} if order else {}


def _order(encoded: Mapping[str, Any]) -> tuple[int, ...]:
    """The memory order of an encoded value; empty for row-major order. ValueError if it is no order."""
    order = tuple(map(int, encoded.get("order", ())))
    if order and sorted(order) != list(range(len(encoded["shape"]))):
        raise ValueError(f"{list(order)} is no order of {len(encoded['shape'])} dimensions")
    return order


def _encode_ref(ref: TensorRef | TwinRef | ArrayRef) -> dict[str, Any]:
    if isinstance(ref, ArrayRef):
        return {_TAG: ref.TAG, "dtype": ref.dtype, "shape": list(ref.shape), **_ordered(ref.order), "v": ref.name}
    return {_TAG: ref.TAG, "v": ref.name}


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _bytes(encoded: Mapping[str, Any]) -> bytes:
    return base64.b64decode(encoded["v"], validate=True)


def _decode_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch.{name} is no dtype")
    return dtype


def _decode_tensor(encoded: Mapping[str, Any]) -> torch.Tensor:
    dtype, data = _decode_dtype(encoded["dtype"]), _bytes(encoded)
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    rows, order = flat.reshape(encoded["shape"]), _order(encoded)
    return in_order(rows, order) if order else rows


def _decode_numpy_dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in NUMPY_KINDS:
        raise ValueError(f"{dtype} is no number")
    return dtype


def _decode_array_ref(encoded: Mapping[str, Any]) -> ArrayRef:
    dtype = _decode_numpy_dtype(encoded["dtype"])
    return ArrayRef(str(encoded["v"]), dtype.str, tuple(map(int, encoded["shape"])), _order(encoded))


def _decode_array(encoded: Mapping[str, Any]) -> Any:
    dtype = _decode_numpy_dtype(encoded["dtype"])
    return from_rows(np.frombuffer(bytearray(_bytes(encoded)), dtype), encoded["shape"], _order(encoded))


def _decode_counter(encoded: Mapping[str, Any]) -> Counter[Any]:
    return Counter(dict(_pairs(encoded)))  # Counter(pairs) would count the pairs


def _pairs(encoded: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(decode(key), decode(item)) for key, item in encoded["v"]]


def _items(encoded: Mapping[str, Any]) -> list[Any]:
    return [decode(item) for item in encoded["v"]]


_DECODERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "dict": lambda e: dict(_pairs(e)),
    "OrderedDict": lambda e: OrderedDict(_pairs(e)),
    "Counter": _decode_counter,
    "tuple": lambda e: tuple(_items(e)),
    "set": lambda e: set(_items(e)),
    "frozenset": lambda e: frozenset(_items(e)),
    "torch.Size": lambda e: torch.Size(_items(e)),
    "float": lambda e: float(e["v"]),
    "complex": lambda e: complex(float(e["v"][0]), float(e["v"][1])),
    "bytes": _bytes,
    "bytearray": lambda e: bytearray(_bytes(e)),
    TensorRef.TAG: lambda e: TensorRef(str(e["v"])),
    TwinRef.TAG: lambda e: TwinRef(str(e["v"])),
    ArrayRef.TAG: _decode_array_ref,
    "torch.dtype": lambda e: _decode_dtype(e["v"]),
    "tensor": _decode_tensor,
    "ndarray": _decode_array,
    "numpy": lambda e: _decode_array(e)[()],
}


def _check_same(value: Any, back: Any, where: str) -> None:
    if not _same(value, back):
        raise UserError(f"{where} would come back from the checkpoint as something else: register simpler values")


def _same(a: Any, b: Any) -> bool:
    """Equal in type and value all the way down. NaN equals NaN, and the order of a dict counts."""
    if type(a) is not type(b):
        return False
    match a:
        case float() | complex():
            return repr(a) == repr(b)
        case list() | tuple():
            return len(a) == len(b) and all(map(_same, a, b))
        case dict():
            return len(a) == len(b) and all(_same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
        case set() | frozenset():
            return {_mark(x) for x in a} == {_mark(x) for x in b}
        case torch.Tensor() if a.requires_grad:
            return False
        case torch.Tensor() | np.ndarray() | np.generic():
            same: bool = a.dtype == b.dtype and a.shape == b.shape and _encode_leaf(a) == _encode_leaf(b)
            return same
    return bool(a == b)


def _mark(item: Any) -> tuple[type, Any]:
    """Tells 1 from True, and makes NaN equal to itself."""
    return type(item), item if item == item else repr(item)  # noqa: PLR0124
