"""What an object of a script holds, with the paths by which people would name it.

Nothing of the script's is called: no property, and no method of a custom list or mapping.

Called by perdure.state.variables and perdure.loop.data.randomness.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import FunctionType, GeneratorType, MemberDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

_DEPTH: Final = 4
"""How deep in an object a part may be."""
_ITEMS: Final = 64
"""How many items of a list or a mapping are looked at."""
_LISTS: Final[tuple[Any, ...]] = (list, tuple, deque, set, frozenset)
_PASSING: Final = (GeneratorType, map, filter, zip)
"""Iterators that hold what they draw from, without a name."""
_CLOSED: Final = (type, ModuleType, Tensor, np.ndarray, str, bytes, int, float)
MODULE_OWN: Final = frozenset(vars(nn.Module()))
"""What torch keeps in a module."""


def parts_of(
    thing: Any, name: str, seen: set[int], *, most: int, enters: Callable[[Any], bool] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """`thing` and its parts, nearer ones first, each once and with its path, which begins with `name`.

    `seen` has the ids of all objects that were looked at; these become at most `most`. Parts of an object that `enters`
    refuses are left out.
    """
    waiting = deque([(name, thing, 0)])
    while waiting and len(seen) < most:
        path, value, depth = waiting.popleft()
        if id(value) in seen or _is_global(value):
            continue
        seen.add(id(value))
        yield path, value
        if depth < _DEPTH and enters(value):
            waiting += [(_joined(path, inner), part, depth + 1) for inner, part in _inside(value)]


def _is_global(value: Any) -> bool:
    """Whether it is a generator that every checkpoint holds: torch's functions and Python's have it, too."""
    if isinstance(value, torch.Generator):
        return value is torch.default_generator or any(value is one for one in torch.cuda.default_generators)
    python = getattr(random.random, "__self__", None)
    return value is python or (isinstance(value, np.random.RandomState) and value is np.random.mtrand._rand)  # noqa: SLF001


def _joined(path: str, inner: str) -> str:
    return f"{path}.{inner}" if path and inner and inner[0] != "[" else f"{path}{inner}"


def _inside(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds itself."""
    if isinstance(thing, _CLOSED):
        return
    listed = next((kind for kind in _LISTS if isinstance(thing, kind)), None)
    if listed is not None:
        names = "[{}]" if issubclass(listed, list | tuple | deque) else ""
        yield from ((names.format(number), one) for number, one in enumerate(islice(listed.__iter__(thing), _ITEMS)))
    if isinstance(thing, dict):
        yield from (
            (f"[{key!r}]" if type(key) in (str, int) else "", one) for key, one in islice(dict.items(thing), _ITEMS)
        )
    elif isinstance(thing, partial):
        yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
    elif isinstance(thing, MethodType | MethodWrapperType):
        yield "self", thing.__self__
        yield "", getattr(thing, "__func__", None)
    elif isinstance(thing, FunctionType):
        yield from _closed_over(thing)
    elif isinstance(thing, _PASSING):
        yield from (("", one) for one in gc.get_referents(thing))
    yield from _attributes(thing)


def _closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that it closes over, and its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from (("", one) for one in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(thing, "__dict__", None)
    if isinstance(thing, nn.Module):
        for name, part in thing._modules.items():  # noqa: SLF001 - without those of another name
            yield f"[{name}]" if name.isdecimal() else name, part
        yield from ((name, one) for name, one in vars(thing).items() if name not in MODULE_OWN)
    elif type(own) is dict:
        yield from list(own.items())
    for kind in type(thing).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType) and hasattr(thing, name):
                yield name, getattr(thing, name)
