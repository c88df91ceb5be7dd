"""Which key is due when: de-duplicated, serial per key, with a backoff per key. Pure: the time is passed in.

A key waits at most once; its earliest due time counts. A key that is added while it is busy is due as soon as that work
is done, so that no change is lost and no key is worked on twice at once. Changes of a failed key bring it forward at a
bounded rate: failures do not hold up what is urgent, and an overloaded server is not asked again at each of its own
events. Wrapped by `queue`; `leader`, `guard`, `install` and `progress` use its `backoff` alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 60.0
SOONEST_SECONDS: Final = 0.05
"""The shortest delay after a failure, even after a change."""
EARLY_SECONDS: Final = 6.0
"""Changes bring a failing key forward once per this many seconds, and EARLY_AT_ONCE times more after a calm."""
EARLY_AT_ONCE: Final = 2


@dataclass(slots=True)
class _BackOff:
    failures: int = 0
    until: float = 0.0
    soonest: float = 0.0
    """Changes bring the key forward no further than this."""
    calm_at: float = 0.0
    """When all of EARLY_AT_ONCE is available again."""


def backoff(failures: int, *, first: float, longest: float = LONGEST_SECONDS, at_least: float | None = None) -> float:
    """Seconds to wait after that many failures in a row: `first`, then doubled each time, up to `longest`.

    `at_least` is what the server asks for (Retry-After), if it asks.
    """
    return min(longest, max(at_least or 0.0, first * 2.0 ** min(failures - 1, 30)))


class Schedule(Generic[K]):
    """Due times of keys. No operation slows down noticeably as more keys wait."""

    def __init__(self, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = itertools.count()
        self._busy: set[K] = set()
        self._back_offs: dict[K, _BackOff] = {}

    def __len__(self) -> int:
        """The number of waiting keys."""
        return len(self._due)

    def add(self, key: K, at: float) -> None:
        """Make the key due at `at`, but not before its backoff allows. An earlier due time stays."""
        if key not in self._busy:
            at = self._allowed(key, at)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            if key not in self._busy:
                self._push(key, at)

    def holds(self, key: K) -> bool:
        """Whether the key is worked on."""
        return key in self._busy

    @property
    def busy(self) -> int:
        """The number of keys that are worked on."""
        return len(self._busy)

    def overdue(self, now: float) -> tuple[int, float]:
        """How many idle keys are due, and for how many seconds the first of them has been."""
        waits = [now - at for key, at in self._due.items() if at <= now and key not in self._busy]
        return len(waits), max(waits, default=0.0)

    def next_at(self) -> float | None:
        """When the next idle key is due; None if none waits."""
        self._skip()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> K | None:
        """The idle key that is overdue the longest, or None. It is busy until `done` or `failed`."""
        at = self.next_at()
        if at is None or at > now:
            return None
        _, _, key = heappop(self._heap)
        del self._due[key]
        self._busy.add(key)
        return key

    def take(self, key: K) -> bool:
        """Make an idle key busy until `release`, whether or not it is due; False if it is busy already."""
        if key in self._busy:
            return False
        self._busy.add(key)
        return True

    def release(self, key: K) -> None:
        """End the work on a key. A due time that was added meanwhile counts from now on."""
        self._busy.discard(key)
        if key in self._due:
            self._due[key] = self._allowed(key, self._due[key])
            self._push(key, self._due[key])

    def done(self, key: K) -> None:
        """Report that the work on a popped key succeeded."""
        self._back_offs.pop(key, None)
        self.release(key)

    def failed(self, key: K, now: float, *, at_least: float = 0.0) -> float:
        """Report that the work on a popped key failed. Returns the seconds until it is due again, which grow.

        The delay is `at_least` or more, up to the longest backoff.
        """
        back_off = self._back_offs.setdefault(key, _BackOff(until=now, calm_at=now))
        least = now + min(at_least, self._longest)
        if now >= back_off.until:  # otherwise a change brought it forward
            back_off.failures += 1
            back_off.until = now + backoff(back_off.failures, first=self._first, longest=self._longest)
        back_off.until = max(back_off.until, least)
        spent = min(max(back_off.calm_at - now, 0.0), EARLY_AT_ONCE * EARLY_SECONDS)
        back_off.calm_at = now + spent + EARLY_SECONDS
        back_off.soonest = max(now + SOONEST_SECONDS, least, back_off.calm_at - EARLY_AT_ONCE * EARLY_SECONDS)
        self._due[key] = min(self._due.get(key, back_off.until), back_off.until)
        self.release(key)
        return self._due[key] - now

    def _allowed(self, key: K, at: float) -> float:
        back_off = self._back_offs.get(key)
        return at if back_off is None else max(at, min(back_off.soonest, back_off.until))

    def _push(self, key: K, at: float) -> None:
        heappush(self._heap, (at, next(self._count), key))

    def _skip(self) -> None:
        """Drop heap entries that an earlier time replaced, or whose key is busy."""
        while self._heap:
            at, _, key = self._heap[0]
            if key not in self._busy and self._due.get(key) == at:
                return
            heappop(self._heap)
