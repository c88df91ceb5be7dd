"""The API server's time, told by its answers: the only clock of status, deadlines and Leases.

The machine under the operator may be minutes off, and may be set right while we run: deadlines were then counted from a
moment that never was. Each answer's Date header bounds the server's time at a moment between request and answer; the
local monotonic clock counts from there. Fed by `kube`, read through `ClusterApi.server_time`. Pure but for the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, NamedTuple

DRIFT: Final = 5e-4
"""How many seconds a second two clocks may drift apart: what was known of the other grows old."""

DOUBTFUL: Final = 3600.0
"""A jump of so many seconds has to be told twice in a row: what we have told cannot be taken back."""

_SLOW: Final = 0.5
"""While the server's clock is behind what has been told, ours runs at this speed until they meet."""


def utc_now() -> datetime:
    """The machine's own clock: for logs, and for a server that has never answered."""
    return datetime.now(UTC)


def since_boot() -> float:
    """Seconds that only grow, also while the machine sleeps: a Lease does not wait for it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class _Bounds(NamedTuple):
    """The server's time less the monotonic clock's lies between these two, as known at `at`."""

    low: float
    high: float
    at: float

    def aged(self, at: float) -> _Bounds:
        widening = DRIFT * max(at - self.at, 0.0)
        return _Bounds(self.low - widening, self.high + widening, at)

    def apart(self, other: _Bounds) -> float:
        """How many seconds lie between the two; not above 0 where both may be right."""
        return max(self.low, other.low) - min(self.high, other.high)

    def met(self, newer: _Bounds) -> _Bounds:
        """What both say."""
        return _Bounds(max(self.low, newer.low), min(self.high, newer.high), newer.at)


class ServerClock:
    """Off by at most half of `1 s + the round trip` after one answer, and by less than 0.1 s after a few dozen.

    What it tells never runs backwards and never stands still.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = since_boot, fallback: Callable[[], datetime] = utc_now
    ) -> None:
        self.monotonic = monotonic
        self._fallback = fallback
        self._bounds: _Bounds | None = None
        self._doubted: _Bounds | None = None
        self._told: tuple[float, float] | None = None

    def heard(self, date: str | None, *, sent: float) -> None:
        """Take in an answer's Date header; `sent` is when the request went out by the monotonic clock."""
        seconds = _seconds(date)
        if seconds is None:
            return
        received = self.monotonic()
        # The header has whole seconds, rounded down, and was written somewhere between request and answer.
        heard = _Bounds(seconds - received, seconds + 1 - sent, received)
        known = self._bounds.aged(received) if self._bounds else heard
        if known.apart(heard) > DOUBTFUL and (self._doubted is None or self._doubted.aged(received).apart(heard) > 0):
            self._doubted = heard
            return
        self._doubted = None
        # Bounds that exclude each other: a clock was set, or another server has answered. The newest is right.
        self._bounds = known.met(heard) if known.apart(heard) <= 0 else heard

    def now(self) -> datetime:
        """The server's time as far as it is known."""
        if self._bounds is None:
            return self._fallback()
        at = self.monotonic()
        seconds = at + (self._bounds.low + self._bounds.high) / 2
        if self._told:
            before, then = self._told
            seconds = max(seconds, then + _SLOW * (at - before))
        self._told = (at, seconds)
        return datetime.fromtimestamp(seconds, UTC)


@lru_cache(maxsize=4)
def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:  # a proxy's own idea of a date
        return None
