"""Takes values with tensors apart and puts them together again: the tensors go into shards, from any depth.

A TensorRef with the tensor's name takes its place. Larger NumPy arrays are treated alike, as tensors on their memory.
Dicts, lists and tuples are searched; the codec handles all other types. Called by the session's registry.
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from perdure.checkpoint.codec import NUMPY_KINDS, array_order, from_rows, in_rows
from perdure.checkpoint.state import ArrayRef, TensorRef, TwinRef

ARRAY_BYTES: Final = 1024
"""A smaller array is text in the manifest, which costs less than an item of a shard."""
_WRAPPERS: Final = frozenset({"module", "_orig_mod"})


def split(value: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    """`value` without its tensors, which are added to `tensors` under the names of their places, after `prefix`.

    A tensor that occurs twice is stored once, and comes back as one tensor.
    """
    seen: dict[int, str] = {}

    def store(inner: Any, where: str, tensor: Callable[[], Tensor]) -> str:
        name = seen.get(id(inner))
        if name is None:
            name = seen[id(inner)] = _free(f"{prefix}{where[1:]}", tensors)
            tensors[name] = tensor()
        return name

    def take(inner: Any, where: str) -> Any:
        if isinstance(inner, Tensor):
            return TensorRef(store(inner, where, lambda: inner))
        kind = type(inner)
        if kind is np.ndarray and inner.nbytes >= ARRAY_BYTES and inner.dtype.kind in NUMPY_KINDS:
            order = array_order(inner)
            rows = in_rows(inner, order)
            return ArrayRef(store(inner, where, lambda: _as_tensor(rows)), inner.dtype.str, inner.shape, order)
        if kind in (dict, OrderedDict):
            return kind((key, take(item, f"{where}.{key}")) for key, item in inner.items())
        if kind in (list, tuple):
            return kind(take(item, f"{where}.{number}") for number, item in enumerate(inner))
        return inner

    return take(value, "")


def join(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """The whole value again; `tensor` returns each tensor by its name."""
    kind = type(value)
    if kind in (TensorRef, TwinRef):
        return tensor(value.name)
    if kind is ArrayRef:
        return _as_array(tensor(value.name), value)
    if kind in (dict, OrderedDict):
        return kind((key, join(item, tensor)) for key, item in value.items())
    if kind in (list, tuple):
        return kind(join(item, tensor) for item in value)
    return value


def renamed(value: Any, name: Callable[[str], str]) -> Any:
    """A value from `split`, with new names for its tensors."""
    kind = type(value)
    if kind in (TensorRef, TwinRef, ArrayRef):
        return replace(value, name=name(value.name))
    if kind in (dict, OrderedDict):
        return kind((key, renamed(item, name)) for key, item in value.items())
    if kind in (list, tuple):
        return kind(renamed(item, name) for item in value)
    return value


def refs(value: Any, live: Any = None) -> Iterator[tuple[str, Any]]:
    """The names in a value from `split`, each with what is at the same place in `live`, or None."""
    if type(value) in (TensorRef, ArrayRef):
        yield value.name, live
    elif isinstance(value, Mapping):
        found = live if isinstance(live, Mapping) else {}
        for key, item in value.items():
            yield from refs(item, found.get(key))
    elif type(value) in (list, tuple):
        items = live if isinstance(live, list | tuple) else ()
        for number, item in enumerate(value):
            yield from refs(item, items[number] if number < len(items) else None)


def owner(name: str) -> str:
    """The registered object that a tensor belongs to: in the tensor's name it ends at a dot, or at a slash for an
    optimizer."""
    return re.split(r"[./]", name, maxsplit=1)[0]


def named_as(value: Any, live: Any) -> Any:
    """`value` with the keys of `live` wherever they differ only in `module.` and `_orig_mod.`.

    Averages, for example, keep their tensors under the parameters' names, which depend on how the model is wrapped.
    """
    if type(value) in (dict, OrderedDict) and isinstance(live, Mapping):
        keys = dict(zip(value, value, strict=True))
        if value.keys() != live.keys():
            plain = {_plain(key): key for key in live}
            if len(plain) == len(live) == len(value) and {_plain(key) for key in value} == plain.keys():
                keys = {key: plain[_plain(key)] for key in value}
        return type(value)((keys[key], named_as(item, live.get(keys[key]))) for key, item in value.items())
    if type(value) in (list, tuple) and isinstance(live, list | tuple) and len(live) == len(value):
        return type(value)(named_as(item, other) for item, other in zip(value, live, strict=True))
    return value


def _as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the array's memory if that is row-major; as bytes if torch lacks the dtype."""
    rows = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        try:
            return torch.from_numpy(rows)
        except (TypeError, ValueError):  # long doubles, another byte order
            return torch.from_numpy(rows.reshape(-1).view(np.uint8))


def _as_array(tensor: Tensor, ref: ArrayRef) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.cpu().reshape(-1).view(torch.uint8).numpy()
    return from_rows(found.view(np.dtype(ref.dtype)), ref.shape, ref.order)


def _plain(key: Any) -> Any:
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS) if isinstance(key, str) else key


def _free(name: str, tensors: Mapping[str, Tensor]) -> str:
    number, free = 1, name
    while free in tensors:
        number += 1
        free = f"{name}~{number}"
    return free
