"""How often something may happen: lines of the log that strangers can cause, questions, writes of status. Used by
`connections`, by `reports.tokens`, and by `loop.progress`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

EVERY_SECONDS: Final = 60.0


class OnceAMinute:
    """Says when a line is due that may have a cause many times a second."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._next = float("-inf")

    def due(self) -> bool:
        """Whether the line may be written now; if so, the next one is due in a minute."""
        now = self._monotonic()
        if now < self._next:
            return False
        self._next = now + EVERY_SECONDS
        return True


class BoundedRate:
    """At most `rate` a second on average, and as many at once."""

    def __init__(self, rate: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._left, self._at = rate, monotonic()

    def allows(self) -> bool:
        """Whether one more may happen now; if so, it counts."""
        now = self._monotonic()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
