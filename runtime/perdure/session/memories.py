"""Finds tensors and arrays that objects carry from step to step in plain attributes, where no state_dict has them.

Examples are a queue of keys, a bank of features, running statistics and shadow weights. Activations kept for
inspection, and masks computed in each step, look similar, but losing them does no harm. State that is carried on is
recognized in one of these ways:

* the same tensor or array has changed, so its value before the step is a part of it;
* a list or queue still has items of a step ago, beside new ones;
* an attribute has another value of the same shape, and its class reads it before it writes it, in one function.

Called by perdure.session.forgotten.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from perdure.state.parts import MODULE_OWN
from perdure.state.write_detection import elements_of

_ITEMS: Final = 64
"""How many items of a list or mapping are compared: its last ones."""
_ELEMENTS: Final = 4096
"""How many elements of an array are compared."""
_LEAST: Final = 2
"""The fewest elements: a single one is usually a figure for a log line."""
_FORM: Final = frozenset({"shape", "size", "dim", "ndim", "numel", "device", "dtype", "requires_grad", "is_cuda"})
"""Attributes of a tensor that do not depend on its elements."""
_ABOUT: Final = frozenset({"len", "isinstance", "id", "type"})


@dataclass(frozen=True)
class _Item:
    """A tensor or array as it was at one moment. It is not kept alive."""

    get: Callable[[], Any]
    shape: tuple[int, ...]
    elements: bytes | None
    version: int
    """How often torch has seen it written to."""


@dataclass(frozen=True)
class _Memory:
    """What one attribute had at one moment."""

    kind: type
    items: list[_Item]


Memories = Mapping[str, _Memory]
"""What each attribute had, by its name."""


def memories(thing: Any, saved: Container[int]) -> Memories:
    """The attributes of an object that are tensors or arrays, or lists or mappings of such, without parameters and
    buffers. `saved`: addresses of memory that a checkpoint holds."""
    own = vars(thing).items() if isinstance(getattr(thing, "__dict__", None), dict) else ()
    taken = MODULE_OWN if isinstance(thing, nn.Module) else ()
    found = {name: _memory(value, saved) for name, value in own if name not in taken}
    return {name: memory for name, memory in found.items() if memory is not None}


def carried(kind: type, before: Memories, now: Memories, weights: Container[bytes | None]) -> list[str]:
    """The attributes that an object of this class carries on.

    `weights`: present and former values of checkpointed tensors; losing copies of them does no harm.
    """
    both = [name for name in before if name in now]
    return [name for name in both if _is_carried(kind, name, before[name], now[name], weights)]


def _is_carried(kind: type, name: str, before: _Memory, now: _Memory, weights: Container[bytes | None]) -> bool:
    there = {id(one.get()): one for one in before.items if one.get() is not None}
    kept = [(there[id(one.get())], one) for one in now.items if id(one.get()) in there]
    if any((old.elements, old.version) != (new.elements, new.version) for old, new in kept):
        return any(new.elements not in weights for _, new in kept)
    if issubclass(now.kind, list | deque) and 0 < len(kept) < len(now.items):
        return True
    if kept or not now.items or [one.shape for one in before.items] != [one.shape for one in now.items]:
        return False
    is_new = any(old.elements != new.elements for old, new in zip(before.items, now.items, strict=True))
    is_copy = all(one.elements in weights for one in now.items)
    return is_new and not is_copy and _reads_before_it_writes(kind, name)


def _memory(value: Any, saved: Container[int]) -> _Memory | None:
    listed = [value]
    if isinstance(value, dict):
        listed = list(dict.values(value))[-_ITEMS:]
    elif isinstance(value, list | deque):
        listed = [value[place] for place in range(max(0, len(value) - _ITEMS), len(value))]
    items = [item for item in (_item(one, saved) for one in listed) if item is not None]
    return _Memory(type(value), items) if items and len(items) == len(listed) else None


def _item(value: Any, saved: Container[int]) -> _Item | None:
    if type(value) is Tensor and value.layout is torch.strided and not value.is_meta and value.grad_fn is None:
        if value.numel() < _LEAST or value.untyped_storage().data_ptr() in saved:
            return None
        return _Item(weakref.ref(value), tuple(value.shape), elements_of(value), value._version)  # noqa: SLF001
    if type(value) is np.ndarray and not value.dtype.hasobject and value.size >= _LEAST:
        if value.__array_interface__["data"][0] in saved:
            return None
        apart = -(-value.size // _ELEMENTS)
        return _Item(weakref.ref(value), value.shape, value.reshape(-1)[::apart].tobytes(), 0)
    return None


@cache
def _reads_before_it_writes(kind: type, name: str) -> bool:
    """Whether a function of this class computes the new `self.name` from the old one."""
    functions = [one for base in kind.__mro__ for one in vars(base).values() if isinstance(one, FunctionType)]
    return any(
        _comes_before(tree, name)
        for function in functions
        if name in function.__code__.co_names
        for tree in _tree(function)
    )


def _tree(function: FunctionType) -> Iterator[ast.AST]:
    try:
        yield ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # without its source nothing is known
        return


def _comes_before(tree: ast.AST, name: str) -> bool:
    writes = [
        (one.end_lineno or 0, one.end_col_offset or 0)
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign) and any(_is_written(target, name) for target in one.targets)
    ]
    reads = [(one.lineno, one.col_offset) for one in _reads(tree, name)]
    return bool(writes and reads) and min(reads) < max(writes)


def _is_written(target: ast.AST, name: str) -> bool:
    """Whether an assignment to this changes the attribute, or one of its items."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_is_written(one, name) for one in target.elts)
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and target.attr == name


def _reads(tree: ast.AST, name: str) -> Iterator[ast.Attribute]:
    """Where the attribute's elements are read."""
    around = {id(inner): outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Attribute) and one.attr == name and isinstance(one.ctx, ast.Load):
            outer = around.get(id(one))
            if not _is_about(outer):
                yield one


def _is_about(outer: ast.AST | None) -> bool:
    """Whether an expression asks for the form of a tensor, or whether there is one, or is where an item goes."""
    if isinstance(outer, ast.Attribute):
        return outer.attr in _FORM
    if isinstance(outer, ast.Call):
        return isinstance(outer.func, ast.Name) and outer.func.id in _ABOUT
    if isinstance(outer, ast.Subscript):
        return not isinstance(outer.ctx, ast.Load)
    if isinstance(outer, ast.UnaryOp):
        return isinstance(outer.op, ast.Not)
    if isinstance(outer, ast.Compare):
        return all(isinstance(how, ast.Is | ast.IsNot | ast.In | ast.NotIn) for how in outer.ops)
    return isinstance(outer, ast.If | ast.BoolOp)
