"""Reads a cluster for `kubectl perdure`: gets and lists only. The rest of the command is pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import yaml
from pydantic import ValidationError

from perdure.errors import UserError
from perdure.wire import LABEL_JOB
from perdure_operator.api.configured import rows_of
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cli.kubectl.bundle import Parts
from perdure_operator.cli.kubectl.client import Kubectl
from perdure_operator.cli.kubectl.job import JobSeen, in_order
from perdure_operator.cli.kubectl.moving import JobThere, there
from perdure_operator.cli.kubectl.what_if import DrainSeen, Unseen
from perdure_operator.cluster.batching import gather_in_batches
from perdure_operator.cluster.protocol import (
    BUDGETS,
    CONFIG_MAPS,
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
from perdure_operator.cluster.read.records import JobRecord, key_of
from perdure_operator.state.snapshot import PodView, Snapshot

logger = logging.getLogger(__name__)

SHIPPED: Final = "the shipped ones alone"
NO_CRD: Final = f"the cluster serves no TrainingJobs {JOBS.api_version}: is Perdure's CRD installed there?"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def name_of(what: str, given: str) -> str:
    """A name that was given for an object; raises UserError for what can be none, and would be another URL."""
    if not _NAME.fullmatch(given):
        raise UserError(f'"{given}" is no name of a {what}: names have lower-case letters, digits, "-" and "."')
    return given


async def jobs(api: Kubectl, namespace: str | None, selector: str = "") -> list[JobSeen]:
    """The jobs there with those labels, without their pods."""
    try:
        listed = await api.list(JOBS, namespace, selector=selector)
    except NotFound:
        raise UserError(NO_CRD) from None
    return in_order(JobSeen(job_of(raw), None, api.server_time()) for raw in listed)


async def job_alone(api: Kubectl, namespace: str, name: str) -> JobSeen:
    """One job without its pods."""
    return JobSeen(job_of(await _raw_job(api, namespace, name)), None, api.server_time())


async def job(api: Kubectl, namespace: str, name: str) -> JobSeen:
    """One job with its pods. The job is read first: a pod that its status names and that is not listed is gone.

    What may not be read, and a pod that cannot be read, become a warning.
    """
    record = job_of(await _raw_job(api, namespace, name))
    try:
        listed = await api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}")
    except Forbidden as error:
        logger.warning("members are not shown, as their pods may not be read: %s", error)
        return JobSeen(record, None, api.server_time())
    views = [view for raw in listed if (view := _view(raw))]
    return JobSeen(record, tuple(pod for pod in views if pod.owner_uid == record.uid), api.server_time())


def _view(raw: Json) -> PodView | None:
    try:
        return parse.pod(raw)
    except Exception:
        logger.exception("pods %s/%s: it cannot be read and is ignored", *key_of(raw))
        return None


async def events(api: Kubectl, seen: JobSeen) -> list[Json]:
    """The job's events, as the API server stores them."""
    return await api.list(EVENTS, seen.record.key[0], fields=f"regarding.uid={seen.record.uid}")


async def on_nodes(api: Kubectl, namespace: str | None, name: str | None, nodes: Sequence[str]) -> list[JobThere]:
    """That job, or all there, with their pods on these nodes; those that have none there are left out."""
    if name is None or namespace is None:
        known = [one.record for one in await jobs(api, namespace)]
    else:
        known = [job_of(await _raw_job(api, namespace, name))]
    selector = LABEL_JOB if name is None else f"{LABEL_JOB}={name}"
    views = [view for raw in await api.list(PODS, namespace, selector=selector) if (view := _view(raw))]
    return [found for record in known if (found := there(record, views, nodes)).pods]


@dataclass(frozen=True)
class Operator:
    """What the chart tells of an operator."""

    rows: tuple[SignalRow, ...]
    """Rows of the table of signals beside the shipped ones."""
    row_source: str
    """Where those rows come from, in words."""
    version: str = ""
    """The chart's; "" if unknown."""


async def operator(api: Kubectl, namespace: str, release: str) -> Operator:
    """What the chart's ConfigMap tells. Raises UserError for rows that this version cannot read."""
    name = f"{release}-operator-signals"
    config_map = f"ConfigMap {namespace}/{name}"
    try:
        raw = await api.get(CONFIG_MAPS, name_of("namespace", namespace), name_of("ConfigMap", name))
    except NotFound:
        elsewhere = "if the operator is elsewhere, give --operator NAMESPACE/RELEASE"
        return Operator((), f"{SHIPPED}, as there is no {config_map}; {elsewhere}")
    except Forbidden as error:
        return Operator((), f"{SHIPPED}, as {config_map} may not be read, which may change them: {error}")
    text = (raw.get("data") or {}).get("signals.yaml", "")
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{config_map}: not YAML: {error}") from None
    version = (parse.meta(raw).get("labels") or {}).get("app.kubernetes.io/version", "")
    return Operator(rows_of(given, config_map), f"those of {config_map}", version)


async def before_a_drain(
    api: Kubectl, namespace: str | None, nodes: Sequence[str], rows: tuple[SignalRow, ...] = ()
) -> list[DrainSeen | Unseen]:
    """The jobs with pods on these nodes, as the operator with these rows sees them; `namespace` None means all.

    Raises NotFound if there is no such node.
    """
    cache = Cache(rows, responds=await api.serves(EVICTIONS))
    observer = Observer(api, cache, namespace=namespace)
    await observer.sync()
    for name in nodes:
        if cache.node(name) is None:
            raise NotFound(f'Error from server (NotFound): nodes "{name}" not found', status=404, reason="NotFound")
    there = [
        record
        for record in sorted(cache.jobs(), key=lambda one: one.key)
        if any(pod.view.owner_uid == record.uid and pod.view.node in nodes for pod in cache.pods(record.key))
    ]
    return await gather_in_batches(lambda record: _with_warm_ups(api, observer, record), there)


async def _with_warm_ups(api: Kubectl, observer: Observer, record: JobRecord) -> DrainSeen | Unseen:
    namespace, name = record.key
    if record.fault:
        return Unseen(namespace, name, record.fault)
    snapshot = await observer.observe(record.key)
    if snapshot is None:
        return Unseen(namespace, name, "it was deleted meanwhile")
    listed = await api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}")
    spans = (warm_up(raw, snapshot) for raw in listed if parse.controller(raw) == record.uid)
    return DrainSeen(snapshot, tuple(span for span in spans if span is not None))


def warm_up(raw: Json, snapshot: Snapshot) -> float | None:
    """Seconds from the pod's creation until it was Ready; None if it is not, or if that cannot be known.

    A member is Ready before its run is planned. One that is Ready since a later time was not Ready in between, as after
    a pause of its node, and nothing tells when it was first.
    """
    created, view = parse.time(parse.meta(raw).get("creationTimestamp")), parse.pod(raw)
    plan = snapshot.status.current.plan if snapshot.status.current else None
    planned = plan.assigned_time if plan and any(one.uid == view.uid for one in plan.members) else None
    if created is None or view.ready_since is None or view.ready_since < created:
        return None
    return None if planned and view.ready_since > planned else (view.ready_since - created).total_seconds()


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


def job_of(raw: Json) -> JobRecord:
    """The job as the operator reads it; of one that it cannot read, the status alone if that is readable."""
    record = records.read(JOBS, raw)
    assert isinstance(record, JobRecord)  # noqa: S101 - records.read gives each resource its own kind
    if record.status is not None:
        return record
    try:
        return replace(record, status=TrainingJobStatus.model_validate(raw.get("status") or {}))
    except ValidationError:
        return record
