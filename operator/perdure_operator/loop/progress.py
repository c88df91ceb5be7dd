"""Shows in status what members report, independently of the rounds, while this process leads.

A write of numbers alone starts no round: its answer goes into the cache, so the watch brings nothing new. It does not
disturb a round either: a job that a worker holds is left for the next look. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from perdure_operator.cluster.protocol import ApiError, Conflict, Unavailable
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import JobRecord, Key
from perdure_operator.cluster.write.act import Actor
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.schedule import backoff
from perdure_operator.serving.pacing import BoundedRate
from perdure_operator.serving.reports.heard import Received, ReportBoard
from perdure_operator.serving.reports.progress import shown
from perdure_operator.serving.reports.tokens import Tokens

WRITES_PER_SECOND: Final = 20.0
LOOK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 10.0
"""The pause after a write that the API server did not answer; longer if it asks for that."""
REFUSED_SECONDS: Final = 60.0
"""The time until the next try for a job whose status the API server refuses. Other jobs do not wait for it."""

logger = logging.getLogger(__name__)


@dataclass
class ProgressWriter:
    """Writes to status what was heard. Belongs to one event loop."""

    cache: Cache
    heard: ReportBoard
    tokens: Tokens
    clock: Callable[[], datetime]
    pace: BoundedRate = field(default_factory=lambda: BoundedRate(WRITES_PER_SECOND))
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    refused: dict[str, float] = field(default_factory=dict)
    """Until when a job is left out, by its uid."""
    shown: dict[str, datetime] = field(default_factory=dict)
    """When the report came that was shown last, by the job's uid: a report that a round has dropped stays dropped."""

    async def show(self, actor: Actor, queue: Queue) -> None:
        """Look every second, forever."""
        while True:
            await self.sleep(LOOK_SECONDS)
            try:
                await self.look(actor, queue)
            except ApiError as error:
                wait = backoff(1, first=PAUSE_SECONDS, at_least=error.retry_after)
                logger.warning("what members report is not shown in status, tried again in %g s: %s", wait, error)
                await self.sleep(wait)
            except Exception:
                logger.exception("an unexpected error as members' reports were shown: jobs go on, tried again in 10 s")
                await self.sleep(PAUSE_SECONDS)

    async def look(self, actor: Actor, queue: Queue) -> None:
        """Write what is due now, as far as the rate allows; the rest waits for the next look.

        Raises Unavailable.
        """
        self.heard.forget_ended(self.cache)
        self.tokens.forget_ended()
        now = self.monotonic()
        self.refused = {job: until for job, until in self.refused.items() if now < until}
        newest = self.heard.of_jobs(self.clock())
        jobs = {one.sender.job_uid for one in newest}
        self.shown = {job: at for job, at in self.shown.items() if job in jobs}
        for received in newest:
            if received.sender.job_uid in self.refused:
                continue
            try:
                await self._show(received, actor, queue)
            except Unavailable:
                raise
            except Exception as error:  # also a bug of ours: the other jobs do not wait for it
                self.refused[received.sender.job_uid] = now + REFUSED_SECONDS
                job = "/".join(received.sender.job)
                logger.warning(
                    "trainingjob %s: its progress is not shown, tried again in 60 s: %s",
                    job,
                    error,
                    exc_info=not isinstance(error, ApiError),
                )

    async def _show(self, received: Received, actor: Actor, queue: Queue) -> None:
        job = self.cache.job(received.sender.job)
        if job is None or job.uid != received.sender.job_uid or queue.holds(job.key):
            return
        if self.shown.get(job.uid) == received.at:
            return
        if job.status is None or job.spec is None:
            return
        of_run = partial(self.heard.of_run, job.uid, received.report.run)
        due = shown(job.status, job.spec.checkpoint, received, of_run)
        if due is None or not self.pace.allows():
            return
        try:
            await actor.show(job, due.status)
        except Conflict as error:
            logger.debug("trainingjob %s: it has changed meanwhile, its progress waits: %s", "/".join(job.key), error)
            return
        self.shown[job.uid] = received.at
        if due.changes_words:
            queue.add(job.key)
            for other in self._beside_slow_members(job):
                queue.add(other)

    def _beside_slow_members(self, before: JobRecord) -> set[Key]:
        """The jobs on nodes of which this job says something else now."""
        after = self.cache.job(before.key)
        nodes = before.slow_nodes ^ (after.slow_nodes if after else frozenset())
        return {key for node in nodes for key in self.cache.jobs_on(node)}
