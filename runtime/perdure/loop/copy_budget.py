"""Limits the training time that copies for images may take. Pure: the caller gives every time.

Wall time counts, because training waits for that long; so on a busy node a cheap copy may seem expensive for
a while. After spending too much an activity pauses, and is then tried again. Each pause in a row is twice as long as
the one before. Called by perdure.loop.survivor_snapshots.
"""

from __future__ import annotations

from typing import Final

LEAST_SPENT_SECONDS: Final = 1.0
MOST_SPENT: Final = 0.02
"""The fraction of the time since the beginning that it may take, once it has used the seconds above."""
LEAST_PAUSE_SECONDS: Final = 60.0
MOST_PAUSE_SECONDS: Final = 3600.0
GOOD_SECONDS: Final = 600.0
"""After keeping the limit for this long, an activity begins with the shortest pause again."""


class CopyBudget:
    """The budget of one activity."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._spent = 0.0
        self._pause = 0.0
        self._until: float | None = None

    def pauses(self, now: float) -> bool:
        """Whether nothing may be spent now."""
        if self._until is not None and now >= self._until:
            self._since = self._until = None
        return self._until is not None

    def spend(self, begun: float, now: float) -> float:
        """Notes an activity from `begun` until `now`. Returns for how many seconds to pause, usually 0."""
        if self._since is None:
            self._since, self._spent = begun, 0.0
        self._spent += now - begun
        lasted = now - self._since
        if self._spent <= max(LEAST_SPENT_SECONDS, MOST_SPENT * lasted):
            return 0.0
        again = self._pause if lasted < GOOD_SECONDS else 0.0
        self._pause = min(max(LEAST_PAUSE_SECONDS, 2 * again), MOST_PAUSE_SECONDS)
        self._until = now + self._pause
        return self._pause
