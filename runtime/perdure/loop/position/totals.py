"""Exact sums: the same to the last bit, in any order, on any number of ranks.

Every float is a fraction, so fractions are added, and rounded once, when the sum is read. Pure. Called by
perdure.loop.position.accumulating.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from torch import Tensor

from perdure.errors import UserError


@dataclass(frozen=True)
class Total:
    """One sum."""

    finite: Fraction = Fraction(0)
    odd: float = 0.0
    """The sum of infinities and NaNs; 0 if all numbers are finite."""
    whole: bool = True
    """Whether all numbers were whole."""

    def __add__(self, other: Total) -> Total:
        return Total(self.finite + other.finite, self.odd + other.odd, self.whole and other.whole)

    def __neg__(self) -> Total:
        return Total(-self.finite, -self.odd, self.whole)

    @property
    def value(self) -> float:
        """The value that a script reads: an int if all numbers were whole, otherwise the nearest float."""
        if self.odd:
            return self.odd
        if self.whole:
            return int(self.finite)
        try:
            return float(self.finite)
        except OverflowError:
            return math.inf if self.finite > 0 else -math.inf

    def write(self) -> list[Any]:
        """As plain JSON."""
        return [str(self.finite), repr(self.odd) if self.odd else "", self.whole]

    @classmethod
    def read(cls, written: Iterable[Any]) -> Total:
        """Reads what `write` has written."""
        finite, odd, whole = written
        return cls(Fraction(finite), float(odd or 0.0), whole)


Named = Mapping[str, Total]
"""The sums of one accumulator, by the names that the script has given."""
Held = Mapping[str, Named]
"""The sums of several accumulators, by their names. Never changed in place."""


def read_number(value: Any, what: str) -> Total:
    """A number that a script adds. UserError if it is not one number."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, int):
        return Total(Fraction(value))
    if isinstance(value, float):
        return Total(Fraction(value), 0.0, False) if math.isfinite(value) else Total(Fraction(0), value, False)
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
    raise UserError(f"{what} is a {type(value).__name__}{shape}: give a number, or a tensor or array of one element")


def added(first: Named, second: Named) -> Named:
    """The sum of both."""
    return {**first, **{name: first.get(name, Total()) + total for name, total in second.items()}}


def together(parts: Iterable[Held]) -> Held:
    """The sum of all of them."""
    found: dict[str, Named] = {}
    for part in parts:
        for name, named in part.items():
            found[name] = added(found.get(name, {}), named)
    return found


def write(named: Named) -> dict[str, Any]:
    """As plain JSON."""
    return {name: total.write() for name, total in named.items()}


def read(written: Mapping[str, Any]) -> Named:
    """Reads what `write` has written."""
    return {name: Total.read(found) for name, found in written.items()}


def write_all(held: Held) -> dict[str, Any]:
    """As plain JSON, without accumulators that have no sums."""
    return {name: write(named) for name, named in held.items() if named}


def read_all(written: Mapping[str, Any]) -> Held:
    """Reads what `write_all` has written."""
    return {name: read(named) for name, named in written.items()}
