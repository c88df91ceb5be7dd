"""Carries out a decision: status first, then the cluster writes in order, then events. It decides nothing.

A second operator, a late retry or a crash between two writes does no harm: see `writes`. A round that does not write
status depends on it too, so it first reads the job and requires the version that was decided about. Before each write
the leader checks that it still leads, because a process that was stopped for a minute does not notice. A refused write
blocks only the writes that depend on it: see `order`. Consecutive writes of one kind to pods go out together, because
deadlines already count. Called by `loop.worker`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster.memory import Memory
from perdure_operator.cluster.protocol import (
    EVENTS,
    JOBS,
    ApiError,
    ClusterApi,
    Conflict,
    NotFound,
    Resource,
    Unavailable,
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import JobRecord, Key, PodRecord, version_of
from perdure_operator.cluster.write import manifests, order
from perdure_operator.cluster.write.event_deduplication import EventDeduplicator
from perdure_operator.cluster.write.writes import Round, Writes
from perdure_operator.state.decision import (
    Action,
    CheckTemplate,
    Decision,
    JobEvent,
)
from perdure_operator.state.snapshot import Snapshot

logger = logging.getLogger(__name__)


class Actor:
    """Writes to the cluster; answers go into the cache at once."""

    def __init__(
        self,
        api: ClusterApi,
        cache: Cache,
        *,
        instance: str,
        clock: Callable[[], datetime] | None = None,
        still_leading: Callable[[], bool] = lambda: True,
        number: Callable[[], str] = lambda: secrets.token_hex(8),
        on_status: Callable[[Key, int], None] = lambda *_: None,
        channel: Callable[[], str] = lambda: "",
    ) -> None:
        """`number` makes the names of events unique. `on_status` learns the version of each written status. `channel`
        says where new members report; "" for nowhere."""
        self._api = api
        self._cache = cache
        self._instance = instance
        self._clock = clock or api.server_time
        self._writes = Writes(api, cache, self._clock, channel)
        self._still_leading = still_leading
        self._number = number
        self._on_status = on_status
        self._deduplicator = EventDeduplicator()

    async def act(self, job: Snapshot, decision: Decision, memory: Memory) -> None:
        """Carry out a decision. Raises ApiError after all writes that do not depend on the failed one."""
        self._require_lead()
        if decision.status is not None:
            await self._write_status((job.namespace, job.name), job.uid, job.resource_version, decision.status)
            memory.allotted |= _upcoming(decision.status) - _upcoming(job.status)
        elif any(not isinstance(action, CheckTemplate) for action in decision.actions):
            await self._require_unchanged(job)
        try:
            pods = {pod.uid: pod for pod in job.pods if not pod.gone}
            await self._carry_out_all(Round(job, pods, memory), decision.actions)
        except ApiError:
            await self._send(job, decision.events)  # status is written: no later round sends these events
            raise
        await self._send(job, decision.events)

    async def show(self, job: JobRecord, status: TrainingJobStatus) -> None:
        """Write display-only status fields, outside the rounds. Raises Conflict if the job is not in this version any
        more."""
        self._require_lead()
        await self._write_status(job.key, job.uid, job.resource_version, status)

    async def redirect(self, pod: PodRecord, channel: str) -> None:
        """Change where a member reports, outside the rounds. Raises Conflict if it is gone, or if another operator may
        lead."""
        self._require_lead()
        await self._writes.redirect(pod, channel)

    async def remove(self, resource: Resource, key: Key, *, uid: str, version: str) -> bool:
        """Delete an object that outlived its job; False if it is gone already.

        Raises Conflict if it changed, or if another operator may lead.
        """
        self._require_lead()
        return await self._writes.delete(resource, key, uid, version)

    def _require_lead(self) -> None:
        if not self._still_leading():
            raise _lease_too_old()

    async def _require_unchanged(self, job: Snapshot) -> None:
        """Raise Conflict if the job is not in the version that was decided about."""
        try:
            raw = await self._api.get(JOBS, job.namespace, job.name)
        except NotFound as error:
            raise Conflict(str(error)) from None
        if (parse.uid(raw), str(version_of(raw))) != (job.uid, job.resource_version):
            self._cache.apply(JOBS, raw)
            raise Conflict(f"trainingjob {job.namespace}/{job.name} is not in version {job.resource_version} any more")

    async def _write_status(self, job: Key, uid: str, version: str, status: TrainingJobStatus) -> None:
        namespace, name = job
        body = {
            "apiVersion": JOBS.api_version,
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version},
            "status": status.stored(),
        }
        try:
            written = await self._api.replace_status(JOBS, namespace, name, body)
        except NotFound as error:
            raise Conflict(str(error)) from None
        self._on_status(job, version_of(written))
        self._cache.apply(JOBS, written)

    async def _carry_out_all(self, work: Round, actions: Sequence[Action]) -> None:
        raised: list[BaseException] = []
        failed: list[Action] = []
        for batch in order.batches(actions):
            if not self._still_leading():
                raised.append(_lease_too_old())
                break
            due = [action for action in batch if not order.held_up(action, failed, work.pods)]
            answers = await self._answers(work, due)
            errors = [answer for answer in answers if answer is not None]
            raised += errors
            failed += [action for action, answer in zip(due, answers, strict=True) if answer is not None]
            if errors and order.unanswered(answers):
                break
        if raised:  # the first, or the one with the longest Retry-After
            raise max(raised, key=_retry_after)

    async def _answers(self, work: Round, actions: Sequence[Action]) -> list[BaseException | None]:
        """Wait for every answer, even after a refusal: no write may be in flight when the next round observes."""
        writes = (self._writes.carry_out(work, action) for action in actions)
        return await asyncio.gather(*writes, return_exceptions=True)

    async def _send(self, job: Snapshot, events: Iterable[JobEvent]) -> None:
        """Send events, best effort: a failure is only logged, because status says the same.

        After one without an answer the rest is skipped, because each would hold the worker for a whole timeout.
        """
        for event in events:
            now = self._clock()
            sent = self._deduplicator.to_send(job.uid, event, now)
            if sent is None:
                continue
            body = manifests.event(job, sent, now=now, instance=self._instance, number=self._number())
            try:
                await self._api.create(EVENTS, job.namespace, body)
            except ApiError as error:
                words = "trainingjob %s/%s: its event %s was not sent, its status says the same: %s"
                logger.warning(words, job.namespace, job.name, event.reason, error)
                if isinstance(error, Unavailable):
                    return
                continue
            self._deduplicator.sent(job.uid, event, now)


def _lease_too_old() -> Conflict:
    return Conflict("the Lease is too old to write anything: another operator may lead")


def _retry_after(error: BaseException) -> float:
    """The server's Retry-After in seconds; 0 without one."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


def _upcoming(status: TrainingJobStatus) -> set[str]:
    """The names allocated for the next run, and the spares'."""
    return {*(status.next.members if status.next else ()), *(status.spares.names if status.spares else ())}
