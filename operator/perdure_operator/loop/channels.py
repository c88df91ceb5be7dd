"""Tells living members where to report, and whom to trust there, whenever that changes; see decision 081.

An annotation says it, which the kubelet copies into a file of the pod. It starts no round, and no member is replaced
for it. Members without a channel get none, because they have no such file. A pod that cannot be told is put off, and
the others do not wait for it. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from perdure.wire import ANNOTATION_REPORT
from perdure_operator.cluster.protocol import ApiError, Conflict, Unavailable
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import PodRecord
from perdure_operator.cluster.write.act import Actor
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.schedule import backoff
from perdure_operator.serving.pacing import BoundedRate

WRITES_PER_SECOND: Final = 20.0
AT_ONCE: Final = 8
LOOK_SECONDS: Final = 5.0
GO_ON_SECONDS: Final = 1.0
"""Until the next look while there is more to write than the rate allows."""
PAUSE_SECONDS: Final = 10.0
"""The pause after a look that too many failures have ended; longer if the API server asks for that."""
FAILURES: Final = 3
"""So many in a row are no matter of single pods: they end the look."""
FAILED_SECONDS: Final = 60.0
"""The time until the next try for a pod for which the API server does not answer."""
REFUSED_SECONDS: Final = 3600.0
"""The time until the next try for a pod whose change is refused, as by a policy about running pods, or changed back."""

logger = logging.getLogger(__name__)


@dataclass
class _Look:
    """One look, by several that share it."""

    channel: str
    pods: Iterator[PodRecord]
    """Those that are still to be told."""
    failures: int = 0
    """In a row."""
    ended_by: Exception | None = None
    """The last of too many failures in a row."""
    cut_short: bool = False
    """Whether the rate, or another channel, has ended it."""


@dataclass
class ChannelWriter:
    """Writes the current channel to members that have another one. Belongs to one event loop."""

    cache: Cache
    current: Callable[[], str]
    """The channel that living members should have; "" while that is not known."""
    pace: BoundedRate = field(default_factory=lambda: BoundedRate(WRITES_PER_SECOND))
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    put_off: dict[str, float] = field(default_factory=dict)
    """Until when a pod is left out, by its uid."""
    told: tuple[str, set[str]] = field(default_factory=lambda: ("", set()))
    """The channel that was written last, and the uids of the pods that have got it."""

    def all_have(self, channel: str) -> bool:
        """Whether every living member that reports has this channel, as far as the cache knows."""
        return not any(True for _ in self._others(channel))

    async def follow(self, actor: Actor, queue: Queue) -> None:
        """Look every five seconds, forever; more often while there is more to write than the rate allows."""
        wait = LOOK_SECONDS
        while True:
            await self.sleep(wait)
            try:
                wait = GO_ON_SECONDS if await self.look(actor, queue) else LOOK_SECONDS
            except ApiError as error:
                wait = backoff(1, first=PAUSE_SECONDS, at_least=error.retry_after)
                words = "living members are not told where to report now, tried again in %g s: %s"
                logger.warning(words, wait, error)
            except Exception:
                logger.exception("an unexpected error as members were told where to report: tried again in 10 s")
                wait = PAUSE_SECONDS

    async def look(self, actor: Actor, queue: Queue) -> bool:
        """Write what is due now, several at once; whether there is more than the rate allows.

        Jobs that a worker holds wait for the next look. Raises the last of too many failures in a row.
        """
        channel, now = self.current(), self.monotonic()
        self.put_off = {pod: until for pod, until in self.put_off.items() if now < until}
        if not channel:
            return False
        if self.told[0] != channel:
            self.told = (channel, set())
        others = list(self._others(channel))
        for pod in others:
            if pod.uid in self.told[1]:
                self._leave_changed_back(pod)
        due = [pod for pod in others if pod.uid not in self.put_off and not _held(pod, queue)]
        look = _Look(channel, iter(due))
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._write(look, actor))
        if look.ended_by is not None:
            raise look.ended_by
        return look.cut_short

    def _leave_changed_back(self, pod: PodRecord) -> None:
        """It was told and has another channel again: so it would be after each write."""
        self.told[1].discard(pod.uid)
        self._put_off(pod, REFUSED_SECONDS)
        words = (
            "pod %s: its annotation %s was changed back, as by a webhook or by another release for its namespace, so "
            "it keeps the certificates by which it checks the operator, tried again in an hour"
        )
        logger.warning(words, "/".join(pod.key), ANNOTATION_REPORT)

    async def _write(self, look: _Look, actor: Actor) -> None:
        for pod in look.pods:
            if look.ended_by is not None:
                return
            if self.current() != look.channel or not self.pace.allows():
                look.cut_short = True
                return
            failure = await self._tell(pod, look.channel, actor)
            look.failures = 0 if failure is None else look.failures + 1
            if look.failures >= FAILURES:
                look.ended_by = failure

    async def _tell(self, pod: PodRecord, channel: str, actor: Actor) -> Exception | None:
        """Write it to one pod. Returns what may fail for others too: no answer, or a bug of ours."""
        name = "/".join(pod.key)
        try:
            await actor.redirect(pod, channel)
        except Conflict as error:
            logger.debug("pod %s: it has changed meanwhile, its channel waits: %s", name, error)
        except Unavailable as error:
            self._put_off(pod, FAILED_SECONDS)
            logger.warning("pod %s: it is not told where to report now, tried again in 60 s: %s", name, error)
            return error
        except ApiError as error:
            self._put_off(pod, REFUSED_SECONDS)
            words = "pod %s: it keeps the certificates by which it checks the operator, tried again in an hour: %s"
            logger.warning(words, name, error)
        except Exception as error:
            self._put_off(pod, FAILED_SECONDS)
            logger.exception("pod %s: it is not told where to report now, tried again in 60 s", name)
            return error
        else:
            self.told[1].add(pod.uid)
        return None

    def _put_off(self, pod: PodRecord, seconds: float) -> None:
        self.put_off[pod.uid] = self.monotonic() + seconds

    def _others(self, channel: str) -> Iterator[PodRecord]:
        digest = parse.channel_digest(channel)
        for job in self.cache.jobs():
            for pod in self.cache.pods(job.key):
                view = pod.view
                ends = view.gone or view.deleting or view.phase in ("Succeeded", "Failed")
                if pod.channel not in ("", digest) and view.owner_uid == job.uid and not ends:
                    yield pod


def _held(pod: PodRecord, queue: Queue) -> bool:
    """Whether a worker is at its job."""
    return pod.job is not None and queue.holds(pod.job)
