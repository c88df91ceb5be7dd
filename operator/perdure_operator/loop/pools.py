"""Gives the jobs of policy Goodput their sizes, while this process leads.

A look sees each pool (a namespace's jobs of that policy with one `elastic.pool`), has its devices shared, and writes
`status.scaling` where that changes: the wanted size, and nothing else. Whatever fails here, jobs train on in the sizes
that they have. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from perdure.wire.scaling import ScalingHints
from perdure_operator.api.signal_rows import Reaction
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import Disruption, Scaling, Takeover, TrainingJobStatus
from perdure_operator.cluster.protocol import ApiError, Conflict, Json, Unavailable
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import JobRecord, Key, NodeRecord
from perdure_operator.cluster.write.act import Actor
from perdure_operator.decide.failing_members import amount_of
from perdure_operator.decide.packing import Pool
from perdure_operator.decide.sharing import (
    PoolJob,
    Tables,
    first_steps,
    has_room,
    share,
    sizes_to_look_at,
    speedup_table,
    weighed,
    with_wish,
    without_spares,
)
from perdure_operator.decide.signals import rows_shown, tolerates
from perdure_operator.decide.sizing import sizes_of, wanted_members
from perdure_operator.loop.queue import Queue
from perdure_operator.state.signal_table import table
from perdure_operator.state.snapshot import PodView, Taint, Toleration

LOOK_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 10.0
LEFT_ALONE_SECONDS: Final = 60.0
"""The time until the next try for a job whose size the API server refuses, or for a pool that met an error."""
SILENT_SECONDS: Final = 300.0
"""So long a job's hints count, and so long a run may take until it has some."""
WARM_UP_SECONDS: Final = 10.0
"""How long the devices of new members idle before these train."""
PAUSE_OF_A_CHANGE: Final = 1.0
"""Seconds that training stops for a change of size, until one was measured."""
PAUSE_OF_A_RESTART: Final = 60.0
"""The same, where the last one was no live hand-over."""

BY_SPEED: Final = "the pool gives this size by what its jobs gain"
MINIMUM: Final = "the smallest size, as nothing is known of the job's speed yet"
AS_IT_HAS: Final = "the size that it has, as nothing is heard of the job's speed"
AS_CAPACITY: Final = "spec.replicas as with policy Capacity, as the job tells nothing of its speed"

_NOT_READY: Final = "node.kubernetes.io/not-ready"
"""The taint of a node that becomes Ready: it goes a moment later."""
_OVER: Final = frozenset({"Succeeded", "Failed"})
_MUST_LEAVE: Final = frozenset({Reaction.VACATE, Reaction.VACATE_BY_DEADLINE, Reaction.FAULT})
_KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})

logger = logging.getLogger(__name__)

Hints = Callable[[JobRecord, datetime], tuple[ScalingHints, float] | None]
"""What a job has measured of its speed, and how many seconds ago it said so."""


def no_hints(_job: JobRecord, _now: datetime) -> None:
    """Where members do not report."""


@dataclass
class PoolKeeper:
    """Writes the sizes of jobs of policy Goodput. Belongs to one event loop."""

    cache: Cache
    hints: Hints
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    heard: dict[str, tuple[ScalingHints, datetime]] = field(default_factory=dict)
    """The newest hints of each job and when it gave them, by its uid: a run that has just begun has given none."""
    began: datetime | None = None
    """When the first look was."""
    left_alone: dict[Key | str, datetime] = field(default_factory=dict)
    """Until when a pool is left out, and a job by its uid."""

    async def follow(self, actor: Actor, queue: Queue) -> None:
        """Look every two seconds, forever."""
        while True:
            await self.sleep(LOOK_SECONDS)
            try:
                await self.look(actor, queue)
            except ApiError as error:
                logger.warning("the sizes of jobs that share a pool are not written, tried again in 10 s: %s", error)
                await self.sleep(PAUSE_SECONDS)
            except Exception:
                logger.exception("an unexpected error as pools were shared: jobs keep their sizes, tried again in 10 s")
                await self.sleep(PAUSE_SECONDS)

    async def look(self, actor: Actor, queue: Queue) -> None:
        """Write the sizes that change now. Raises Unavailable."""
        now = self.clock()
        self.began = self.began or now
        self.left_alone = {what: until for what, until in self.left_alone.items() if now < until}
        pools: dict[Key, list[JobRecord]] = defaultdict(list)
        for job in self.cache.jobs():
            if job.spec is None or job.status is None:
                continue
            if job.spec.elastic is None or not job.spec.elastic.shares:
                if job.status.scaling is not None:
                    await self._write(job, None, actor, queue)
            elif not (job.deleting or job.spec.suspend or job.status.finished_at or job.is_new):
                pools[job.key[0], job.spec.elastic.pool or ""].append(job)
        self._listen([job for jobs in pools.values() for job in jobs], now)
        for pool, jobs in pools.items():
            for job, scaling in self._of_pool(pool, jobs, now):
                await self._write(job, scaling, actor, queue)

    def _listen(self, jobs: Iterable[JobRecord], now: datetime) -> None:
        """Keep what is heard of these jobs, and forget all others."""
        heard = {}
        for job in jobs:
            told = self.hints(job, now)
            if told is not None:
                heard[job.uid] = told[0], now - timedelta(seconds=told[1])
            elif job.uid in self.heard:
                heard[job.uid] = self.heard[job.uid]
        self.heard = heard

    def _hints(self, job: JobRecord, now: datetime) -> ScalingHints | None:
        hints, at = self.heard.get(job.uid, (None, now))
        return hints if (now - at).total_seconds() <= SILENT_SECONDS else None

    def _of_pool(self, pool: Key, jobs: Sequence[JobRecord], now: datetime) -> list[tuple[JobRecord, Scaling]]:
        """The same as `_shared`, but that an error in one pool never stops another."""
        if pool in self.left_alone:
            return []
        try:
            return self._shared(jobs, now)
        except Exception:
            words = "pool %r of namespace %s: an unexpected error, its jobs keep their sizes, tried again in 60 s"
            logger.exception(words, pool[1], pool[0])
            self.left_alone[pool] = now + timedelta(seconds=LEFT_ALONE_SECONDS)
            return []

    def _shared(self, jobs: Sequence[JobRecord], now: datetime) -> list[tuple[JobRecord, Scaling]]:
        """What is to be written for the jobs of one pool."""
        listens = self.began is not None and (now - self.began).total_seconds() > SILENT_SECONDS
        seen = [_seen(job, self.cache, self._hints(job, now), now, listens=listens) for job in jobs]
        known = [one.job for one in seen]
        specs = [job.spec for job in jobs if job.spec]
        trained = sum((_trained_on(job, self.cache) for job in jobs), Counter[str]())
        whole = pool_of(specs, self.cache.nodes(), trained)
        pool = without_spares(whole, known, sum(map(_devices_of_spares, specs)))
        sizes, pool = sizes_in(pool, known, {one.job.name: one.runs for one in seen})
        steps = first_steps(pool, known, sizes)
        found = []
        for record, one in zip(jobs, seen, strict=True):
            given = record.status.scaling if record.status else None
            size = steps.get(one.job.name, one.job.has)
            if size and (given is None or (given.size, given.why) != (size, one.why)):
                since = given.since if given is not None and given.size == size else now
                speedup = one.job.speedups.get(size)
                before = given.speedup if given else None
                told = round(speedup.apart if one.job.spread_at == size else speedup.together, 2) if speedup else before
                found.append((record, Scaling(size=size, speedup=told, why=one.why, since=since)))
        return found

    async def _write(self, job: JobRecord, scaling: Scaling | None, actor: Actor, queue: Queue) -> None:
        """Between two rounds of the job: no round begins while its status is under way."""
        if job.status is None or job.uid in self.left_alone or self.cache.job(job.key) is not job:
            return
        if not queue.take(job.key):
            return
        try:
            await actor.show(job, job.status.model_copy(update={"scaling": scaling}))
        except Unavailable:
            raise
        except Conflict as error:
            logger.debug("trainingjob %s: it has changed meanwhile, its size waits: %s", "/".join(job.key), error)
        except ApiError as error:  # the other jobs do not wait for it
            words = "trainingjob %s: its size is not written, tried again in 60 s: %s"
            logger.warning(words, "/".join(job.key), error)
            self.left_alone[job.uid] = self.clock() + timedelta(seconds=LEFT_ALONE_SECONDS)
        else:
            queue.add(job.key)
        finally:
            queue.release(job.key)


def sizes_in(pool: Pool, jobs: Sequence[PoolJob], runs: Mapping[str, int]) -> tuple[dict[str, int], Pool]:
    """The size of each job, and the pool with the nodes that these are worth.

    A node is asked for once each job has the size that the others allow, and its members, by what `runs` have. Then
    the wish stays until the node is there, or is worth its price no more.
    """
    jobs = weighed(pool, jobs)
    tables: Tables = {}
    wished = with_wish(pool, jobs, tables)
    if wished.devices <= pool.devices:
        return share(wished, jobs, tables), wished
    has = {job.name: job.has for job in jobs}
    grows = any(job.has > (runs.get(job.name) or job.has) for job in jobs)
    if not grows or has_room(pool, jobs, has):
        sizes = share(pool, jobs, tables)
        if grows or sizes != has:
            return sizes, pool
    asked = share(wished, jobs, tables)
    return (share(pool, jobs, tables), pool) if has_room(pool, jobs, asked) else (asked, wished)


def pool_of(
    specs: Iterable[TrainingJobSpec], nodes: Iterable[NodeRecord], trained: Mapping[str, int] | None = None
) -> Pool:
    """The devices of the nodes on which members of these jobs may be, as many as the job with most finds there.

    A device is what one process of a member asks for. A member that asks for nothing takes a node for itself. A node
    has at least the devices that are `trained` on there, by its name.
    """
    askers, least = {_Asker.of(spec) for spec in specs}, trained or {}
    devices = (max([least.get(node.key[1], 0), *(asker.devices_of(node) for asker in askers)]) for node in nodes)
    return Pool(tuple(sorted(Counter(count for count in devices if count).items())))


@dataclass(frozen=True)
class _Asker:
    """What a job's members ask of a node."""

    each: int
    requests: frozenset[tuple[str, Decimal]]
    selector: frozenset[tuple[str, str]]
    tolerations: tuple[Toleration, ...]
    pod: PodView = field(compare=False)
    """A pod with these tolerations."""

    @classmethod
    def of(cls, spec: TrainingJobSpec) -> _Asker:
        pod: Json = spec.template.get("spec") or {}
        requests: dict[str, Decimal] = defaultdict(Decimal)
        for container in pod.get("containers") or []:
            resources = container.get("resources") or {}
            for name, quantity in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                requests[name] += amount_of(str(quantity)) or Decimal(0)
        tolerations = parse.tolerations(pod)
        return cls(
            max(spec.processes_per_replica, 1),
            frozenset((name, amount) for name, amount in requests.items() if amount),
            frozenset((pod.get("nodeSelector") or {}).items()),
            tolerations,
            PodView(name="", uid="", tolerations=tolerations),
        )

    def devices_of(self, node: NodeRecord) -> int:
        """Processes that the node has room for."""
        view = node.view
        if view.cordoned or view.deleting or not view.ready or not self.selector <= node.labels.items():
            return 0
        if any(_keeps_off(taint) and not tolerates(self.pod, taint) for taint in view.taints):
            return 0
        members = min(
            (int((amount_of(node.allocatable.get(name, "0")) or 0) // amount) for name, amount in self.requests),
            default=1,
        )
        return members * self.each


def _keeps_off(taint: Taint) -> bool:
    return taint.effect in _KEEPS_OFF and taint.key != _NOT_READY


@dataclass(frozen=True)
class _Seen:
    """A job as its pool sees it."""

    job: PoolJob
    runs: int
    """Members of the run that is on."""
    why: str
    """Why it has its size."""


def _seen(record: JobRecord, cache: Cache, hints: ScalingHints | None, now: datetime, *, listens: bool) -> _Seen:
    """`listens`: this process has listened for so long that a job that it does not hear is silent."""
    spec, status = record.spec, record.status
    if spec is None or status is None:
        raise ValueError(f"trainingjob {'/'.join(record.key)} cannot be read")  # such jobs are in no pool
    given, sizes = status.scaling, sizes_of(spec)
    runs = len(status.current.plan.members) if status.current else 0
    has = wanted_members(spec, given or Scaling(size=runs, since=now)) if given or runs else 0
    growth = status.growth
    if growth is not None and growth.generation == record.generation and growth.until > now and runs:
        sizes = tuple(size for size in sizes if size <= runs) or sizes[:1]  # there is no room for more
    looked_at = sizes_to_look_at(sizes, has)
    table = speedup_table(hints, looked_at, spec.processes_per_replica) if hints else {}
    on_nodes = _on_nodes(record, status, cache)
    why, wants = _without_speed(spec, status, has, now)
    mute = listens and why == AS_CAPACITY
    if given is not None and not listens:
        why, wants = given.why, has
    job = PoolJob(
        name="/".join(record.key),
        age_seconds=(now - (parse.time(record.created) or now)).total_seconds(),
        minimum=sizes[0],
        ranks=max(spec.processes_per_replica, 1),
        has=has,
        holds=len(on_nodes),
        waits=not runs and not status.history,
        changed_seconds=(now - given.since).total_seconds() if given else 0.0,
        change_seconds=WARM_UP_SECONDS + _pause(status),
        speedups=table if sizes[0] in table else {},
        spread_at=has if len(set(on_nodes)) > 1 and runs == has else 0,
        wants=wants,
        mute=mute,
    )
    return _Seen(job, runs, BY_SPEED if job.is_measured else why)


def _without_speed(spec: TrainingJobSpec, status: TrainingJobStatus, has: int, now: datetime) -> tuple[str, int]:
    """Why a job of unknown speed has a size, and which: that of its spec, once it has long told nothing."""
    given = status.scaling
    began = status.current.plan.assigned_time if status.current else None
    if given is not None and given.speedup is not None:
        return AS_IT_HAS, has
    is_silent = began is not None and (now - began).total_seconds() > SILENT_SECONDS
    if is_silent or (given is not None and given.why == AS_CAPACITY):
        return AS_CAPACITY, wanted_members(spec, Scaling(size=spec.replicas, since=now))
    if has > sizes_of(spec)[0] and (given is None or given.why == AS_IT_HAS):
        return AS_IT_HAS, has  # it had this size before it came into the pool
    return MINIMUM, 0


def _pause(status: TrainingJobStatus) -> float:
    """Seconds that training stopped when the job's members changed last, or for a restart to change them."""
    for one in reversed(status.history):
        if one.pause is not None:
            return one.pause
        if one.disruption is Disruption.SIZE_CHANGE and one.how in (Takeover.IN_PLACE, Takeover.RECREATE):
            return PAUSE_OF_A_RESTART
    return PAUSE_OF_A_CHANGE


def _on_nodes(record: JobRecord, status: TrainingJobStatus, cache: Cache) -> list[str]:
    """The node of each pod of the job that takes room, but for its spares."""
    spares = status.spares.names if status.spares else ()
    pods = [pod.view for pod in cache.pods(record.key) if pod.view.owner_uid == record.uid]
    return [pod.node for pod in pods if pod.node and pod.name not in spares and pod.phase not in _OVER]


def _trained_on(record: JobRecord, cache: Cache) -> Counter[str]:
    """How many processes of the run that is on there are on each node.

    Not on nodes that their members have to leave. A node may be silent, or a restart of what serves its devices may
    show none of them: whether its members are lost is for `decide` to say.
    """
    spec, current = record.spec, record.status.current if record.status else None
    if spec is None or current is None:
        return Counter()
    members = {member.uid for member in current.plan.members}
    pods = [pod.view for pod in cache.pods(record.key) if pod.view.uid in members]
    there = Counter(pod.node for pod in pods if pod.node and not pod.deleting and pod.phase not in _OVER)
    nodes = {name: cache.node(name) for name in there}
    each = max(spec.processes_per_replica, 1)
    return Counter({name: there[name] * each for name, node in nodes.items() if node and not _left(spec, node, cache)})


def _left(spec: TrainingJobSpec, node: NodeRecord, cache: Cache) -> bool:
    """Whether the job's members have to leave the node."""
    view = node.view
    if not (view.cordoned or view.deleting or view.taints or view.conditions or view.labels or view.annotations):
        return False
    in_force = table(cache.signals, spec.disruption.reactions)
    return any(row.reaction in _MUST_LEAVE for row, _ in rows_shown(in_force, view))


def _devices_of_spares(spec: TrainingJobSpec) -> int:
    return spec.elastic.spares * max(spec.processes_per_replica, 1) if spec.elastic else 0
