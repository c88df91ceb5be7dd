"""The API server's time, estimated from its answers: the clock of status, deadlines and Leases.

The operator's machine may be minutes off, and may be corrected while we run; deadlines would then count from a wrong
time. Each answer's Date header bounds the server's time at a moment between request and answer; the local monotonic
clock counts from there. `kube` feeds it, and `ClusterApi.server_time` reads it. Pure but for the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, NamedTuple

DRIFT: Final = 5e-4
"""Seconds per second that two clocks may drift apart."""

DOUBTFUL: Final = 3600.0
"""Accept a larger jump only if two consecutive answers show it: times already used cannot be taken back."""

_SLOW: Final = 0.5
"""How fast this clock runs while the server's is behind it, so that time never goes backwards."""


def utc_now() -> datetime:
    """The machine's own clock, for logs and until the server first answers."""
    return datetime.now(UTC)


def since_boot() -> float:
    """Seconds that also count while the machine sleeps, as a Lease does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class _Bounds(NamedTuple):
    """The server's time minus the monotonic clock's lies between these two, as known at `at`."""

    low: float
    high: float
    at: float

    def aged(self, at: float) -> _Bounds:
        widening = DRIFT * max(at - self.at, 0.0)
        return _Bounds(self.low - widening, self.high + widening, at)

    def apart(self, other: _Bounds) -> float:
        """Seconds between the two ranges; 0 or less if they overlap."""
        return max(self.low, other.low) - min(self.high, other.high)

    def met(self, newer: _Bounds) -> _Bounds:
        """The intersection of the two ranges."""
        return _Bounds(max(self.low, newer.low), min(self.high, newer.high), newer.at)


class ServerClock:
    """The server's time: within half of `1 s + the round trip` after one answer, within 0.1 s after a few dozen.

    It never runs backwards and never stands still.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = since_boot, fallback: Callable[[], datetime] = utc_now
    ) -> None:
        self.monotonic = monotonic
        self._fallback = fallback
        self._bounds: _Bounds | None = None
        self._doubted: _Bounds | None = None
        self._last: tuple[float, float] | None = None

    def heard(self, date: str | None, *, sent: float) -> None:
        """Record an answer's Date header; `sent` is the monotonic time at which the request went out."""
        seconds = _seconds(date)
        if seconds is None:
            return
        received = self.monotonic()
        # The header has whole seconds, rounded down, and was written between request and answer.
        heard = _Bounds(seconds - received, seconds + 1 - sent, received)
        known = self._bounds.aged(received) if self._bounds else heard
        if known.apart(heard) > DOUBTFUL and (self._doubted is None or self._doubted.aged(received).apart(heard) > 0):
            self._doubted = heard
            return
        self._doubted = None
        # If the ranges exclude each other, a clock was set or another server answered: the newest is right.
        self._bounds = known.met(heard) if known.apart(heard) <= 0 else heard

    def now(self) -> datetime:
        """The server's time, as well as it is known."""
        if self._bounds is None:
            return self._fallback()
        at = self.monotonic()
        seconds = at + (self._bounds.low + self._bounds.high) / 2
        if self._last:
            before, then = self._last
            seconds = max(seconds, then + _SLOW * (at - before))
        self._last = (at, seconds)
        return datetime.fromtimestamp(seconds, UTC)


@lru_cache(maxsize=4)
def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:  # from a proxy
        return None
