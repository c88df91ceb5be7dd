"""Reads a cluster for `kubectl perdure`: gets and lists only. The rest of the command is pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from perdure.errors import UserError
from perdure.wire import LABEL_JOB
from perdure_operator.cluster import kube
from perdure_operator.cluster.kube import KubeApi
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVENTS,
    EVICTIONS,
    JOBS,
    NODES,
    PODS,
    ApiError,
    Conflict,
    Forbidden,
    Json,
    NotFound,
)
from perdure_operator.cluster.read import parse, records
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.kubectl.bundle import Parts
from perdure_operator.kubectl.job import JobSeen, in_order
from perdure_operator.kubectl.what_if import DrainSeen, Unseen


@dataclass(frozen=True)
class Where:
    """Which cluster, and which namespace of it, as kubectl's flags say."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False

    @property
    def scope(self) -> str | None:
        """The namespace to list; None for all."""
        return None if self.all_namespaces else self.one

    @property
    def one(self) -> str:
        """The namespace of a job that is named; `-n` comes before the context's."""
        return self.namespace or kube.namespace_of(self.kubeconfig, self.context)


@asynccontextmanager
async def connected(where: Where) -> AsyncIterator[KubeApi]:
    """A connection, with refusals in the words of kubectl. Raises UserError."""
    async with await kube.login(where.kubeconfig, where.context) as api:
        try:
            yield api
        except ApiError as error:
            raise UserError(in_words(error)) from None


def in_words(error: ApiError) -> str:
    """A refusal as kubectl puts it."""
    if isinstance(error, Conflict) and not error.status:
        return f"{error}: try again"
    message = str(error).partition(": ")[2] or str(error)
    if not error.status:
        return f"the API server does not answer: {message}"
    return f"from server ({error.reason or error.status}): {message}"


async def jobs(api: KubeApi, where: Where) -> list[JobSeen]:
    """All jobs there, without their pods."""
    try:
        listed = await api.list(JOBS, where.scope)
    except NotFound:
        raise UserError("the cluster has no TrainingJobs: Perdure's CRD is not installed there") from None
    return in_order(JobSeen(_job(raw), (), api.server_time()) for raw in listed)


async def job(api: KubeApi, where: Where, name: str) -> JobSeen:
    """One job with its pods. The job is read first: a pod that its status names and that is not listed is gone."""
    record = _job(await _raw_job(api, where, name))
    listed = await api.list(PODS, where.one, selector=f"{LABEL_JOB}={name}")
    views = sorted((parse.pod(raw) for raw in listed), key=lambda pod: pod.name)
    return JobSeen(record, tuple(pod for pod in views if pod.owner_uid == record.uid), api.server_time())


async def events(api: KubeApi, seen: JobSeen) -> list[Json]:
    """The job's events, as the API server stores them."""
    return await api.list(EVENTS, seen.record.key[0], fields=f"regarding.uid={seen.record.uid}")


async def before_a_drain(api: KubeApi, where: Where, nodes: Sequence[str]) -> list[DrainSeen | Unseen]:
    """The jobs with pods on these nodes, as the operator sees them; of all namespaces, unless `-n` names one.

    Raises UserError if there is no such node.
    """
    cache = Cache(responds=await api.serves(EVICTIONS))
    observer = Observer(api, cache, namespace=where.namespace)
    await observer.sync()
    for name in nodes:
        if cache.node(name) is None:
            raise UserError(f'from server (NotFound): nodes "{name}" not found')
    return [
        await _with_warm_ups(api, observer, record)
        for record in sorted(cache.jobs(), key=lambda one: one.key)
        if any(pod.view.owner_uid == record.uid and pod.view.node in nodes for pod in cache.pods(record.key))
    ]


async def _with_warm_ups(api: KubeApi, observer: Observer, record: JobRecord) -> DrainSeen | Unseen:
    namespace, name = record.key
    if record.fault:
        return Unseen(namespace, name, record.fault)
    snapshot = await observer.observe(record.key)
    if snapshot is None:
        return Unseen(namespace, name, "it was deleted meanwhile")
    listed = await api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}")
    spans = (_warm_up(raw) for raw in listed if parse.controller(raw) == record.uid)
    return DrainSeen(snapshot, tuple(span for span in spans if span is not None))


def _warm_up(raw: Json) -> float | None:
    """Seconds from the pod's creation until it was Ready; None if it is not, or its clocks disagree."""
    created, view = parse.time(parse.meta(raw).get("creationTimestamp")), parse.pod(raw)
    if created is None or view.ready_since is None or view.ready_since < created:
        return None
    return (view.ready_since - created).total_seconds()


async def for_a_bundle(api: KubeApi, where: Where, name: str) -> Parts:
    """All that a support file is made of. What must not be read is named there; only the job itself has to be."""
    namespace, raw = where.one, await _raw_job(api, where, name)
    missing = dict[str, str]()
    mine = f"regarding.uid={parse.uid(raw)}"
    return Parts(
        job=raw,
        pods=await _listed(api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}"), "pods", missing),
        events=await _listed(api.list(EVENTS, namespace, fields=mine), "events", missing),
        budgets=await _listed(api.list(BUDGETS, namespace), "podDisruptionBudgets", missing),
        nodes=await _listed(api.list(NODES), "nodes", missing),
        missing=missing,
    )


async def _listed(listing: Awaitable[list[Json]], what: str, missing: dict[str, str]) -> list[Json]:
    """A LIST, or what the API server says about it in `missing`."""
    try:
        return await listing
    except Forbidden as error:
        missing[what] = in_words(error)
        return []


async def _raw_job(api: KubeApi, where: Where, name: str) -> Json:
    try:
        return await api.get(JOBS, where.one, name)
    except NotFound:
        raise UserError(f'from server (NotFound): trainingjobs.perdure.dev "{name}" not found') from None


def _job(raw: Json) -> JobRecord:
    record = records.read(JOBS, raw)
    assert isinstance(record, JobRecord)  # noqa: S101 - records.read gives each resource its own kind
    return record
