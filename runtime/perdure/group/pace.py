"""Decides which calls are checks: every call while steps are long, every few calls while they are short.

A reduce costs half a millisecond of CPU in gloo's threads, on every rank. That is a lot for a step of two milliseconds,
and a request to leave need not spread that fast. So the ranks check about once per interval, and at least once in
MOST_CALLS calls: a step may suddenly take long, and a rank can pass on a request only at the next check.

All ranks must check at the same calls. So each rank proposes a number of calls until the next check, and the smallest
proposal applies to all once it is read. A call of another kind is always a check; all ranks see it alike.
Pure; the caller passes the clock. Used by perdure.group.agreement.
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
        """Count a call, and say whether it is a check. Call `agree` with the last result first."""
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
        """Start a check; return this rank's proposal: the number of calls until the next one.

        The proposal is one interval of average calls, at most two intervals of the longest call since the last check,
        and at most twice the present number.
        """
        wished = float(self._every)
        if self._longest:
            usual = math.ceil(self._interval * self._calls / self._whole)
            wished = min(usual, 2 * self._interval / self._longest)
        self._calls, self._longest, self._whole = 0, 0.0, 0.0
        return max(1, min(int(wished), 2 * self._every, MOST_CALLS))

    def agree(self, every: int) -> None:
        """From now on every `every`-th call is a check."""
        self._every = every
