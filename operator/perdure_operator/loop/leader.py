"""Election, resync and workers: all of the operator but the watch.

Every replica fills its cache; only the leader works. A process that loses its Lease stops at once and ends: a fresh
process is safer than one that does not know what it missed. This module knows no event source, and its clocks and
randomness are injected, so that a simulation can run it. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure_operator.cluster import election
from perdure_operator.cluster.clock import since_boot
from perdure_operator.cluster.election import Election
from perdure_operator.cluster.protocol import ApiError, ClusterApi
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.read.records import Key
from perdure_operator.cluster.write.act import Actor
from perdure_operator.loop.affected_jobs import affected_jobs
from perdure_operator.loop.evictions import Outdated
from perdure_operator.loop.orphans import Orphans
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.schedule import LONGEST_SECONDS, backoff
from perdure_operator.loop.worker import RESYNC_SECONDS, Worker
from perdure_operator.serving.metrics.counted import Echoes, Frozen, OperatorFacts

logger = logging.getLogger(__name__)

FIRST_READING_SECONDS: Final = 15.0
"""The longest pause between tries to read everything for the first time, unless the API server asks for a longer one:
until one succeeds, nothing answers a drain."""

Show = Callable[[Actor, Queue], Coroutine[Any, Any, None]]
"""Writes status beside the rounds, such as what members report, until it is cancelled."""


@dataclass(frozen=True)
class Clocks:
    """Sources of monotonic time and randomness. The time of day comes from the API server."""

    monotonic: Callable[[], float] = since_boot
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
    """Between 0 and 1, for jitter."""


async def _unchanged() -> None:
    """The default check: nothing can change."""


def nowhere() -> str:
    """The default channel: members do not report."""
    return ""


@dataclass
class Leader:
    """One replica: first a candidate, then the leader, then ended."""

    api: ClusterApi
    lease: election.LeaseSettings
    identity: str
    namespace: str | None = None
    workers: int = 8
    clocks: Clocks = field(default_factory=Clocks)
    cache: Cache = field(default_factory=Cache)
    node_claims: bool = False
    """Whether the operator may read NodeClaims."""
    unchanged: Callable[[], Awaitable[None]] = _unchanged
    """Raises Outdated if the cluster no longer serves what this process was started for."""
    settle: Callable[[], None] = lambda: None
    """Called after each resync."""
    channel: Callable[[], str] = nowhere
    """Where new members report; "" for nowhere."""
    show: Show | None = None
    """Works beside the rounds while this process leads; None for nothing."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False
    _task: asyncio.Task[None] | None = None
    _synced: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        clocks = self.clocks
        self.queue = Queue(monotonic=clocks.monotonic, started=False)
        self._election = Election(self.api, self.lease, self.identity, monotonic=clocks.monotonic, sleep=clocks.sleep)
        self._observer = Observer(self.api, self.cache, namespace=self.namespace, node_claims=self.node_claims)
        self.echoes = Echoes()
        actor = Actor(
            self.api,
            self.cache,
            instance=self.identity,
            still_leading=self._election.still_leading,
            number=lambda: f"{int(clocks.chance() * 2**64):016x}",
            on_status=lambda job, version: self.echoes.wrote(job, version, clocks.monotonic()),
            channel=self.channel,
        )
        self._actor = actor
        self._orphans = Orphans(self.api, self.cache, actor)
        self._worker = Worker(
            self.queue, self._observer, actor, self._orphans, jitter=clocks.chance, monotonic=clocks.monotonic
        )

    @property
    def leading(self) -> bool:
        """Whether this process leads, for the health endpoint."""
        return self._election.still_leading()

    @property
    def knows_all(self) -> bool:
        """Whether it leads and has read every object: until then a pod that it does not know may be a job's."""
        return self.leading and self._synced.is_set()

    def freeze(self, requests: Mapping[tuple[str, str], int]) -> Frozen:
        """What metrics show now. Only the leader shows jobs, once it has read all of them."""
        self.echoes.forget_all_but(job.key for job in self.cache.jobs())
        due, oldest = self.queue.overdue()
        counts, leading = self._worker.counts, self.leading
        facts = OperatorFacts(
            leading=leading,
            synced=self.knows_all,
            lease_age=self._election.age(),
            queue_due=due,
            queue_oldest=oldest,
            rounds_running=self.queue.running,
            outcomes=dict(counts.outcomes),
            writes=dict(counts.writes),
            buckets=tuple(counts.buckets),
            round_seconds=counts.seconds,
            watch_lag=self.echoes.oldest(self.clocks.monotonic()),
            requests=dict(requests),
        )
        return Frozen(facts, tuple(self.cache.jobs()) if self.knows_all else None)

    def start(self) -> None:
        """Stand for election, in the background."""
        self._task = asyncio.create_task(self._live(), name="leader")

    async def stop(self) -> None:
        """Stop working, then release the Lease, so that no write of ours races with the next leader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._election.release()

    async def _live(self) -> None:
        try:
            await self._election.lead()
            async with asyncio.TaskGroup() as group:
                _spawn(group, self._election.hold(), self._resync())
                _spawn(group, *(self._work() for _ in range(self.workers)))
                if self.show is not None:
                    _spawn(group, self._show(self.show))
        except* election.LeaseLost as errors:
            logger.error("this operator process ends, and its pod starts another: %s", errors.exceptions[0])
            self.failed = True
        except* Outdated as errors:
            logger.warning("this operator process ends, and its pod starts one that knows: %s", errors.exceptions[0])
        except* Exception:  # nothing else would report it
            logger.exception("an unexpected error ends this operator process, and its pod starts another")
            self.failed = True
        finally:
            self.over.set()

    async def _show(self, show: Show) -> None:
        await self._synced.wait()
        await show(self._actor, self.queue)

    async def _work(self) -> None:
        """Run rounds once everything was read, or a resync met an unexpected error. While the API server refuses one
        kind, no round runs: `synced` shows that."""
        await self._synced.wait()
        await self._worker.run()

    async def _resync(self) -> None:
        """Read everything live at the start and periodically: a watch may miss a deletion while it reconnects."""
        failures = 0
        while True:
            try:
                await self._sync()
                await self._orphans.sweep()
                self.settle()
            except ApiError as error:
                failures += 1
                wait = self._pause(failures, error.retry_after)
                words = "not all objects could be read again, this is tried once more in %g s: %s"
                logger.warning(words, wait, error)
                await self.clocks.sleep(wait)
                continue
            except Exception:
                # Continue with the watch alone.
                logger.exception("an unexpected error as all objects were read again: jobs go on, tried again in 10 s")
                self._look_at(set())
                await self.clocks.sleep(10)
                continue
            failures = 0
            await self.unchanged()
            await self.clocks.sleep(RESYNC_SECONDS * (0.8 + 0.4 * self.clocks.chance()))

    def _pause(self, failures: int, asked: float | None) -> float:
        longest = LONGEST_SECONDS if self._synced.is_set() else FIRST_READING_SECONDS
        return max(backoff(failures, first=1.0, longest=longest), min(asked or 0.0, LONGEST_SECONDS))

    async def _sync(self) -> None:
        self.queue.start()
        changes = await self._observer.sync()
        self.echoes.forget_all_but(job.key for job in self.cache.jobs())
        self._look_at({job for change in changes for job in affected_jobs(self.cache, change)})

    def _look_at(self, jobs: set[Key]) -> None:
        if not self._synced.is_set():  # the watch filled the cache before the queue took jobs in
            jobs |= {job.key for job in self.cache.jobs()}
        for job in sorted(jobs):
            self.queue.add(job)
        self._synced.set()


def _spawn(group: asyncio.TaskGroup, *works: Coroutine[Any, Any, None]) -> None:
    for work in works:
        group.create_task(work)
