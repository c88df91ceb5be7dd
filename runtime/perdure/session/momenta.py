"""Finds momentum that a script keeps in its own tensors and updates its weights with, without an optimizer.

Momentum is recognized by its numbers: a step computes the new tensor from the old one and from the gradient of a weight
of the same shape, or the gradient's square, with any factors, and with a part of the weight for a decay. A gradient is
not computed from the old tensor, and an average of weights is not computed from a gradient.

Only weights without an optimizer are examined, so most scripts have none. Their gradients are noted where the backward
pass leaves them, because scripts drop them after the step. With several ranks those are not the mean of all ranks yet.
There only momentum whose gradients are kept until the next step is found.

Called by perdure.session.forgotten.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from torch import Tensor

from perdure.session.averages import Kept, KeptTensor, Numbers
from perdure.state.write_detection import numbers_of

_LEAST_SHARE: Final = 0.05
"""The smallest part of the old tensor in the new one. Momentum keeps a half or more."""
_MOST_SHARE: Final = 1.001
"""The largest part: a sum of all gradients, as in Adagrad, keeps all of it."""
_ROUNDED: Final = 8
"""Rounding may add this many times the precision; a change counts if it is as many times larger again."""
_APART: Final = 0.02
"""How much the shares of one holder's tensors may differ."""
_TENSORS: Final = 2
"""The fewest tensors: a single one may match by chance."""
_STEPS: Final = re.compile(r"\[[^\]]*\]|[^\[]+?(?=[.\[]|$)")
"""The variable, and each item or attribute on the way from it."""


class NotedGradients:
    """The gradients of one step, of weights that no optimizer has."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        noted = [(one, numbers_of(one)) for one in weights if one.requires_grad and one.is_leaf]
        self._before = {id(one): (weakref.ref(one), numbers) for one, numbers in noted if numbers is not None}
        """Some numbers of each weight before the step."""
        self._found: dict[int, Numbers] = {}
        """The same elements of their gradients."""
        self._hooks = [one.register_post_accumulate_grad_hook(self._note) for one, _ in noted]

    def _note(self, weight: Tensor) -> None:
        gradient = None if weight.grad is None else numbers_of(weight.grad)
        if gradient is not None and gradient.any():
            self._found[id(weight)] = gradient

    def end(self) -> None:
        """The step is done: gradients that the script still has replace those that were noted."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for weight in (reference() for reference, _ in self._before.values()):
            if weight is not None:
                self._note(weight)

    def of(self, shape: tuple[int, ...]) -> Iterator[tuple[Numbers, Numbers]]:
        """Weights of one shape, each with its gradient."""
        for number, (reference, before) in self._before.items():
            weight, gradient = reference(), self._found.get(number)
            if weight is not None and weight.shape == shape and gradient is not None and len(gradient) == len(before):
                yield before, gradient


def momenta(newer: Kept, now: Kept, gradients: NotedGradients) -> list[str]:
    """The paths of lists, mappings and other holders of momentum. `newer`: one step ago."""
    shares = dict(_shares(newer, now, gradients))
    found: list[str] = []
    for holder_of in (_holder, _holder_by_name):
        by_holder: dict[str, list[str]] = {}
        for path in shares:
            by_holder.setdefault(holder_of(path), []).append(path)
        for holder, paths in by_holder.items():
            if holder and _agree([shares[path] for path in paths]):
                found.append(holder)
                shares = {path: share for path, share in shares.items() if path not in paths}
    return found


def _shares(newer: Kept, now: Kept, gradients: NotedGradients) -> Iterator[tuple[str, float]]:
    """The part that each tensor keeps, by path, for tensors that a step computed from themselves and a gradient."""
    for path, kept in now.items():
        before = newer.get(path)
        if before is not None and before.shape == kept.shape and before.elements != kept.elements:
            made = (_share(before.numbers, kept, *one) for one in gradients.of(kept.shape))
            if (share := next((one for one in made if one is not None), None)) is not None:
                yield path, share


def _holder(path: str) -> str:
    """What holds the tensors of all weights."""
    return "".join(_STEPS.findall(path)[:-1])


def _holder_by_name(path: str) -> str:
    """What holds a mapping for each weight, with the name of the tensor in it."""
    steps = _STEPS.findall(path)
    return f"{''.join(steps[:-2])}[...]{steps[-1]}" if len(steps) >= 3 else ""


def _share(before: Numbers, kept: KeptTensor, weight: Numbers, gradient: Numbers) -> float | None:
    """The part of the old numbers in the new ones; None if the new ones do not follow from these and the gradient."""
    for change in (gradient, gradient * gradient):
        sizes = [float(np.abs(one).max()) for one in (before, change, kept.numbers)]
        if min(sizes) == 0:
            continue
        rounding = _ROUNDED * kept.precision * max(sizes[0], sizes[2])
        parts = np.stack([before, change, weight])
        share = float(np.linalg.lstsq((parts / _size_of_each(parts)).T, kept.numbers, rcond=None)[0][0]) / sizes[0]
        needed = min(_rest(parts[[1, 2]], kept.numbers), _rest(parts[[0, 2]], kept.numbers))
        if _LEAST_SHARE <= share <= _MOST_SHARE and _rest(parts, kept.numbers) <= rounding < needed / _ROUNDED:
            return share
    return None


def _rest(parts: Numbers, whole: Numbers) -> float:
    """The residual of these numbers as a linear combination of the parts."""
    scaled = (parts / _size_of_each(parts)).T
    factors = np.linalg.lstsq(scaled, whole, rcond=None)[0]
    return float(np.abs(scaled @ factors - whole).max())


def _size_of_each(parts: Numbers) -> Numbers:
    sizes: Numbers = np.abs(parts).max(1, keepdims=True)
    return np.where(sizes > 0, sizes, 1)


def _agree(shares: list[float]) -> bool:
    """Whether enough tensors keep the same share."""
    middle = sorted(shares)[len(shares) // 2]
    return sum(abs(share - middle) <= _APART * middle for share in shares) >= _TENSORS
