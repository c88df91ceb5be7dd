"""Each kind of write: the request, its answer's effect on the cache, and a refusal's effect on the memory.

Every write has a precondition or a name that status has reserved, so that a second or late write does no harm. Only
`act` calls this; it chooses the writes and their order.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never

from perdure.wire import ANNOTATION_ASSIGNMENT, ANNOTATION_REPORT, LABEL_ROLE
from perdure_operator.api import names
from perdure_operator.cluster import member
from perdure_operator.cluster.memory import Memory
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVICTIONS,
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
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import Key, PodRecord
from perdure_operator.cluster.write import admitted, manifests
from perdure_operator.state.decision import (
    Action,
    Answer,
    Assign,
    CheckTemplate,
    CreatePod,
    DeleteBudget,
    DeleteJob,
    DeletePod,
    DropTemplate,
    KeepTemplate,
    Mark,
    SetBudget,
)
from perdure_operator.state.snapshot import PodView, Refusal, RefusalKind, Snapshot, TemplateCheck, TemplateVerdict

logger = logging.getLogger(__name__)

REFUSED_SECONDS: Final = 90
"""How long a refused change or deletion counts: longer than the longest backoff of a round, so that repeated refusals
leave no gap, and short enough that one that is no longer tried soon expires."""
NOT_KEPT_SECONDS: Final = 3600
"""How long a refused kept template counts. Jobs can do without, and a missing right affects all of them."""
NO_CHANNEL_SECONDS: Final = 3600
"""How long new pods of a job are created without reporting after admission refused one that had it."""
_ONE_REQUESTS_OWN: Final = re.compile(r"[0-9a-fA-F:.-]*\d[0-9a-fA-F:.-]*")
"""A number, an id or a time: what may differ between two refusals for one cause."""
_PASSING: Final = ("failed calling webhook", "exceeded quota")
"""The API server's words for what the next moment may change."""
_ANNOTATIONS: Final = "/metadata/annotations"
_LABELS: Final = "/metadata/labels"


@dataclass(frozen=True, slots=True)
class Round:
    """The round that a write belongs to."""

    job: Snapshot
    pods: dict[str, PodView]
    """The pods' states at the decision, or after this round's writes, by uid."""
    memory: Memory


class Writes:
    """Carries out writes; answers go into the cache at once."""

    def __init__(
        self, api: ClusterApi, cache: Cache, clock: Callable[[], datetime], channel: Callable[[], str]
    ) -> None:
        """`channel` says where new members report; "" for nowhere."""
        self._api = api
        self._cache = cache
        self._clock = clock
        self._channel = channel

    async def carry_out(self, work: Round, action: Action) -> None:  # noqa: C901 - one case for each action
        """Carry out one action; raises ApiError."""
        job, memory = work.job, work.memory
        match action:
            case CheckTemplate():
                await self._check_template(job, memory)
            case KeepTemplate(name=name):
                await self._keep_template(job, name, memory)
            case DropTemplate(name=name, uid=uid):
                with self._noting_refusal(memory, name, uid):
                    await self.delete(REVISIONS, (job.namespace, name), uid)
            case SetBudget():
                await self._set_budget(job, action, memory)
            case DeleteBudget(uid=uid):
                name = names.budget(job.name, job.uid)
                with self._noting_refusal(memory, name, uid):
                    await self.delete(BUDGETS, (job.namespace, name), uid)
            case CreatePod():
                await self._create_pod(job, action, memory)
            case Assign():
                await self._assign(work, action)
            case Mark():
                await self._mark(job, action)
            case Answer():
                await self._answer(job, action, memory)
            case DeletePod():
                with self._noting_refusal(memory, action.name, action.uid):
                    await self._delete_pod(job, action, work.pods.get(action.uid))
            case DeleteJob(uid=uid):
                with self._noting_refusal(memory, job.name, uid):
                    await self._delete_job(job, uid)
            case _:
                assert_never(action)

    async def _check_template(self, job: Snapshot, memory: Memory) -> None:
        verdict, message = TemplateVerdict.GOOD, ""
        try:
            if lacks := admitted.missing_parts(await self._dry_run(job, memory)):
                verdict, message = TemplateVerdict.WAIT, lacks
        except Invalid as error:
            verdict, message = TemplateVerdict.BAD, str(error)
        except Forbidden as error:
            # Admission plugins and quotas answer 403 as well; only Pod Security is about the template.
            bad = "violates PodSecurity" in str(error)
            verdict, message = (TemplateVerdict.BAD if bad else TemplateVerdict.WAIT), str(error)
        except ApiError:
            memory.template_check = TemplateCheck(hash=job.template_hash, time=self._clock())
            raise
        memory.template_check = TemplateCheck(
            hash=job.template_hash, verdict=verdict, message=message, time=self._clock()
        )

    async def _dry_run(self, job: Snapshot, memory: Memory) -> Json:
        """The pod that admission makes of a member."""

        def body(channel: str) -> Json:
            return member.pod(job, names.dry_run(job.name, job.uid), channel=channel)

        async def create(pod: Json) -> Json:
            return await self._api.create(PODS, job.namespace, pod, dry_run=True)

        return await self._with_channel_if_admitted(job, memory, body, create)

    async def _with_channel_if_admitted(
        self, job: Snapshot, memory: Memory, body: Callable[[str], Json], create: Callable[[Json], Awaitable[Json]]
    ) -> Json:
        """What `create` returns for the body with the channel, or for one without where admission refuses it.

        Training needs no reports. So the job's pods come without for an hour, and status says why.
        """
        known = memory.channel_refused
        channel = self._channel()
        if not channel or (known and known.until and self._clock() < known.until):
            return await create(body(""))
        try:
            made = await create(body(channel))
            refused = admitted.lost_token(made)
        except (Forbidden, Invalid) as error:
            if _is_passing(error):
                raise
            made = await create(body(""))  # another reason than the channel is refused again
            refused = await self._still_refused(job, body(channel))
        memory.channel_refused = None
        if refused:
            message, until = _first_words(known, refused), self._clock() + timedelta(seconds=NO_CHANNEL_SECONDS)
            memory.channel_refused = Refusal(pod=job.name, message=message, until=until)
            words = "trainingjob %s/%s: its new members cannot report for an hour, and train without: %s"
            logger.warning(words, job.namespace, job.name, message)
        return made

    async def _still_refused(self, job: Snapshot, body: Json) -> str:
        """Why such a pod is refused while one without the channel is not; "" if it may be for another reason."""
        metadata = body["metadata"] | {"name": names.dry_run(job.name, job.uid)}
        try:
            await self._api.create(PODS, job.namespace, body | {"metadata": metadata}, dry_run=True)
        except (Forbidden, Invalid) as error:
            return "" if _is_passing(error) else str(error)
        except ApiError:
            return ""
        return ""

    async def _keep_template(self, job: Snapshot, name: str, memory: Memory) -> None:
        """Keep the template. After a refusal the job goes on without for an hour."""
        try:
            await self._create(REVISIONS, job, manifests.revision(job, name), memory)
        except (Forbidden, Invalid, AlreadyExists) as error:
            until = self._clock() + timedelta(seconds=NOT_KEPT_SECONDS)
            memory.refusals[name] = Refusal(pod=name, message=str(error), until=until)
            logger.warning(
                "trainingjob %s/%s: its template is not kept for an hour: %s", job.namespace, job.name, error
            )

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
            self._refuse(memory, name, error)
            raise
        memory.refusals.pop(name, None)

    def _refuse(self, memory: Memory, name: str, error: ApiError) -> None:
        """Remember that a change of this object was refused."""
        until = self._clock() + timedelta(seconds=REFUSED_SECONDS)
        message = _first_words(memory.refusals.get(name), error)
        memory.refusals[name] = Refusal(pod=name, kind=RefusalKind.PATCH_REFUSED, message=message, until=until)

    @contextmanager
    def _noting_refusal(self, memory: Memory, name: str, uid: str) -> Iterator[None]:
        """Remember that the deletion of this object is refused, until it is not."""
        try:
            yield
        except (Forbidden, Invalid) as error:
            until = self._clock() + timedelta(seconds=REFUSED_SECONDS)
            message = _first_words(memory.refused_deletions.get(uid), error)
            refusal = Refusal(pod=name, kind=RefusalKind.DELETION_REFUSED, message=message, until=until)
            memory.refused_deletions[uid] = refusal
            raise
        memory.refused_deletions.pop(uid, None)

    async def delete(self, resource: Resource, key: Key, uid: str, version: str = "") -> bool:
        """Delete exactly that object; returns whether it existed."""
        there = True
        try:
            await self._api.delete(resource, *key, uid=uid, version=version)
        except NotFound:
            there = False
        self._cache.forget(resource, key, uid)
        return there

    async def _create_pod(self, job: Snapshot, action: CreatePod, memory: Memory) -> None:
        kept = next((one for one in job.kept if one.name == action.kept), None)

        def body(channel: str) -> Json:
            return member.pod(
                job,
                action.name,
                apart=action.apart,
                away_from_members=action.away_from_members,
                avoid=action.avoid,
                kept=kept,
                priority_class=action.priority_class,
                channel=channel,
            )

        async def create(pod: Json) -> Json:
            return await self._create(PODS, job, pod, memory)

        try:
            await self._with_channel_if_admitted(job, memory, body, create)
        except (Forbidden, Invalid, AlreadyExists):
            raise  # the pod does not exist, or is not ours
        except BaseException:
            memory.created.add(action.name)  # without an answer it may exist
            raise
        memory.created.add(action.name)

    async def _create(self, resource: Resource, job: Snapshot, body: Json, memory: Memory) -> Json:
        """Create an object of the job; an existing one that the job owns counts as created."""
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
            memory.refusals[name] = Refusal(pod=name, message=_first_words(memory.refusals.get(name), error))
            raise
        memory.refusals.pop(name, None)
        self._cache.apply(resource, raw)
        return raw

    async def _assign(self, work: Round, action: Assign) -> None:
        """Write an assignment. A refusal, usually by a webhook, is remembered: it blocks all assignments until
        fixed."""
        patch = _assign_patch(work.job, action, work.pods.get(action.uid))
        try:
            written = await self._api.patch(PODS, work.job.namespace, action.name, patch)
        except NotFound as error:
            raise Conflict(str(error)) from None
        except (Forbidden, Invalid) as error:
            self._refuse(work.memory, action.name, error)
            raise
        work.memory.refusals.pop(action.name, None)
        work.pods[action.uid] = parse.pod(written)
        self._cache.apply(PODS, written)

    async def redirect(self, pod: PodRecord, channel: str) -> None:
        """Change where a member reports. Raises Conflict if the pod is gone."""
        namespace, name = pod.key
        try:
            written = await self._api.patch(PODS, namespace, name, _channel_patch(pod.uid, channel))
        except NotFound as error:
            raise Conflict(str(error)) from None
        self._cache.apply(PODS, written)

    async def _mark(self, job: Snapshot, action: Mark) -> None:
        """Write annotations for autoscalers and kubelets. A refusal is only logged, because assignments matter more."""
        try:
            written = await self._api.patch(PODS, job.namespace, action.name, _mark_patch(action))
        except NotFound as error:
            raise Conflict(str(error)) from None
        except (Forbidden, Invalid) as error:
            logger.warning("pod %s/%s: its annotations stay as they are: %s", job.namespace, action.name, error)
            return
        self._cache.apply(PODS, written)

    async def _answer(self, job: Snapshot, action: Answer, memory: Memory) -> None:
        """Answer an Eviction. A failure is only logged: nothing depends on it, and it is tried again."""
        memory.answered[action.uid] = min(action.heartbeat, job.now)
        try:
            written = await self._api.patch_status(EVICTIONS, job.namespace, action.name, _answer_patch(action))
        except (NotFound, Conflict, Forbidden, Invalid) as error:
            logger.warning(
                "eviction %s/%s: it is not answered now, and later again: %s", job.namespace, action.name, error
            )
            return
        self._cache.apply(EVICTIONS, written)

    async def _delete_pod(self, job: Snapshot, action: DeletePod, seen: PodView | None) -> None:
        """Delete a pod in the version that was seen: the next leader may have promoted it since."""
        version = seen.resource_version if seen else ""
        with suppress(NotFound):  # another write was faster
            await self._api.delete(
                PODS, job.namespace, action.name, uid=action.uid, version=version, grace=action.grace
            )

    async def _delete_job(self, job: Snapshot, uid: str) -> None:
        with suppress(NotFound):  # another write was faster
            await self._api.delete(JOBS, job.namespace, job.name, uid=uid)


def _first_words(known: Refusal | None, error: ApiError | str) -> str:
    """The refusal's message. A webhook may put a request's id or time into it: each try would then write status."""
    new = str(error)
    if known and _ONE_REQUESTS_OWN.sub("#", known.message) == _ONE_REQUESTS_OWN.sub("#", new):
        return known.message
    return new


def _is_passing(error: ApiError) -> bool:
    """Whether this refusal says nothing about the pod: its webhook did not answer, or others used up the quota."""
    return any(words in str(error) for words in _PASSING)


def _budget_patch(action: SetBudget, spec: Json) -> list[Json]:
    """Replace the whole spec, because users may have changed any field."""
    tests = [_test("/metadata/uid", action.uid)]
    if action.resource_version:
        tests.append(_test("/metadata/resourceVersion", action.resource_version))
    return [*tests, {"op": "replace", "path": "/spec", "value": spec}]


def _assign_patch(job: Snapshot, action: Assign, seen: PodView | None) -> list[Json]:
    annotation = f"{_ANNOTATIONS}/{_escaped(ANNOTATION_ASSIGNMENT)}"
    label = f"{_LABELS}/{_escaped(LABEL_ROLE)}"
    lacking = names.labels(job.name, job.uid) if seen and not seen.labelled else {}
    role = seen.role if seen else ""
    tests = [_test("/metadata/uid", action.uid)]
    tests += [_test(path, value) for path, value in ((annotation, action.old), (label, role)) if value]
    if seen and not (action.old and role):  # a user removed one, and a patch cannot test absence
        tests.append(_test("/metadata/resourceVersion", seen.resource_version))
    return [
        *tests,
        *_add(_ANNOTATIONS, {ANNOTATION_ASSIGNMENT: action.new}, there=seen is None or seen.has_annotations),
        *_add(_LABELS, {LABEL_ROLE: action.role} | lacking, there=seen is None or seen.has_labels),
    ]


def _add(path: str, entries: Mapping[str, str], *, there: bool) -> list[Json]:
    """Set these entries of a map; a patch cannot add one to a map that the object lacks."""
    if not there:
        return [{"op": "add", "path": path, "value": dict(entries)}]
    return [{"op": "add", "path": f"{path}/{_escaped(name)}", "value": value} for name, value in entries.items()]


def _mark_patch(action: Mark) -> list[Json]:
    old = action.old
    paths = {name: f"{_ANNOTATIONS}/{_escaped(name)}" for name in (*old, *action.new)}
    return [
        _test("/metadata/uid", action.uid),
        *(_test(paths[name], value) for name, value in old.items()),
        *({"op": "remove", "path": paths[name]} for name in old if name not in action.new),
        *({"op": "add", "path": paths[name], "value": new} for name, new in action.new.items() if old.get(name) != new),
    ]


def _channel_patch(uid: str, channel: str) -> list[Json]:
    path = f"{_ANNOTATIONS}/{_escaped(ANNOTATION_REPORT)}"
    return [_test("/metadata/uid", uid), {"op": "replace", "path": path, "value": channel}]


def _answer_patch(action: Answer) -> list[Json]:
    mine = f"/status/responders/{action.place}"
    times = {
        "heartbeatTime": action.heartbeat,
        "expectedCompletionTime": action.expected,
        "completionTime": action.completed,
    }
    return [
        _test("/metadata/uid", action.uid),
        _test(f"{mine}/name", names.RESPONDER),
        *({"op": "add", "path": f"{mine}/{name}", "value": _stamp(at)} for name, at in times.items() if at),
        {"op": "add", "path": f"{mine}/message", "value": action.message},
    ]


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _test(path: str, value: object) -> Json:
    return {"op": "test", "path": path, "value": value}


def _escaped(name: str) -> str:
    """A name as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
