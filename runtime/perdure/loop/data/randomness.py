"""Finds random generators that a dataset, or a function, keeps for itself, as far as they can be seen.

No checkpoint holds such a generator. Draws from torch's, NumPy's and Python's global generators continue after a
resume; a generator of its own starts from the beginning. It cannot be saved from here, because a loader's workers have
copies of it. So each one that can be seen is reported once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

_GENERATORS: Final = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)
_DEPTH: Final = 4
_OBJECTS: Final = 200
"""How many objects are looked at: a dataset may hold a list of a million samples."""

_PLAIN: Final = (list, tuple, range, torch.Tensor, np.ndarray)
"""Types that return what they hold."""


def own_generators(thing: Any) -> list[str]:
    """Where `thing`, a dataset or a function, keeps generators: paths such as `transform.rng`."""
    found: list[str] = []
    seen: set[int] = set()
    waiting = [(name, value, 1) for name, value in _parts(thing)]
    while waiting and len(seen) < _OBJECTS:
        path, value, depth = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _GENERATORS):
            found.append(path)
        elif depth < _DEPTH:
            waiting += [
                (f"{path}{name if name[0] == '[' else f'.{name}'}", part, depth + 1) for name, part in _parts(value)
            ]
    return found


def in_no_checkpoint(whose: str, path: str) -> str:
    """The report about such a generator."""
    return (
        f"{whose} has a random generator of its own, {path}: its state is in no checkpoint, so what it draws "
        f"differs after a resume; draw from torch's, NumPy's or Python's global one, or seed by sample"
    )


def draws_nothing(dataset: Any) -> bool:
    """Whether its samples involve no generator. Only torch's own datasets are known, not their subclasses."""
    kind = type(dataset)
    if kind is TensorDataset:
        return all(map(draws_nothing, dataset.tensors))
    if kind is Subset:
        return draws_nothing(dataset.dataset) and draws_nothing(dataset.indices)
    if kind is ConcatDataset:
        return all(map(draws_nothing, dataset.datasets))
    if kind is StackDataset:
        held = dataset.datasets
        return all(map(draws_nothing, held.values() if isinstance(held, dict) else held))
    return kind in _PLAIN


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, list | tuple):
        yield from ((f"[{number}]", item) for number, item in enumerate(thing[:8]))
        return
    if isinstance(thing, torch.Tensor | np.ndarray | type):
        return
    if hasattr(thing, "__self__"):
        yield "self", thing.__self__
    names = getattr(getattr(thing, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(thing, "__closure__", None) or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from getattr(thing, "__dict__", {}).items()
