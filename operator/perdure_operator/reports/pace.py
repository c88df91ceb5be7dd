"""A bounded rate. Used by `tokens`, and by `loop.progress`."""

from __future__ import annotations

import time
from collections.abc import Callable


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
