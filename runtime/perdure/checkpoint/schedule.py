"""When a checkpoint is due while training continues: by steps, by epochs, by the clock. Owned by the session.

While slow saves fail, growing pauses replace the cadence. Otherwise a frozen store would stop training again at each
step with a due save. After a pause the next save is made at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from perdure.wire.settings import Cadence

DEAR_SECONDS: Final = 1.0
"""A save that fails sooner hardly stops training, so the cadence stays."""
PAUSE_SECONDS: Final = 60.0
"""The longest pause, if a failing save takes less than a tenth of it."""
SHARE: Final = 10
"""Otherwise the longest pause is this many times the duration of a save."""


def pause(failures: int, seconds: float) -> float:
    """How long to wait for the next save, in seconds, after `failures` in a row, the last of which took `seconds`."""
    if seconds < DEAR_SECONDS:
        return 0.0
    return float(min(seconds * 2 ** min(failures, SHARE), max(PAUSE_SECONDS, SHARE * seconds)))


class CheckpointSchedule:
    """The cadence of one rank. Steps and epochs are equal on all ranks; the clock is rank 0's."""

    def __init__(self, cadence: Cadence, *, rank: int, now: Callable[[], float] = time.monotonic) -> None:
        self._cadence = cadence
        self._rank = rank
        self._now = now
        self._again_at: float | None = None
        self.saved_at = now()

    @property
    def age(self) -> float:
        """Seconds since the last checkpoint."""
        return self._now() - self.saved_at

    def take_over(self, rank: int, age: float) -> None:
        """Continues as another rank; the last checkpoint is `age` seconds old."""
        self._rank, self._again_at, self.saved_at = rank, None, self._now() - age

    @property
    def paused(self) -> bool:
        """Whether saves that failed are made again only later. Equal on all ranks."""
        return self._again_at is not None

    def saved(self, at: float | None = None) -> None:
        """A checkpoint is made, of the state `at` that time.monotonic() or now; or none is needed yet."""
        self._again_at, self.saved_at = None, self._now() if at is None else at

    def failed(self, failures: int, seconds: float) -> None:
        """`failures` saves have failed in a row, the last after `seconds`: the same on all ranks."""
        waits = pause(failures, seconds)
        self._again_at = self._now() + waits if waits else None

    def end_pause(self) -> None:
        """The save after a pause was not made, and none has failed: the next one need not wait. On all ranks."""
        self._again_at = None

    def after_step(self, step: int) -> bool:
        """Whether a checkpoint is due after this many steps."""
        every = self._cadence.steps
        return self._again_at is None and every is not None and step % every == 0

    def after_epoch(self, epochs: int) -> bool:
        """Whether a checkpoint is due after this many epochs."""
        every = self._cadence.epochs
        return self._again_at is None and every is not None and epochs % every == 0

    def by_the_clock(self) -> bool:
        """Whether a checkpoint is due by rank 0's clock, which counts for all. True only once for each."""
        now = self._now()
        if self._again_at is not None:
            over = self._rank == 0 and now >= self._again_at
            self._again_at = math.inf if over else self._again_at
            return over
        every = self._cadence.seconds
        if self._rank != 0 or every is None or now - self.saved_at < every:
            return False
        self.saved_at = now
        return True
