"""When a checkpoint is due while training goes on: by steps, by epochs, by the clock. Owned by the session."""

from __future__ import annotations

import time

from perdure.settings import Cadence


class CheckpointSchedule:
    """The cadence of one rank; steps and epochs are equal on all ranks, the clock is rank 0's."""

    def __init__(self, cadence: Cadence, *, rank: int) -> None:
        self._cadence = cadence
        self._rank = rank
        self.saved_at = time.monotonic()

    def take_over(self, rank: int, age: float) -> None:
        """Goes on as another rank; the last checkpoint is `age` seconds old."""
        self._rank, self.saved_at = rank, time.monotonic() - age

    def saved(self) -> None:
        """A checkpoint is made, or none is needed yet."""
        self.saved_at = time.monotonic()

    def after_step(self, step: int) -> bool:
        """Whether that many steps are due one."""
        every = self._cadence.steps
        return every is not None and step % every == 0

    def after_epoch(self, epochs: int) -> bool:
        """Whether that many epochs are due one."""
        every = self._cadence.epochs
        return every is not None and epochs % every == 0

    def by_the_clock(self) -> bool:
        """Rank 0's clock counts for all; what it says once is not said again."""
        every = self._cadence.seconds
        if self._rank != 0 or every is None or time.monotonic() - self.saved_at < every:
            return False
        self.saved()
        return True
