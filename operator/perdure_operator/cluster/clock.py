"""The API server's time, estimated from its answers: the clock of status, deadlines and Leases.

The operator's machine may be minutes off, and may be corrected while we run; deadlines would then count from a wrong
time. Each answer's Date header bounds the server's time at a moment between request and answer; the local monotonic
clock counts from there. `kube` feeds it, and `ClusterApi.server_time` reads it. Pure but for the clock.

There may be several servers behind one address, and one of them may be wrong. So no answer makes this clock jump: it
approaches what the newest answer says, and runs at most half again as fast or half as fast as time itself meanwhile. It
jumps forward only as far as this machine's own clock has jumped too, as after a pause of a virtual machine.

It begins at the first answer if this machine's own clock is near it, and at the earlier of the two if it is not: too
late a time would end all deadlines at once. If they are more than an hour apart there is no time until answers agree,
so nobody leads meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, NamedTuple

from perdure_operator.cluster.protocol import Unavailable

DRIFT: Final = 5e-4
"""Seconds per second that two clocks may drift apart."""

DOUBTFUL: Final = 3600.0
"""A larger gap would not be closed for hours: it is believed, and jumped over, once it has been the same in all answers
for CERTAIN_SECONDS."""
CERTAIN_SECONDS: Final = 60.0
VOTE_SECONDS: Final = 300.0
"""Servers that disagree never let it be the same for so long: it is also believed once most of the answers of this time
agree with it."""
_MOST: Final = 0.6
"""One server of three gives no such part of the answers."""
_FEWEST_VOTES: Final = 30

_NEAR: Final = 60.0
"""How far this machine's own clock may be off and still confirm an answer."""

_SLOW: Final = 0.5
"""How fast this clock runs while the server's is behind it, so that time never goes backwards."""
_FAST: Final = 1.5
"""How fast it runs while the server's is ahead of it, so that no deadline is over at once. If one server of three is
wrong, this clock is nearer to the other two: it turns back as fast as it goes astray."""


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

    def agrees(self, newer: _Bounds) -> bool:
        """Whether the two may be the same clock's."""
        return self.aged(newer.at).apart(newer) <= 0

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
        self._doubted_since = 0.0
        self._votes: deque[_Bounds] = deque()
        """Answers of the last VOTE_SECONDS, one a second at most."""
        self._unconfirmed = False
        """Whether this machine's own clock has been far from every answer so far."""
        self._last: tuple[float, float] | None = None
        self._behind = False
        """Whether it still approaches a server that is ahead."""
        self._own = 0.0
        """The machine's own clock minus the monotonic one, when this clock was last in step with the servers."""

    def heard(self, date: str | None, *, sent: float) -> None:
        """Record an answer's Date header; `sent` is the monotonic time at which the request went out."""
        seconds = _seconds(date)
        if seconds is None:
            return
        received = self.monotonic()
        # The header has whole seconds, rounded down, and was written between request and answer.
        heard = _Bounds(seconds - received, seconds + 1 - sent, received)
        self._count(heard)
        if self._bounds is None and not self._begins(heard):
            return
        known = self._bounds.aged(received) if self._bounds else heard
        agrees = known.apart(heard) <= 0
        if self._unconfirmed and self._own_clock(received).agrees(heard):
            self._unconfirmed = False
            self._jump(known, heard)
        elif known.apart(heard) > DOUBTFUL:
            if not self._is_certain(heard):
                return
            self._jump(known, heard)
        self._doubted = None
        # If the ranges exclude each other, a clock was set or another server answered: the newest may be right.
        self._bounds = known.met(heard) if agrees else heard
        if agrees and not self._behind:
            self._own = self._ahead_of_monotonic()

    def now(self) -> datetime:
        """The server's time, as well as it is known. Raises Unavailable while the first answers are doubtful."""
        if self._doubted and self._bounds is None:
            words = "the API server's time and this machine's are more than an hour apart: waiting until answers agree"
            raise Unavailable(words)
        if self._bounds is None:
            return self._fallback()
        at = self.monotonic()
        seconds = target = at + (self._bounds.low + self._bounds.high) / 2
        if self._last:
            before, then = self._last
            slowest, fastest = then + _SLOW * (at - before), then + _FAST * (at - before)
            paused = max(self._ahead_of_monotonic() - self._own, 0.0)
            seconds = min(max(target, slowest), fastest + paused)
            self._own += max(seconds - fastest, 0.0)
        self._behind = seconds < target
        self._last = (at, seconds)
        return datetime.fromtimestamp(seconds, UTC)

    def _begins(self, heard: _Bounds) -> bool:
        """Whether time can begin with this answer: at it, or at this machine's own clock if that is minutes behind."""
        own = self._own_clock(heard.at)
        if own.apart(heard) > DOUBTFUL:
            return self._is_certain(heard)
        self._unconfirmed = not own.agrees(heard)
        if heard.low > own.high:
            self._last = (heard.at, heard.at + self._ahead_of_monotonic())
        return True

    def _jump(self, known: _Bounds, heard: _Bounds) -> None:
        """Go on at what was heard, if that is ahead."""
        if heard.low > known.high:
            self._last = None

    def _count(self, heard: _Bounds) -> None:
        if not self._votes or heard.at - self._votes[-1].at >= 1:
            self._votes.append(heard)
        while heard.at - self._votes[0].at > VOTE_SECONDS:
            self._votes.popleft()

    def _is_certain(self, heard: _Bounds) -> bool:
        """Whether every answer of the last while, or most of a longer one, agrees with this one, which is far off."""
        if self._doubted is None or not self._doubted.agrees(heard):
            self._doubted, self._doubted_since = heard, heard.at
        return heard.at - self._doubted_since >= CERTAIN_SECONDS or self._is_elected(heard)

    def _is_elected(self, heard: _Bounds) -> bool:
        if heard.at - self._votes[0].at < VOTE_SECONDS - CERTAIN_SECONDS:
            return False
        return sum(one.agrees(heard) for one in self._votes) >= max(_FEWEST_VOTES, _MOST * len(self._votes))

    def _own_clock(self, at: float) -> _Bounds:
        own = self._ahead_of_monotonic()
        return _Bounds(own - _NEAR, own + _NEAR, at)

    def _ahead_of_monotonic(self) -> float:
        return self._fallback().timestamp() - self.monotonic()


@lru_cache(maxsize=4)
def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:  # from a proxy
        return None
