"""Finds averages of weights that a script keeps in its own tensors: in a mapping, a list, or any object's attribute.

Most tensors in a script's variables are not training state: batches, losses, metrics, gradients, copies. An average is
recognized by its numbers. Its tensors have the shapes of registered weights, and do not equal them, and it either

* follows the weights: in the last step all its tensors moved the same share of the way towards them; or
* lags behind them: its tensors are similar to the weights, are the same objects as in the first step with other
  numbers, and did not change in the last step. Examples are an average of every tenth step, an average of epochs, and
  the best weights so far.

Called by perdure.session.forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perdure.state.write_detection import elements_of, numbers_of

Numbers = NDArray[np.float64]
_LEAST: Final = 8
"""With fewer numbers a match may be chance."""
_SHARE: Final = 0.6
"""An average of two weights moves half of the way. What moves further was computed from something near the weight."""
_REST: Final = 0.02
"""The part of a step's change that the share need not explain, besides rounding."""
_ROUNDED: Final = 8
"""A change counts if it is at least this many times the precision."""
_ALIKE: Final = 0.9
"""The lowest correlation between a weight and an average that lags behind it."""
_APART: Final = 0.05
"""How much the shares of one average's tensors may differ."""
_TENSORS: Final = 2
"""The fewest tensors of an average: a model has at least two."""
_MOST: Final = 0.5
"""The part of a holder's tensors that have to move the same share. Layers that hardly move have others by rounding."""
_SAME_SHAPE: Final = 64
"""How many weights of one shape are compared."""

Weights = Mapping[tuple[int, ...], Sequence[Numbers]]
"""Some numbers of each weight, by its shape."""


@dataclass(frozen=True)
class KeptTensor:
    """A tensor as it was at one moment. It is not kept alive."""

    get: Callable[[], Any]
    shape: tuple[int, ...]
    numbers: Numbers
    elements: bytes | None
    precision: float


Kept = Mapping[str, KeptTensor]
"""Tensors by the path at which the script has them."""


def shapes_of(tensors: Iterable[Tensor]) -> frozenset[tuple[int, ...]]:
    """The shapes in which an average could be."""
    return frozenset(tuple(one.shape) for one in tensors if one.is_floating_point())


def kept_tensors(
    parts: Iterable[tuple[str, Any]], shapes: Container[tuple[int, ...]], saved: Container[int]
) -> dict[str, KeptTensor]:
    """The script's values that could be averages. `saved`: addresses of memory that is known already."""
    found = {}
    for path, value in parts:
        if type(value) in (Tensor, nn.Parameter) and tuple(value.shape) in shapes and _is_plain(value):
            numbers = None if value.untyped_storage().data_ptr() in saved else numbers_of(value)
            if numbers is not None and len(numbers) >= _LEAST:
                precision = float(torch.finfo(value.dtype).eps)
                found[path] = KeptTensor(weakref.ref(value), tuple(value.shape), numbers, elements_of(value), precision)
    return found


def numbers_by_shape(tensors: Iterable[Tensor]) -> Weights:
    """Some numbers of each of these weights."""
    found: dict[tuple[int, ...], list[Numbers]] = {}
    for one in tensors:
        same = found.setdefault(tuple(one.shape), [])
        if len(same) < _SAME_SHAPE and _is_plain(one) and (numbers := numbers_of(one)) is not None:
            same.append(numbers)
    return found


def averages(
    first: Kept, newer: Kept, now: Kept, weights: Sequence[Weights], copies: Container[bytes | None]
) -> list[str]:
    """The paths of lists, mappings and other holders of averages.

    `first`: after the first step; `newer`: one step ago. `weights`: after that step, and now. `copies`: present and
    former values of weights.
    """
    shares: dict[str, list[float | None]] = {}
    lagging: dict[str, int] = {}
    for path, kept in now.items():
        before = newer.get(path)
        if before is None or before.shape != kept.shape or kept.elements in copies:
            continue
        holder = path.rpartition("[" if path.endswith("]") else ".")[0]
        near = [numbers for one in weights for numbers in one.get(kept.shape, ())]
        if before.elements != kept.elements:
            shares.setdefault(holder, []).append(_share(before.numbers, kept, near))
        elif _is_other(first.get(path), kept) and any(_is_like(kept.numbers, one) for one in near):
            lagging[holder] = lagging.get(holder, 0) + 1
    found = [holder for holder, several in shares.items() if _is_one(several)]
    return [*found, *(holder for holder, number in lagging.items() if number >= _TENSORS)]


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_floating_point() and not tensor.is_meta


def _share(before: Numbers, kept: KeptTensor, weights: Iterable[Numbers]) -> float | None:
    """Which share of their way to one of the weights all numbers have gone; None if they have not, or if what they have
    gone is no more than rounding."""
    gone, rounding = kept.numbers - before, kept.precision * float(np.abs(kept.numbers).max())
    best, share = _REST * _size(gone) + rounding, None
    for way in (weight - before for weight in weights) if _size(gone) >= _ROUNDED * rounding else ():
        one = float(way @ gone) / float(way @ way or 1)
        if 0 < one <= _SHARE and (rest := _size(gone - one * way)) <= best:
            best, share = rest, one
    return share


def _is_one(shares: Sequence[float | None]) -> bool:
    """Whether most tensors have gone the same share. Gradients of one tensor may look so by chance."""
    known = sorted(share for share in shares if share is not None)
    middle = known[len(known) // 2] if known else 0
    agreeing = [share for share in known if abs(share - middle) <= _APART * middle]
    return len(agreeing) >= max(_TENSORS, _MOST * len(shares))


def _is_other(first: KeptTensor | None, kept: KeptTensor) -> bool:
    """Whether the same tensor had other numbers at first."""
    known = first is not None and first.get() is not None and first.get() is kept.get()
    return known and first is not None and first.elements != kept.elements


def _is_like(numbers: Numbers, weight: Numbers) -> bool:
    one, other = numbers - numbers.mean(), weight - weight.mean()
    sizes = _size(one) * _size(other) * len(numbers)
    return bool(sizes > 0 and float(one @ other) >= _ALIKE * sizes)


def _size(numbers: Numbers) -> float:
    return float(np.sqrt(np.square(numbers).mean()))
