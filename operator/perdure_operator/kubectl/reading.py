"""Reads a cluster for `kubectl perdure`: gets and lists only. The rest of the command is pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import Final

from perdure.errors import UserError
from perdure.wire import LABEL_JOB
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVENTS,
    EVICTIONS,
    JOBS,
    NODES,
    PODS,
    Forbidden,
    Json,
    NotFound,
)
from perdure_operator.cluster.read import parse, records
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.kubectl.bundle import Parts
from perdure_operator.kubectl.client import Kubectl
from perdure_operator.kubectl.job import JobSeen, in_order
from perdure_operator.kubectl.what_if import DrainSeen, Unseen

NO_CRD: Final = f"the cluster serves no TrainingJobs {JOBS.api_version}: is Perdure's CRD installed there?"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def name_of(what: str, given: str) -> str:
    """A name that was given for an object; raises UserError for what can be none, and would be another URL."""
    if not _NAME.fullmatch(given):
        raise UserError(f'"{given}" is no name of a {what}: names have lower-case letters, digits, "-" and "."')
    return given


async def jobs(api: Kubectl, namespace: str | None) -> list[JobSeen]:
    """All jobs there, without their pods."""
    try:
        listed = await api.list(JOBS, namespace)
    except NotFound:
        raise UserError(NO_CRD) from None
    return in_order(JobSeen(_job(raw), (), api.server_time()) for raw in listed)


async def job(api: Kubectl, namespace: str, name: str) -> JobSeen:
    """One job with its pods. The job is read first: a pod that its status names and that is not listed is gone."""
    record = _job(await _raw_job(api, namespace, name))
    listed = await api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}")
    views = sorted((parse.pod(raw) for raw in listed), key=lambda pod: pod.name)
    return JobSeen(record, tuple(pod for pod in views if pod.owner_uid == record.uid), api.server_time())


async def events(api: Kubectl, seen: JobSeen) -> list[Json]:
    """The job's events, as the API server stores them."""
    return await api.list(EVENTS, seen.record.key[0], fields=f"regarding.uid={seen.record.uid}")


async def before_a_drain(api: Kubectl, namespace: str | None, nodes: Sequence[str]) -> list[DrainSeen | Unseen]:
    """The jobs with pods on these nodes, as the operator sees them; of all namespaces, unless `-n` names one.

    Raises NotFound if there is no such node.
    """
    cache = Cache(responds=await api.serves(EVICTIONS))
    observer = Observer(api, cache, namespace=namespace)
    await observer.sync()
    for name in nodes:
        if cache.node(name) is None:
            raise NotFound(f'Error from server (NotFound): nodes "{name}" not found', status=404, reason="NotFound")
    return [
        await _with_warm_ups(api, observer, record)
        for record in sorted(cache.jobs(), key=lambda one: one.key)
        if any(pod.view.owner_uid == record.uid and pod.view.node in nodes for pod in cache.pods(record.key))
    ]


async def _with_warm_ups(api: Kubectl, observer: Observer, record: JobRecord) -> DrainSeen | Unseen:
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


async def for_a_bundle(api: Kubectl, namespace: str, name: str) -> Parts:
    """All that a support file is made of. What must not be read is named there; only the job itself has to be."""
    raw = await _raw_job(api, namespace, name)
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
        missing[what] = str(error)
        return []


async def _raw_job(api: Kubectl, namespace: str, name: str) -> Json:
    try:
        return await api.get(JOBS, namespace, name_of("training job", name))
    except NotFound:
        if await api.serves(JOBS):
            raise
        raise UserError(NO_CRD) from None


def _job(raw: Json) -> JobRecord:
    record = records.read(JOBS, raw)
    assert isinstance(record, JobRecord)  # noqa: S101 - records.read gives each resource its own kind
    return record
