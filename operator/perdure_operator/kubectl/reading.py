"""Reads a cluster for `kubectl perdure`: gets and lists only. The rest of the command is pure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from perdure.errors import UserError
from perdure.wire import LABEL_JOB
from perdure_operator.cluster import kube
from perdure_operator.cluster.kube import KubeApi
from perdure_operator.cluster.protocol import JOBS, PODS, ApiError, Json, NotFound
from perdure_operator.cluster.read import parse, records
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.kubectl.job import JobSeen, in_order


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
    try:
        record = _job(await api.get(JOBS, where.one, name))
    except NotFound:
        raise UserError(f'from server (NotFound): trainingjobs.perdure.dev "{name}" not found') from None
    listed = await api.list(PODS, where.one, selector=f"{LABEL_JOB}={name}")
    views = sorted((parse.pod(raw) for raw in listed), key=lambda pod: pod.name)
    return JobSeen(record, tuple(pod for pod in views if pod.owner_uid == record.uid), api.server_time())


def _job(raw: Json) -> JobRecord:
    record = records.read(JOBS, raw)
    assert isinstance(record, JobRecord)  # noqa: S101 - records.read gives each resource its own kind
    return record
