"""The schedule with a clock to wait on. Used by `watch` (add), `pools` (take) and `worker` (everything else)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from perdure_operator.cluster.read.records import Key
from perdure_operator.loop.schedule import Schedule


class Queue:
    """Jobs that are due. Belongs to one event loop."""

    def __init__(
        self,
        schedule: Schedule[Key] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        started: bool = True,
    ) -> None:
        self._schedule = Schedule[Key]() if schedule is None else schedule
        self._monotonic = monotonic
        self._changed = asyncio.Event()
        self._next = asyncio.Lock()
        """Its holder waits for the next job; the other workers wait for the lock. So each change wakes one worker."""
        self.started = started
        """Whether jobs are accepted: a replica that never leads would collect the names of all jobs that ever
        existed."""

    def start(self) -> None:
        """Accept jobs from now on."""
        self.started = True

    def add(self, job: Key, *, delay: float = 0.0) -> None:
        """Make the job due in `delay` seconds; an earlier due time stays."""
        if not self.started:
            return
        self._schedule.add(job, self._monotonic() + delay)
        self._changed.set()

    async def get(self) -> Key:
        """Wait for a job that is due and that no worker holds."""
        async with self._next:
            while True:
                self._changed.clear()
                now = self._monotonic()
                job = self._schedule.pop(now)
                if job is not None:
                    return job
                at = self._schedule.next_at()
                try:
                    async with asyncio.timeout(None if at is None else max(0.0, at - now)):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def holds(self, job: Key) -> bool:
        """Whether somebody works on the job."""
        return self._schedule.holds(job)

    def take(self, job: Key) -> bool:
        """Keep all others from the job until `release`; False if one of them holds it."""
        return self._schedule.take(job)

    def release(self, job: Key) -> None:
        """Leave the job to workers again, as it was: this is no round, and says nothing of failures."""
        self._schedule.release(job)
        self._changed.set()

    @property
    def running(self) -> int:
        """The number of jobs that are worked on."""
        return self._schedule.busy

    def overdue(self) -> tuple[int, float]:
        """How many jobs are due and held by no worker, and for how many seconds the first of them has been."""
        return self._schedule.overdue(self._monotonic())

    def done(self, job: Key) -> None:
        """Report that the round succeeded."""
        self._schedule.done(job)
        self._changed.set()

    def failed(self, job: Key, *, at_least: float = 0.0) -> float:
        """Report that the round failed. Returns the seconds until the job is due again: `at_least` or more."""
        delay = self._schedule.failed(job, self._monotonic(), at_least=at_least)
        self._changed.set()
        return delay
