"""Reads live what the cache cannot answer: a half-filled cache looks like a cluster without pods.

Absence means nothing before a live LIST. A job is read live at its first sight, after a write without an answer, after
a deletion, and when its uid changed. In between the watch and the answers to our writes keep the cache up to date. It
writes nothing to the cluster. Called by `observe`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from perdure.wire import LABEL_JOB
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVICTIONS,
    JOBS,
    NODES,
    PODS,
    REVISIONS,
    Conflict,
    Forbidden,
    Json,
    NotFound,
    ReadOnlyApi,
    Resource,
)
from perdure_operator.cluster.read.cache import Cache, Change
from perdure_operator.cluster.read.deleted_objects import PendingTerminations
from perdure_operator.cluster.read.records import JobRecord, Key, PodRecord, key_of

SLICE: Final = 25
"""Objects of a LIST that are parsed before other tasks get their turn: some milliseconds."""

logger = logging.getLogger(__name__)


class Live:
    """Keeps the cache complete; `namespace` None means all namespaces."""

    def __init__(self, api: ReadOnlyApi, cache: Cache, namespace: str | None, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._clock = clock
        self._current: dict[Key, str] = {}
        self._answered: dict[Key, str] = {}
        self._distrusted: set[Key] = set()
        self._confirmed: dict[Key, tuple[int, int]] = {}
        """The version at which a job's status was confirmed, and the newest run that its pods named then."""
        self._pending = PendingTerminations()
        self.nodes_listed = False
        """Whether a node that is missing in the cache is known not to exist."""

    async def sync(self) -> list[Change]:
        """Read everything live; returns the changes.

        Jobs come before pods, as in `_read`. Objects that may outlive a job come before jobs, so that a missing job is
        really gone.
        """
        self._distrusted.clear()
        changes: list[Change] = []
        await self._list_revisions()
        changes += await self._list_evictions()
        for resource in (NODES, BUDGETS, JOBS, PODS):
            changes += await self._list(resource)
        self.nodes_listed = True
        self._current = {job.key: job.uid for job in self._cache.jobs() if job.key not in self._distrusted}
        return changes

    async def job(self, job: Key) -> JobRecord | None:
        """The current job, or None if it no longer exists. Afterwards its pods in the cache are complete."""
        record = self._cache.job(job)
        if record is None or not self.knows_pods_of(record) or self._overtaken(record):
            await self._read(job)
            record = self._cache.job(job)
        return record

    def knows_pods_of(self, record: JobRecord) -> bool:
        """Whether a pod of the job that is missing in the cache is known not to exist."""
        return self._current.get(record.key) == record.uid

    def awaits_end_of(self, pod: PodRecord, now: datetime) -> bool:
        """Whether the watch may still report how this pod ended, which a LIST no longer showed."""
        return self._pending.awaited(pod, now)

    def distrust(self, job: Key) -> None:
        """Read the job live next time: a write of ours failed or is in flight, or our state is old."""
        self._current.pop(job, None)
        self._answered.pop(job, None)
        self._distrusted.add(job)

    def written(self, job: Key, uid: str, *, deleted: bool) -> None:
        """Report that all writes of a round were answered. Every answer but a deletion's is the current object."""
        self._answered[job] = uid
        if not deleted:
            self._current[job] = uid

    async def _list_revisions(self) -> None:
        """List kept templates. An older chart's roles lack the right, and jobs can do without."""
        try:
            await self._list(REVISIONS)
        except Forbidden as error:
            words = "kept templates cannot be read, so new members are made from their jobs' current ones alone: %s"
            logger.warning(words, error)

    async def _list_evictions(self) -> list[Change]:
        """List Evictions. If that is impossible they are not answered, and nothing else depends on them."""
        if not self._cache.responds:
            return []
        try:
            return await self._list(EVICTIONS)
        except (Forbidden, NotFound) as error:
            logger.warning("evictions of members are not answered: %s", error)
            return []

    async def _list(self, resource: Resource) -> list[Change]:
        """Page by page and slice by slice, so that rounds do not wait until a whole cluster is read."""
        since, changes, shown = self._cache.mark(), list[Change | None](), set[Key]()
        namespace = self._namespace if resource.namespaced else None
        selector = LABEL_JOB if resource in (PODS, REVISIONS) else ""
        async for page in self._api.pages(resource, namespace, selector=selector):
            for first in range(0, len(page), SLICE):
                part = page[first : first + SLICE]
                changes += [self._store(resource, raw, since) for raw in part]
                shown |= {key_of(raw) for raw in part}
                await asyncio.sleep(0)
        missing = set(self._cache.keys(resource)) - shown
        changes += [self._drop(resource, key, since) for key in missing]
        return [change for change in changes if change is not None]

    def _store(self, resource: Resource, raw: Json, since: int) -> Change | None:
        """Store one object; an unreadable one is skipped, so that it does not stop the resync."""
        try:
            return self._cache.apply(resource, raw, since=since)
        except Exception:
            logger.exception("%s %s: it cannot be read and is ignored", resource.plural, "/".join(key_of(raw)))
            return None

    def _drop(self, resource: Resource, key: Key, since: int) -> Change | None:
        change = self._cache.drop(resource, key, since=since)
        if change is not None and isinstance(change.before, PodRecord):
            self._pending.missed(change.before, self._clock())
        return change

    async def _read(self, job: Key) -> None:
        """Read the job before its pods: then a pod that status names and the LIST lacks is gone, not still to come."""
        namespace, name = job
        known = self._cache.job(job)
        answered = self._answered.pop(job, None)
        just_made = known is not None and known.is_new and job not in self._current and job not in self._distrusted
        if known is None or not (answered == known.uid or just_made):
            since = self._cache.mark()
            try:
                raw = await self._api.get(JOBS, namespace, name)
            except NotFound:
                self._cache.drop(JOBS, job, since=since)
                self._current.pop(job, None)
                self._confirmed.pop(job, None)
                return
            self._cache.apply(JOBS, raw, since=since)
        since = self._cache.mark()
        pods = await self._api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}")
        shown = {key_of(raw) for raw in pods}
        for raw in pods:
            self._store(PODS, raw, since)
        for pod in self._cache.pods(job):
            if pod.key not in shown:
                self._drop(PODS, pod.key, since)
        record = self._cache.job(job)
        if record is not None and self._overtaken(record):
            await self._confirm(record)
            record = self._cache.job(job)
        if record is not None:
            self._current[job] = record.uid

    def _overtaken(self, record: JobRecord) -> bool:
        """Whether a pod names a newer run than the job's status: another operator wrote since."""
        known, newest = record.status.run if record.status is not None else 0, self._newest_run(record)
        return newest > known and self._confirmed.get(record.key) != (record.version, newest)

    def _newest_run(self, record: JobRecord) -> int:
        return max((pod.run for pod in self._cache.pods(record.key) if pod.view.owner_uid == record.uid), default=0)

    async def _confirm(self, record: JobRecord) -> None:
        """Read the job again. If it changed, raise Conflict; otherwise its status was rolled back, and it counts."""
        since = self._cache.mark()
        self._cache.apply(JOBS, await self._api.get(JOBS, *record.key), since=since)
        now = self._cache.job(record.key)
        if now is None or now.version != record.version:
            raise Conflict(f"trainingjob {'/'.join(record.key)} was changed while its pods were read")
        self._confirmed[record.key] = record.version, self._newest_run(record)
