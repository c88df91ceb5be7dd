"""Finds constructs around a source that make a resumed run differ.

`itertools.cycle` keeps the batches of a pass and repeats them without a request; `enumerate` counts from a number of
the script's; `islice`, or a `range` in a `zip`, ends a pass after so many batches; `zip` draws from the iterators
before a source first. None of them asks the source, but all hold its iterator, and the garbage collector knows the
holders of an object. Asking it takes tens of milliseconds if much is imported, so it runs once a run, not once a batch.
A script's own loop (`for batch in kept`) is not detected. Called by perdure.loop.data.source.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import Any, Final

_BETWEEN: Final = (
    zip,
    map,
    filter,
    itertools.islice,
    itertools.zip_longest,
    itertools.takewhile,
    itertools.dropwhile,
    itertools.starmap,
    itertools.chain,
    tuple,
)
"""Iterators that only pass on what they get; zip and map keep theirs in a tuple."""
_RANGES: Final = (type(iter(range(1))), type(iter(range(1 << 64))))
_ZIPS: Final = (zip, itertools.zip_longest)
_DEPTH: Final = 4


def is_repeated(walk: Iterator[Any]) -> bool:
    """Whether itertools.cycle keeps the pass that `walk` makes, to repeat it."""
    return any(isinstance(holder, itertools.cycle) for holder in _holders(walk))


def counted_from(walk: Iterator[Any]) -> int | None:
    """The number that an enumerate() around `walk` has reached; None without one."""
    for holder in _holders(walk):
        if isinstance(holder, enumerate):
            arguments: Any = holder.__reduce__()[1]
            return int(arguments[1])
    return None


def limit_and_drawn_before(walk: Iterator[Any]) -> tuple[int | None, list[Any]]:
    """After how many batches an islice() around `walk`, or a range() beside it in a zip(), ends its loop; None if
    nothing of that kind does. From Python 3.14 on no islice tells. And the iterators that a zip() around `walk` draws
    from before it, in order."""
    holders = _holders(walk)
    return _limited_to(holders), _drawn_before(walk, holders)


def _limited_to(holders: Sequence[Any]) -> int | None:
    found = [_end_of(holder) for holder in holders if isinstance(holder, itertools.islice)]
    rows = [row for holder in holders if isinstance(holder, zip) for row in gc.get_referents(holder)]
    beside = [one for row in rows if isinstance(row, tuple) for one in row if isinstance(one, _RANGES)]
    found += [len(one.__reduce__()[1][0]) for one in beside]
    return min((end for end in found if end is not None), default=None)


def _end_of(limited: Any) -> int | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            arguments = limited.__reduce__()[1]
    except TypeError:
        return None
    return arguments[2] if len(arguments) > 2 else None


def _drawn_before(walk: Iterator[Any], holders: Sequence[Any]) -> list[Any]:
    ours = {id(one) for one in (walk, *holders)}
    kept = [one for holder in holders if isinstance(holder, _ZIPS) for one in gc.get_referents(holder)]
    found: list[Any] = []
    for row in kept:
        if isinstance(row, tuple) and any(id(one) in ours for one in row):
            found += itertools.takewhile(lambda one: id(one) not in ours, row)
    return found


def draws_from(iterator: Any, thing: Any) -> bool:
    """Whether an iterator is this thing or comes from it, also through iterators that only pass on what they get."""
    made = [one for one in getattr(thing, "__dict__", {}).values() if isinstance(one, Iterator)]
    level = [iterator]
    for _ in range(_DEPTH):
        if any(one is thing or any(one is other for other in made) for one in level):
            return True
        passing = [one for one in level if isinstance(one, (*_BETWEEN, enumerate, GeneratorType))]
        level = gc.get_referents(*passing) if passing else []
    return False


def _holders(walk: Iterator[Any]) -> list[Any]:
    """The holders of an iterator, also through iterators that only pass on what they get.

    Keeps a reference to nothing else: lists made here refer to the object too, and a list that held itself would keep
    alive a pass that the script has dropped.
    """
    found: list[Any] = []
    level: list[Any] = [walk]
    for _ in range(_DEPTH):
        level = [one for one in gc.get_referrers(*level) if isinstance(one, (*_BETWEEN, itertools.cycle, enumerate))]
        found += level
        if not level:
            break
    return found
