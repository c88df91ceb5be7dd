"""Keeps the newest answer to a question that a round asks again and again about the same values."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar, TypeVarTuple

_Values = TypeVarTuple("_Values")
_Answer = TypeVar("_Answer")


class NewestAnswer(Generic[*_Values, _Answer]):
    """A pure function of values that never change. Compares them by identity: their hash would cost more."""

    def __init__(self, function: Callable[[*_Values], _Answer]) -> None:
        self._function = function
        self._known: tuple[tuple[object, ...], _Answer] | None = None

    def __call__(self, *values: *_Values) -> _Answer:
        given: tuple[object, ...] = values
        known = self._known
        if known is None or not all(map(is_, known[0], given)):
            known = self._known = (given, self._function(*values))
        return known[1]
