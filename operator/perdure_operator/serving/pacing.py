"""Lines of the log that strangers can cause: one a minute. Used by `connections`, and by `reports.tokens`."""

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
