"""Reads the logs of a job's members, all at once, and follows them while members come and go.

Each log is a `kubectl get --raw` of its own. A log that is cut is read on from where it was, for as long as its pod is
there: it is complete once a reading has ended that began after its trainer had.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from asyncio import Task
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final

from perdure.errors import UserError
from perdure.wire import LABEL_JOB
from perdure_operator.cli.kubectl import reading
from perdure_operator.cli.kubectl.client import Kubectl, KubectlFailed
from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cli.kubectl.logs import (
    LogLine,
    LogSource,
    LogTime,
    PodLog,
    how_it_ended,
    log_path,
    pause_seconds,
    source,
    too_many,
)
from perdure_operator.cluster.protocol import PODS, ApiError, Forbidden, NotFound
from perdure_operator.cluster.read import parse

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS: Final = 30.0
"""While the cluster does not answer."""

ShowLine = Callable[[LogLine], None]


class JobLogs:
    """The logs of one job's members."""

    def __init__(self, api: Kubectl, seen: JobSeen, show: ShowLine, *, most: int, tail: int | None) -> None:
        """`most` logs are read at a time; `tail`: of each only so many of its last lines, if any."""
        self._api, self._seen, self._show = api, seen, show
        self._most, self._tail = most, tail
        self._namespace, self._name = seen.record.key
        self._logs = dict[str, PodLog]()
        self._complete = set[str]()
        self._open = dict[str, Task[bool]]()
        self._warned = set[str]()

    async def show(self) -> None:
        """What the members have written until now, in the order of time. Raises UserError for too many logs."""
        await self._backlog(await self._sources(), logger.error)

    async def follow(self) -> str:
        """The same, and then each line when it comes, until the job is over; returns in words how it ended."""
        sources, over = await self._sources(), how_it_ended(self._seen)
        pause = pause_seconds(len(sources))
        await self._backlog(sources, logger.warning)
        try:
            while True:
                self._reap(given_up=bool(over))
                self._open_new(sources)
                there = [self._open[one.uid] for one in sources if one.uid in self._open]
                if over and not there:
                    return over
                await (asyncio.wait(there, timeout=pause) if over else asyncio.sleep(pause))
                try:
                    over, sources = await self._how_it_ended(), await self._sources()
                    pause = pause_seconds(len(sources))
                except Forbidden:
                    raise
                except (ApiError, KubectlFailed) as error:
                    self._warn(f"the job cannot be read, and is tried again: {error}")
                    pause = max(pause, min(2 * pause, LONGEST_PAUSE_SECONDS))
        finally:
            for one in self._open.values():
                one.cancel()
            await asyncio.gather(*self._open.values(), return_exceptions=True)

    async def _sources(self) -> list[LogSource]:
        listed = await self._api.list(PODS, self._namespace, selector=f"{LABEL_JOB}={self._name}")
        return [source(raw) for raw in listed if parse.controller(raw) == self._seen.record.uid]

    async def _how_it_ended(self) -> str:
        try:
            seen = await reading.job_alone(self._api, self._namespace, self._name)
        except NotFound:
            seen = None
        if seen is None or seen.record.uid != self._seen.record.uid:
            return f"{self._namespace}/{self._name} was deleted"
        return how_it_ended(seen)

    async def _backlog(self, sources: Sequence[LogSource], tell: Callable[[str], None]) -> None:
        """Merges all logs; one that cannot be read is told."""
        if refusal := too_many(sources, self._most):
            raise UserError(refusal)
        begun = [one for one in sources if one.started]
        self._logs |= {one.uid: PodLog(one.pod, self._tail) for one in begun}
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(aclosing(self._readable(one, tell))) for one in begun]
            firsts = await asyncio.gather(*(anext(one, None) for one in lines), return_exceptions=True)
            heads = list[tuple[LogTime, int, LogLine]]()
            for place, first in enumerate(firsts):
                if isinstance(first, BaseException):
                    raise first
                if first is not None:
                    heads.append((first[0], place, first[1]))
            heapq.heapify(heads)
            while heads:
                _, place, line = heads[0]
                self._show(line)
                following = await anext(lines[place], None)
                if following is None:
                    heapq.heappop(heads)
                else:
                    heapq.heapreplace(heads, (following[0], place, following[1]))

    async def _readable(
        self, found: LogSource, tell: Callable[[str], None]
    ) -> AsyncGenerator[tuple[LogTime, LogLine], None]:
        try:
            async with aclosing(self._lines(found, follow=False)) as lines:
                async for one in lines:
                    yield one
        except NotFound:
            return
        except Forbidden:
            raise
        except (ApiError, KubectlFailed) as error:
            tell(f"the log of {found.pod} cannot be read: {error}")

    async def _lines(self, found: LogSource, *, follow: bool) -> AsyncGenerator[tuple[LogTime, LogLine], None]:
        log = self._logs.setdefault(found.uid, PodLog(found.pod))
        path = log_path(self._namespace, found, log.query(found.container, follow=follow))
        async with aclosing(self._api.lines(path)) as lines:
            async for line in lines:
                if taken := log.take(line):
                    yield log.last, taken

    def _open_new(self, sources: Sequence[LogSource]) -> None:
        for one in sources:
            if not one.started or one.uid in self._complete or one.uid in self._open:
                continue
            if len(self._open) >= self._most:
                self._warn(f"no more than {self._most} logs are read at a time: others wait; see --max-log-requests")
                return
            self._open[one.uid] = asyncio.create_task(self._followed(one))

    def _reap(self, *, given_up: bool) -> None:
        """Forget the readings that have ended; `given_up`: those that failed are not repeated."""
        for uid, one in list(self._open.items()):
            if one.done():
                del self._open[uid]
                if one.result() or given_up:
                    self._complete.add(uid)

    async def _followed(self, found: LogSource) -> bool:
        """Show the lines of one log as they come; returns whether it is complete."""
        try:
            async with aclosing(self._lines(found, follow=True)) as lines:
                async for _, line in lines:
                    self._show(line)
        except NotFound:
            return True
        except Forbidden:
            raise
        except (ApiError, KubectlFailed) as error:
            self._warn(f"the log of {found.pod} cannot be read, and is tried again: {error}")
            return False
        return found.ended

    def _warn(self, words: str) -> None:
        """Say it once."""
        if words not in self._warned:
            self._warned.add(words)
            logger.warning("%s", words)
