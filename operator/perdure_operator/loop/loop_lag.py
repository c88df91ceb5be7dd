"""How late the event loop runs, and whether that is the node's doing or our own: one log line, a minute at most.

A Lease, a deadline and a health check are all kept by this loop. Knows nothing of the operator. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

BEAT_SECONDS: Final = 0.25
LATE_SECONDS: Final = 1.0
"""Less is not worth a line: the Lease, which is the most urgent, bears ten times as much."""
TOLD_EVERY_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class LoopLag:
    """The worst that nobody has been told of. Pure."""

    def __init__(self) -> None:
        self._worst, self._worked = 0.0, 0.0
        self._told_at: float | None = None

    def beat(self, now: float, late: float, worked: float) -> str | None:
        """Take in how late a beat was, and the CPU time that the loop had in it; what there is to say, if anything."""
        if late >= max(LATE_SECONDS, self._worst):
            self._worst, self._worked = late, worked
        if not self._worst or (self._told_at is not None and now - self._told_at < TOLD_EVERY_SECONDS):
            return None
        cause = (
            "its own work took so long"
            if 2 * self._worked >= self._worst
            else "its node has no CPU time for it, and a larger request of it would help"
        )
        words = f"the event loop was {self._worst:.1f} s late, and worked for {self._worked:.2f} s of it: {cause}"
        self._worst, self._told_at = 0.0, now
        return words


async def tell(
    *,
    monotonic: Callable[[], float] = time.monotonic,
    worked: Callable[[], float] = time.thread_time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Look for ever."""
    lateness = LoopLag()
    while True:
        before, worked_before = monotonic(), worked()
        await sleep(BEAT_SECONDS)
        now = monotonic()
        if words := lateness.beat(now, now - before - BEAT_SECONDS, worked() - worked_before):
            logger.warning("%s", words)
