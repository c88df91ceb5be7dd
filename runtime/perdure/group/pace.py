"""Which calls of a rank are checks: all of them while steps are long, every few where they are short.

A reduce costs half a millisecond of CPU in gloo's own threads, on every rank. Where a step takes two milliseconds that
is much, and nothing is gained: a request to leave need not be known within two milliseconds. So about one check is
made in an interval, and never fewer than one in MOST_CALLS: steps may become long all of a sudden, and until the
next check nobody can tell the others.

How many calls make a check is never a rank's own decision: each says what it would like, and the least of it holds
for all from the moment it is read. What every rank sees alike, a call of another kind, is a check without being agreed.
Pure; the clock is the caller's. Used by perdure.group.agreement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

MOST_CALLS: Final = 10


class Pace:
    """Counts the calls of one rank."""

    def __init__(self, interval: float, now: Callable[[], float]) -> None:
        """With an `interval` of 0 every call is a check."""
        self._interval = interval
        self._now = now
        self._every = 1
        self._calls = 0
        self._kind: int | None = None
        self._last: float | None = None
        self._longest = self._whole = 0.0

    def is_check(self, kind: int) -> bool:
        """Counts a call; what was agreed before has to be known by now."""
        now = self._now()
        took = math.inf if self._last is None else now - self._last
        self._whole += took
        self._longest = max(self._longest, took)
        self._last = now
        if kind != self._kind:
            self._every, self._kind = 1, kind
        self._calls += 1
        return self._calls >= self._every

    def checked(self) -> int:
        """A check is made; how many calls the next one may be away, as far as this rank can tell.

        An interval's worth of usual calls, no more than two intervals' of the longest since the last check, and no more
        than twice as many as now.
        """
        wished = float(self._every)
        if self._longest:
            usual = math.ceil(self._interval * self._calls / self._whole)
            wished = min(usual, 2 * self._interval / self._longest)
        self._calls, self._longest, self._whole = 0, 0.0, 0.0
        return max(1, min(int(wished), 2 * self._every, MOST_CALLS))

    def agree(self, every: int) -> None:
        """From here on every so many calls are one check."""
        self._every = every
