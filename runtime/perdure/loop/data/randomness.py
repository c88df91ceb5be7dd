"""Finds random generators that a dataset, or a function, keeps for itself, as far as they can be seen.

No checkpoint holds such a generator. Draws from torch's, NumPy's and Python's global generators continue after a
resume; a private generator starts from the beginning. It cannot be saved from here, because a loader's workers have
copies of it. So each one that can be seen is reported once.
"""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from perdure.state.parts import parts_of

_GENERATORS: Final = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)
_OBJECTS: Final = 200
"""How many objects are looked at: a dataset may hold a list of a million samples."""

_PLAIN: Final = (list, tuple, range, torch.Tensor, np.ndarray)
"""Types that return what they hold."""


def own_generators(thing: Any) -> list[str]:
    """Where `thing`, a dataset or a function, keeps generators: paths such as `transform.rng`."""
    return [path for path, part in parts_of(thing, "", set(), most=_OBJECTS) if isinstance(part, _GENERATORS)]


def in_no_checkpoint(whose: str, path: str) -> str:
    """The report about such a generator."""
    return (
        f"{whose} has a private random generator, {path}: its state is in no checkpoint, so what it draws "
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
