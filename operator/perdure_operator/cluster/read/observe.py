"""From cache and live LISTs to the Snapshot that `decide` reads. Facts only; it writes nothing to the cluster.

A cache that is half filled looks like a cluster without pods. Therefore a job's first observation, the one after each
of our own writes and the one at each resync read the job and its pods live; in between the watch keeps that picture up
to date. Called by `loop.worker` and by `perdure-operator snapshot`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import ValidationError

from perdure.contract import LABEL_JOB
from perdure.errors import UserError
from perdure_operator.api import names
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster import decode
from perdure_operator.cluster.memory import Memory
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, ClusterApi, Json, NotFound
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache, Key, job_of
from perdure_operator.cluster.write import manifests
from perdure_operator.state.snapshot import NodeView, PodView, Snapshot

logger = logging.getLogger(__name__)


def utc_now() -> datetime:
    """The clock outside tests."""
    return datetime.now(UTC)


class Observer:
    """Builds snapshots; `namespace` None means all namespaces."""

    def __init__(
        self, api: ClusterApi, cache: Cache, *, namespace: str | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._clock = clock
        self._memories: dict[str, Memory] = {}
        self._current: set[Key] = set()
        self._nodes_listed = False

    async def sync(self) -> set[Key]:
        """Read jobs, nodes and budgets live: before the first decision and at each resync. Returns the jobs."""
        for resource in (NODES, BUDGETS, JOBS):
            known = self._cache.known(resource)
            namespace = self._namespace if resource.namespaced else None
            self._cache.replace(resource, await self._api.list(resource, namespace), known)
        self._nodes_listed = True
        jobs = set(self._cache.known(JOBS))
        self._current.clear()
        self._forget_all_but({parse.uid(raw) for raw in self._cache.all(JOBS)})
        return jobs

    def distrust(self, job: Key) -> None:
        """Read the job live next time: we have just written, or were told that we are behind."""
        self._current.discard(job)

    def memory(self, uid: str) -> Memory:
        """What this process remembers of the job."""
        return self._memories.setdefault(uid, Memory())

    async def observe(self, job: Key) -> Snapshot | None:
        """The job as it is now; None where it no longer exists."""
        if job not in self._current:
            await self._read_live(job)
        raw = self._cache.get(JOBS, job)
        return None if raw is None else await self._snapshot(job, raw)

    async def _read_live(self, job: Key) -> None:
        namespace, name = job
        before = self._cache.get(JOBS, job)
        try:
            self._cache.apply(JOBS, await self._api.get(JOBS, namespace, name), before=before)
        except NotFound:
            self._forget(job)
            return
        known = {key: raw for key, raw in self._cache.known(PODS).items() if job_of(raw) == job}
        pods = await self._api.list(PODS, namespace, selector=f"{LABEL_JOB}={name}")
        self._cache.replace(PODS, pods, known)
        self._current.add(job)

    def _forget(self, job: Key) -> None:
        stale = self._cache.get(JOBS, job)
        if stale is not None:
            self._cache.delete(JOBS, stale)
        self._cache.forget_gone(job, ())

    async def _snapshot(self, job: Key, raw: Json) -> Snapshot:
        namespace, name = job
        metadata, uid = parse.meta(raw), parse.uid(raw)
        spec, unknown, status = _parsed(job, raw)
        self._cache.forget_gone(job, _names_of_interest(status))
        live = self._cache.pods(job)
        pods = [parse.pod(one) for one in live] + [parse.pod(one, gone=True) for one in self._cache.gone(job)]
        memory = self._remembered(uid, job, status)
        _tell(job, unknown, int(metadata.get("generation", 0)), memory)
        own, foreign = self._budgets(namespace, uid, live)
        seen = Snapshot(
            now=self._clock(),
            namespace=namespace,
            name=name,
            uid=uid,
            generation=int(metadata.get("generation", 0)),
            resource_version=str(metadata.get("resourceVersion", "")),
            deleting=bool(metadata.get("deletionTimestamp")),
            creation_time=datetime.fromisoformat(metadata["creationTimestamp"]),
            spec=spec,
            unknown_fields=(*(f"spec.{field}" for field in unknown), *decode.left_out(raw)),
            status=status,
            pods=tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid))),
            pods_complete=job in self._current,
            nodes=await self._nodes(pods),
            nodes_complete=self._nodes_listed,
            budget=parse.budget(own) if own else None,
            foreign_budgets=foreign,
            same_uri=self._same_uri(raw),
            template_check=memory.template_check,
            refusals=tuple(memory.refusals.values()),
        )
        return seen.model_copy(update={"template_hash": manifests.template_hash(seen)})

    async def _nodes(self, pods: list[PodView]) -> tuple[NodeView, ...]:
        names = sorted({pod.node for pod in pods if pod.node and not pod.gone})
        return tuple([await self._node(name) for name in names])

    async def _node(self, name: str) -> NodeView:
        """A node that the cache does not have may be newer than the cache: only the API server can say it is gone."""
        raw = self._cache.get(NODES, ("", name))
        if raw is None:
            try:
                raw = await self._api.get(NODES, None, name)
            except NotFound:
                return NodeView(name=name, exists=False, ready=False)
            self._cache.apply(NODES, raw)
        return parse.node(raw)

    def _budgets(self, namespace: str, uid: str, pods: list[Json]) -> tuple[Json | None, tuple[str, ...]]:
        """The job's own budget, and the names of others that cover one of its pods."""
        ours = [parse.meta(pod).get("labels") or {} for pod in pods if parse.controller(pod) == uid]
        own, foreign = None, []
        for raw in self._cache.all(BUDGETS, namespace):
            selector = (raw.get("spec") or {}).get("selector")
            if parse.controller(raw) == uid:
                own = raw
            elif any(parse.selects(selector, labels) for labels in ours):
                foreign.append(str(parse.meta(raw)["name"]))
        return own, tuple(sorted(foreign))

    def _same_uri(self, raw: Json) -> tuple[str, ...]:
        mine, uri = _age(raw), parse.job_uri(raw)
        others = (one for one in self._cache.all(JOBS) if parse.job_is_live(one) and parse.job_uri(one) == uri)
        return tuple(sorted("/".join(_age(other)[1:]) for other in others if _age(other) < mine))

    def _remembered(self, uid: str, job: Key, status: TrainingJobStatus) -> Memory:
        """Without refusals of names that nobody wants any more."""
        memory = self.memory(uid)
        wanted = {*_names_of_interest(status), names.budget(job[1], uid)}
        memory.refusals = {name: refusal for name, refusal in memory.refusals.items() if name in wanted}
        return memory

    def _forget_all_but(self, uids: set[str]) -> None:
        for uid in set(self._memories) - uids:
            del self._memories[uid]


def _parsed(job: Key, raw: Json) -> tuple[TrainingJobSpec, tuple[str, ...], TrainingJobStatus]:
    """The spec, its fields that are unknown here, and the status."""
    try:
        return *parse.spec(raw.get("spec") or {}), TrainingJobStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"trainingjob {'/'.join(job)}: field {where}: {first['msg']}: CRD and operator are of different versions, "
            "install the matching CRD"
        ) from None


def _tell(job: Key, unknown: tuple[str, ...], generation: int, memory: Memory) -> None:
    """Say once for each generation what has no effect: refusing the job would let its nodes' drains hang."""
    if unknown and memory.told_generation != generation:
        memory.told_generation = generation
        logger.warning(
            "trainingjob %s: this operator does not know and ignores %s: CRD and operator are of different versions, "
            "install the matching ones",
            "/".join(job),
            ", ".join(unknown),
        )


def _names_of_interest(status: TrainingJobStatus) -> set[str]:
    planned = {member.name for member in status.current.plan.members} if status.current else set()
    return planned | set(status.next.members if status.next else ())


def _age(raw: Json) -> tuple[str, str, str]:
    metadata = parse.meta(raw)
    return str(metadata.get("creationTimestamp", "")), str(metadata.get("namespace", "")), str(metadata["name"])
