"""What being ready for a loss may take of the training's time. Pure: every time is the caller's.

It is the wall's time that counts, for that is what the training stands still: so a busy node can make a cheap copy look
dear for a while. Whoever has taken too much pauses, and is tried again: each time twice as long after, as long as that
is in vain. Called by perdure.loop.survivor_snapshots.
"""

from __future__ import annotations

from typing import Final

LEAST_SPENT_SECONDS: Final = 1.0
MOST_SPENT: Final = 0.02
"""Of the time since it was begun, what it may take, once it has taken the second above."""
LEAST_PAUSE_SECONDS: Final = 60.0
MOST_PAUSE_SECONDS: Final = 3600.0
GOOD_SECONDS: Final = 600.0
"""Whoever has kept within it for so long begins with the shortest pause again."""


class CopyBudget:
    """One activity's."""

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
        """It has taken from `begun` until `now`: for how many seconds it pauses then, mostly none."""
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
