"""Which key is due when: de-duplicated, serial per key, with a back-off per key. Pure: the time is passed in.

A key is waiting at most once; of several due times the earliest counts. A key that is being worked on and is added
again is due as soon as that work is done, so that no news is lost and no key is worked on twice at once. Wrapped by
`queue`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 60.0


class Schedule(Generic[K]):
    """Due times of keys."""

    def __init__(self, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self._due: dict[K, float] = {}
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Keys waiting."""
        return len(self._due)

    def add(self, key: K, at: float) -> None:
        """Due at `at`, or earlier where that was known already."""
        self._due[key] = min(at, self._due.get(key, at))

    def next_at(self) -> float | None:
        """When the next key that nobody works on is due."""
        return min((at for key, at in self._due.items() if key not in self._busy), default=None)

    def pop(self, now: float) -> K | None:
        """The longest overdue key that nobody works on; it is busy until `done` or `failed`."""
        ready = [(at, index, key) for index, (key, at) in enumerate(self._due.items()) if key not in self._busy]
        at, _, key = min(ready, key=lambda one: one[:2], default=(now + 1, 0, None))
        if key is None or at > now:
            return None
        del self._due[key]
        self._busy.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on a popped key has succeeded."""
        self._busy.discard(key)
        self._failures.pop(key, None)

    def failed(self, key: K, now: float) -> float:
        """The work on a popped key has failed: due again after a growing delay, which is returned."""
        self._busy.discard(key)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(self._longest, self._first * 2.0 ** min(failures - 1, 30))
        self.add(key, now + delay)
        return delay
