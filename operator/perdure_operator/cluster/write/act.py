"""Carries a decision out: status first, then the cluster writes in order, then events. It decides nothing.

Every write has a precondition or a name that status has reserved, so that a second operator, a late retry or a crash
between any two writes does no harm. A round that leaves status as it is rests on it all the same: the job is read first
and has to be the very one that was decided about. Before each write the leader looks whether it still leads: a process
that was stopped for a minute does not know it. A refusal holds up what rests on what was refused, and nothing else:
see `order`. Writes of one kind to pods that follow each other go out together, for a deadline already counts.
Called by `loop.worker`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from perdure.contract import ANNOTATION_ASSIGNMENT, LABEL_ROLE
from perdure_operator.api import names
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster import member
from perdure_operator.cluster.memory import Memory
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVENTS,
    JOBS,
    PODS,
    REVISIONS,
    AlreadyExists,
    ApiError,
    ClusterApi,
    Conflict,
    Forbidden,
    Invalid,
    Json,
    NotFound,
    Resource,
    Unavailable,
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import Key, version_of
from perdure_operator.cluster.write import manifests, order
from perdure_operator.cluster.write.news import News
from perdure_operator.state.decision import (
    Action,
    Assign,
    CheckTemplate,
    CreatePod,
    Decision,
    DeleteBudget,
    DeleteJob,
    DeletePod,
    DropTemplate,
    Event,
    KeepTemplate,
    SetBudget,
)
from perdure_operator.state.snapshot import PodView, Refusal, RefusalKind, Snapshot, TemplateCheck, TemplateVerdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Round:
    job: Snapshot
    pods: dict[str, PodView]
    """By uid: as they were when the decision was made, or as this round has left them."""
    memory: Memory


class Actor:
    """Writes to the cluster; what it gets back goes into the cache at once."""

    def __init__(
        self,
        api: ClusterApi,
        cache: Cache,
        *,
        instance: str,
        clock: Callable[[], datetime] | None = None,
        still_leading: Callable[[], bool] = lambda: True,
        number: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`number` makes the names of events unique."""
        self._api = api
        self._cache = cache
        self._instance = instance
        self._clock = clock or api.server_time
        self._still_leading = still_leading
        self._number = number
        self._news = News()

    async def act(self, job: Snapshot, decision: Decision, memory: Memory) -> None:
        """Raises the first ApiError, once everything that does not rest on the write that failed has been written."""
        self._require_lead()
        if decision.status is not None:
            await self._write_status(job, decision.status)
            memory.allotted |= _upcoming(decision.status) - _upcoming(job.status)
        elif any(not isinstance(action, CheckTemplate) for action in decision.actions):
            await self._require_unchanged(job)
        try:
            pods = {pod.uid: pod for pod in job.pods if not pod.gone}
            await self._carry_out_all(_Round(job, pods, memory), decision.actions)
        except ApiError:
            await self._send(job, decision.events)  # status is written: no later round will say this again
            raise
        await self._send(job, decision.events)

    async def remove(self, resource: Resource, key: Key, *, uid: str, version: str) -> bool:
        """Delete what has outlived its job; False where somebody was faster.

        Raises Conflict where it has changed, or where another operator may lead.
        """
        self._require_lead()
        return await self._delete(resource, key, uid, version)

    def _require_lead(self) -> None:
        if not self._still_leading():
            raise Conflict("the Lease is too old to write anything: another operator may lead")

    async def _require_unchanged(self, job: Snapshot) -> None:
        """Decided about an older state, or by a leader that is none any more: observe again."""
        try:
            raw = await self._api.get(JOBS, job.namespace, job.name)
        except NotFound as error:
            raise Conflict(str(error)) from None
        if (parse.uid(raw), str(version_of(raw))) != (job.uid, job.resource_version):
            self._cache.apply(JOBS, raw)
            raise Conflict(f"trainingjob {job.namespace}/{job.name} is not in version {job.resource_version} any more")

    async def _write_status(self, job: Snapshot, status: TrainingJobStatus) -> None:
        body = {
            "apiVersion": JOBS.api_version,
            "kind": "TrainingJob",
            "metadata": {
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
                "resourceVersion": job.resource_version,
            },
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        try:
            written = await self._api.replace_status(JOBS, job.namespace, job.name, body)
        except NotFound as error:
            raise Conflict(str(error)) from None
        self._cache.apply(JOBS, written)

    async def _carry_out_all(self, work: _Round, actions: Sequence[Action]) -> None:
        first: BaseException | None = None
        failed: list[Action] = []
        for batch in order.batches(actions):
            self._require_lead()
            due = [action for action in batch if not order.held_up(action, failed, work.pods)]
            answers = await self._answers(work, due)
            errors = [answer for answer in answers if answer is not None]
            first = first or next(iter(errors), None)
            failed += [action for action, answer in zip(due, answers, strict=True) if answer is not None]
            if errors and order.unanswered(answers):
                break
        if first is not None:
            raise first

    async def _answers(self, work: _Round, actions: Sequence[Action]) -> list[BaseException | None]:
        """Wait for every answer, also after a refusal: nothing may still be under way when the next round looks."""
        writes = (self._carry_out(work, action) for action in actions)
        return await asyncio.gather(*writes, return_exceptions=True)

    async def _carry_out(self, work: _Round, action: Action) -> None:
        job, memory = work.job, work.memory
        match action:
            case CheckTemplate():
                await self._check_template(job, memory)
            case KeepTemplate(name=name):
                await self._keep_template(job, name, memory)
            case DropTemplate(name=name, uid=uid):
                await self._delete(REVISIONS, (job.namespace, name), uid)
            case SetBudget():
                await self._set_budget(job, action, memory)
            case DeleteBudget(uid=uid):
                await self._delete(BUDGETS, (job.namespace, names.budget(job.name, job.uid)), uid)
            case CreatePod():
                await self._create_pod(job, action, memory)
            case Assign():
                await self._assign(work, action)
            case DeletePod():
                await self._delete_pod(job, action, work.pods.get(action.uid))
            case DeleteJob(uid=uid):
                await self._delete_job(job, uid)
            case _:
                assert_never(action)

    async def _check_template(self, job: Snapshot, memory: Memory) -> None:
        body = member.pod(job, names.dry_run(job.name, job.uid))
        verdict, message = TemplateVerdict.GOOD, ""
        try:
            await self._api.create(PODS, job.namespace, body, dry_run=True)
        except Invalid as error:
            verdict, message = TemplateVerdict.BAD, str(error)
        except Forbidden as error:
            # Admission plugins and quotas answer 403 as well: only Pod Security blames the template.
            bad = "violates PodSecurity" in str(error)
            verdict, message = (TemplateVerdict.BAD if bad else TemplateVerdict.WAIT), str(error)
        except ApiError:
            memory.template_check = TemplateCheck(hash=job.template_hash, time=self._clock())
            raise
        memory.template_check = TemplateCheck(
            hash=job.template_hash, verdict=verdict, message=message, time=self._clock()
        )

    async def _keep_template(self, job: Snapshot, name: str, memory: Memory) -> None:
        """A refusal stops nothing: until the next template the job does as if there were no way to keep one."""
        try:
            await self._create(REVISIONS, job, manifests.revision(job, name), memory)
        except (Forbidden, Invalid, AlreadyExists) as error:
            logger.warning("trainingjob %s/%s: its template is not kept: %s", job.namespace, job.name, error)

    async def _set_budget(self, job: Snapshot, action: SetBudget, memory: Memory) -> None:
        name, body = names.budget(job.name, job.uid), manifests.budget(job, action.min_available)
        if action.uid is None:
            raw = await self._create(BUDGETS, job, body, memory)
            if parse.budget(raw).min_available != action.min_available:
                raise Conflict(f"poddisruptionbudget {job.namespace}/{name} exists with another minAvailable")
            return
        try:
            patch = _budget_patch(action, body["spec"])
            self._cache.apply(BUDGETS, await self._api.patch(BUDGETS, job.namespace, name, patch))
        except Conflict:
            since = self._cache.mark()
            self._cache.apply(BUDGETS, await self._api.get(BUDGETS, job.namespace, name), since=since)
            raise
        except (Forbidden, Invalid) as error:
            memory.refusals[name] = Refusal(pod=name, kind=RefusalKind.PATCH_REFUSED, message=str(error))
            raise
        memory.refusals.pop(name, None)

    async def _delete(self, resource: Resource, key: Key, uid: str, version: str = "") -> bool:
        """Whether it was there."""
        there = True
        try:
            await self._api.delete(resource, *key, uid=uid, version=version)
        except NotFound:
            there = False
        self._cache.forget(resource, key, uid)
        return there

    async def _create_pod(self, job: Snapshot, action: CreatePod, memory: Memory) -> None:
        kept = next((one for one in job.kept if one.name == action.kept), None)
        try:
            await self._create(PODS, job, member.pod(job, action.name, apart=action.apart, kept=kept), memory)
        except (Forbidden, Invalid, AlreadyExists):
            raise  # it does not exist, or is not ours
        except BaseException:
            memory.created.add(action.name)  # nobody has said that it was not
            raise
        memory.created.add(action.name)

    async def _create(self, resource: Resource, job: Snapshot, body: Json, memory: Memory) -> Json:
        """Create an object of the job's; one that is there already and is the job's own counts as created."""
        name = body["metadata"]["name"]
        try:
            raw = await self._api.create(resource, job.namespace, body)
        except AlreadyExists:
            raw = await self._api.get(resource, job.namespace, name)
            if parse.controller(raw) != job.uid:
                message = f"{resource.plural} {job.namespace}/{name} exists and is not this job's: delete or rename it"
                memory.refusals[name] = Refusal(pod=name, kind=RefusalKind.NAME_TAKEN, message=message)
                raise
        except (Forbidden, Invalid) as error:
            memory.refusals[name] = Refusal(pod=name, message=str(error))
            raise
        memory.refusals.pop(name, None)
        self._cache.apply(resource, raw)
        return raw

    async def _assign(self, work: _Round, action: Assign) -> None:
        """Who refuses it, most often a webhook, has to be named: until it is mended nobody can be told anything."""
        patch = _assign_patch(work.job, action, work.pods.get(action.uid))
        try:
            written = await self._api.patch(PODS, work.job.namespace, action.name, patch)
        except NotFound as error:
            raise Conflict(str(error)) from None
        except (Forbidden, Invalid) as error:
            kind, message = RefusalKind.PATCH_REFUSED, str(error)
            work.memory.refusals[action.name] = Refusal(pod=action.name, kind=kind, message=message)
            raise
        work.memory.refusals.pop(action.name, None)
        work.pods[action.uid] = parse.pod(written)
        self._cache.apply(PODS, written)

    async def _delete_pod(self, job: Snapshot, action: DeletePod, seen: PodView | None) -> None:
        """A pod that has changed since may have been promoted by the next leader."""
        version = seen.resource_version if seen else ""
        with suppress(NotFound):  # somebody was faster
            await self._api.delete(
                PODS, job.namespace, action.name, uid=action.uid, version=version, grace=action.grace
            )

    async def _delete_job(self, job: Snapshot, uid: str) -> None:
        with suppress(NotFound):  # somebody was faster
            await self._api.delete(JOBS, job.namespace, job.name, uid=uid)

    async def _send(self, job: Snapshot, events: Iterable[Event]) -> None:
        """Best effort: an event that cannot be sent is only logged, for status says the same.

        The rest is not tried after one without an answer: each would hold the worker for as long as a call may take.
        """
        for event in events:
            now = self._clock()
            news = self._news.worth_telling(job.uid, event, now)
            if news is None:
                continue
            body = manifests.event(job, news, now=now, instance=self._instance, number=self._number())
            try:
                await self._api.create(EVENTS, job.namespace, body)
            except ApiError as error:
                logger.warning("event %s of %s/%s not sent: %s", event.reason, job.namespace, job.name, error)
                if isinstance(error, Unavailable):
                    return
                continue
            self._news.sent(job.uid, event, now)


def _upcoming(status: TrainingJobStatus) -> set[str]:
    """The names allocated for the next run."""
    return set(status.next.members) if status.next else set()


def _budget_patch(action: SetBudget, spec: Json) -> list[Json]:
    """The whole spec: whoever may edit the budget may have written anything there."""
    tests = [_test("/metadata/uid", action.uid)]
    if action.resource_version:
        tests.append(_test("/metadata/resourceVersion", action.resource_version))
    return [*tests, {"op": "replace", "path": "/spec", "value": spec}]


def _assign_patch(job: Snapshot, action: Assign, seen: PodView | None) -> list[Json]:
    annotation = f"/metadata/annotations/{_escaped(ANNOTATION_ASSIGNMENT)}"
    label = f"/metadata/labels/{_escaped(LABEL_ROLE)}"
    lacking = names.labels(job.name, job.uid) if seen and not seen.labelled else {}
    role = seen.role if seen else ""
    tests = [_test("/metadata/uid", action.uid)]
    tests += [_test(path, value) for path, value in ((annotation, action.old), (label, role)) if value]
    if seen and not (action.old and role):  # somebody has removed one, and a test of nothing cannot hold
        tests.append(_test("/metadata/resourceVersion", seen.resource_version))
    return [
        *tests,
        {"op": "add", "path": annotation, "value": action.new},
        {"op": "add", "path": label, "value": action.role},
        *({"op": "add", "path": f"/metadata/labels/{_escaped(name)}", "value": lacking[name]} for name in lacking),
    ]


def _test(path: str, value: object) -> Json:
    return {"op": "test", "path": path, "value": value}


def _escaped(name: str) -> str:
    """A name as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
