"""Logs how late the event loop runs, and whether our own work delays it: at most one line a minute.

The Lease, deadlines and health checks all depend on this loop. Knows nothing of the operator. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

BEAT_SECONDS: Final = 0.25
LATE_SECONDS: Final = 1.0
"""Smaller delays are not logged: the Lease, the most urgent, tolerates ten times as much."""
REPORT_EVERY_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class LoopLag:
    """The worst delay not yet reported. Pure."""

    def __init__(self) -> None:
        self._worst, self._worked = 0.0, 0.0
        self._reported_at: float | None = None

    def beat(self, now: float, late: float, worked: float) -> str | None:
        """Record a beat's delay and the CPU time that the loop used in it; returns the line to log, if any."""
        if late >= max(LATE_SECONDS, self._worst):
            self._worst, self._worked = late, worked
        if not self._worst or (self._reported_at is not None and now - self._reported_at < REPORT_EVERY_SECONDS):
            return None
        cause = (
            "its own work took so long"
            if 2 * self._worked >= self._worst
            else "it waited for CPU time of its node, which a larger request gives it, or a call blocked it"
        )
        words = f"the event loop was {self._worst:.1f} s late, and worked for {self._worked:.2f} s of it: {cause}"
        self._worst, self._reported_at = 0.0, now
        return words


async def report(
    *,
    monotonic: Callable[[], float] = time.monotonic,
    worked: Callable[[], float] = time.thread_time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Measure forever."""
    lateness = LoopLag()
    while True:
        before, worked_before = monotonic(), worked()
        await sleep(BEAT_SECONDS)
        now = monotonic()
        if words := lateness.beat(now, now - before - BEAT_SECONDS, worked() - worked_before):
            logger.warning("%s", words)
