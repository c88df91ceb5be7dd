"""What of the standard library a script has put around a source, where that makes a resumed run differ.

`itertools.cycle` keeps the batches of a pass and hands them out again without asking; `enumerate` counts from a number
of the script's. Neither asks its source for leave, but both hold its iterator, and the garbage collector knows who
holds what. That takes tens of milliseconds where much is imported: so it is asked once a run, not once a batch. What a
script does by itself (`for batch in kept`) is not seen. Called by perdure.data.source.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any, Final

_BETWEEN: Final = (zip, map, filter, itertools.islice, itertools.zip_longest, tuple)
"""Those that only pass on what they get; zip and map keep their iterators in a tuple."""
_DEPTH: Final = 4


def is_repeated(walk: Iterator[Any]) -> bool:
    """Whether the pass that `walk` makes is kept by itertools.cycle, which hands it out again."""
    return any(isinstance(holder, itertools.cycle) for holder in _holders(walk))


def counted_from(walk: Iterator[Any]) -> int | None:
    """The number at which an enumerate() around `walk` stands; None where there is none."""
    for holder in _holders(walk):
        if isinstance(holder, enumerate):
            arguments: Any = holder.__reduce__()[1]
            return int(arguments[1])
    return None


def _holders(walk: Iterator[Any]) -> list[Any]:
    """Whoever holds it, also through iterators that only pass on what they get.

    Nothing but these is kept: among all that refers to an object are the lists that are made here, and a list that
    holds itself would keep a pass alive that the script has given up.
    """
    found: list[Any] = []
    level: list[Any] = [walk]
    for _ in range(_DEPTH):
        level = [one for one in gc.get_referrers(*level) if isinstance(one, (*_BETWEEN, itertools.cycle, enumerate))]
        found += level
        if not level:
            break
    return found
