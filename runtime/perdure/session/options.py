"""Reports misspelt options where they are given, with the nearest option that exists.

An option that is passed on to torch would otherwise fail late and far away, for example in a loader's first batch, or
on some ranks only. Python 3.11 suggests no name. Only names are checked, no values. Called by `Session`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from perdure.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")


def checked(*beyond: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Checks a method's options before each call. Options that the method does not have belong to one of `beyond`."""

    def wrapped(method: Callable[P, T]) -> Callable[P, T]:
        known = [name for function in (method, *beyond) for name in _options(function)]

        @wraps(method)
        def call(*given: P.args, **options: P.kwargs) -> T:
            if unknown := options.keys() - set(known):
                raise UserError(_words(method.__name__, sorted(unknown)[0], known))
            return method(*given, **options)

        return call

    return wrapped


def read_limit(count: int | None) -> int | None:
    """How many checkpoints may fail in a row. UserError for anything but a whole number of 1 or more."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise UserError(f"max_save_failures is {count!r}: give a whole number of 1 or more, or None for no limit")
    return count


def _options(function: Callable[..., Any]) -> Iterable[str]:
    for name, parameter in inspect.signature(function).parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and name not in ("self", "cls"):
            yield name


def _words(method: str, option: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(option, known, 1)
    hint = f"write {near[0]}=" if near else f"there are {', '.join(dict.fromkeys(known))}"
    return f"{method}({option}=...): there is no such option: {hint}"
