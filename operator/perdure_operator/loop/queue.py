"""The schedule with a clock to wait on. Used by `watch` (add) and `worker` (everything else)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from perdure_operator.cluster.read.records import Key
from perdure_operator.loop.schedule import Schedule


class Queue:
    """Jobs that are due. Lives in one event loop."""

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
        self._door = asyncio.Lock()
        """Whoever has it waits for the next job, the others for it: each piece of news wakes one worker, not all."""
        self.started = started
        """Whether jobs are taken in: a replica that never leads would collect the names of all that ever were."""

    def start(self) -> None:
        """From now on jobs are taken in."""
        self.started = True

    def add(self, job: Key, *, delay: float = 0.0) -> None:
        """The job is to be looked at in `delay` seconds, or earlier."""
        if not self.started:
            return
        self._schedule.add(job, self._monotonic() + delay)
        self._changed.set()

    async def get(self) -> Key:
        """Wait for a job that is due and that nobody works on."""
        async with self._door:
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

    def done(self, job: Key) -> None:
        """The round has succeeded."""
        self._schedule.done(job)
        self._changed.set()

    def failed(self, job: Key, *, at_least: float = 0.0) -> float:
        """The round has failed; the job is due again after the delay that is returned, `at_least` so long."""
        delay = self._schedule.failed(job, self._monotonic(), at_least=at_least)
        self._changed.set()
        return delay
