"""Which key is due when: de-duplicated, serial per key, with a back-off per key. Pure: the time is passed in.

A key is waiting at most once; of several due times the earliest counts. A key that is being worked on and is added
again is due as soon as that work is done, so that no news is lost and no key is worked on twice at once. News
about a key that has failed, and its own times, bring it forward at a bounded rate: what is urgent is not held up by
what fails, and a server that refuses because it is overloaded is not asked again by each of its own events. Wrapped by
`queue`.
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
"""After a failure, even if there are news."""
EARLY_SECONDS: Final = 6.0
"""News bring a key that fails forward once in so many seconds, and EARLY_AT_ONCE times more after a calm."""
EARLY_AT_ONCE: Final = 2


@dataclass(slots=True)
class _BackOff:
    failures: int = 0
    until: float = 0.0
    soonest: float = 0.0
    """News do not bring the key forward to before this."""
    calm_at: float = 0.0
    """When what was spent of EARLY_AT_ONCE is there again."""


class Schedule(Generic[K]):
    """Due times of keys; no step takes longer because more of them wait."""

    def __init__(self, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = itertools.count()
        self._busy: set[K] = set()
        self._back_offs: dict[K, _BackOff] = {}

    def __len__(self) -> int:
        """Keys waiting."""
        return len(self._due)

    def add(self, key: K, at: float) -> None:
        """Due at `at`, or earlier where that was known already; not before its back-off allows."""
        if key not in self._busy:
            at = self._allowed(key, at)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            if key not in self._busy:
                self._push(key, at)

    def next_at(self) -> float | None:
        """When the next key that nobody works on is due."""
        self._skip()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> K | None:
        """The longest overdue key that nobody works on; it is busy until `done` or `failed`."""
        at = self.next_at()
        if at is None or at > now:
            return None
        _, _, key = heappop(self._heap)
        del self._due[key]
        self._busy.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on a popped key has succeeded."""
        self._back_offs.pop(key, None)
        self._release(key)

    def failed(self, key: K, now: float, *, at_least: float = 0.0) -> float:
        """The work on a popped key has failed: due again after a growing delay, which is returned.

        `at_least` so many seconds pass in any case.
        """
        back_off = self._back_offs.setdefault(key, _BackOff(until=now, calm_at=now))
        least = now + min(at_least, self._longest)
        if now >= back_off.until:  # else news have brought it forward
            back_off.failures += 1
            back_off.until = now + min(self._longest, self._first * 2.0 ** min(back_off.failures - 1, 30))
        back_off.until = max(back_off.until, least)
        spent = min(max(back_off.calm_at - now, 0.0), EARLY_AT_ONCE * EARLY_SECONDS)
        back_off.calm_at = now + spent + EARLY_SECONDS
        back_off.soonest = max(now + SOONEST_SECONDS, least, back_off.calm_at - EARLY_AT_ONCE * EARLY_SECONDS)
        self._due[key] = min(self._due.get(key, back_off.until), back_off.until)
        self._release(key)
        return self._due[key] - now

    def _allowed(self, key: K, at: float) -> float:
        back_off = self._back_offs.get(key)
        return at if back_off is None else max(at, min(back_off.soonest, back_off.until))

    def _release(self, key: K) -> None:
        """What was added during the work counts from now on."""
        self._busy.discard(key)
        if key in self._due:
            self._due[key] = self._allowed(key, self._due[key])
            self._push(key, self._due[key])

    def _push(self, key: K, at: float) -> None:
        heappush(self._heap, (at, next(self._count), key))

    def _skip(self) -> None:
        """Entries that an earlier time has replaced, or whose key is being worked on."""
        while self._heap:
            at, _, key = self._heap[0]
            if key not in self._busy and self._due.get(key) == at:
                return
            heappop(self._heap)
