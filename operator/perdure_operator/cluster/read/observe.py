"""Builds the Snapshot that `decide` reads from the cache and live reads. Facts only; it writes nothing.

`live` decides what to read live. Called by `loop.worker`, `loop.leader` and `perdure-operator snapshot`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from perdure.errors import UserError
from perdure_operator.api import names
from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.api.names import LABEL_UID
from perdure_operator.api.signal_rows import SignalSource
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster import member
from perdure_operator.cluster.batching import gather_in_batches
from perdure_operator.cluster.memory import Memory
from perdure_operator.cluster.protocol import (
    NODES,
    PODS,
    REVISIONS,
    Conflict,
    Forbidden,
    NotFound,
    ReadOnlyApi,
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache, Change
from perdure_operator.cluster.read.claims import Claims
from perdure_operator.cluster.read.live import Live
from perdure_operator.cluster.read.records import BudgetRecord, JobRecord, Key, PodRecord
from perdure_operator.state import vacate_request
from perdure_operator.state.snapshot import (
    Budget,
    EvictionView,
    KeptTemplate,
    NodeView,
    PodView,
    Refusal,
    RefusalKind,
    Snapshot,
    TemplateVerdict,
)

ELSEWHERE: Final = "a job in another namespace"
"""Shown instead of a job's name: users who may read one namespace must not learn of objects in others."""

SLOWED_NAMESPACES: Final = 3
"""A node is slow if it holds up jobs of so many namespaces: a rank of one may have more work, or report anything."""

logger = logging.getLogger(__name__)


class Observer:
    """Builds snapshots; `namespace` None means all namespaces, `clock` None the API server's time."""

    def __init__(
        self,
        api: ReadOnlyApi,
        cache: Cache,
        *,
        namespace: str | None = None,
        clock: Callable[[], datetime] | None = None,
        node_claims: bool = False,
    ) -> None:
        """`node_claims`: read the NodeClaims of nodes that Karpenter removes."""
        self._api = api
        self._cache = cache
        self._clock = clock or api.server_time
        self._live = Live(api, cache, namespace, self._clock)
        self._claims = Claims(api, self._clock) if node_claims else None
        self._memories: dict[str, Memory] = {}
        self._absent: dict[str, set[str]] = {}
        """Nodes that do not exist, with the uids of the pods that were on them when the API server said so."""

    async def sync(self) -> list[Change]:
        """Read everything live: before the first decision and periodically, because a watch may miss a deletion.

        Returns the changes.
        """
        changes = await self._live.sync()
        self._absent.clear()
        if self._claims:
            self._claims.forget()
        self._forget_all_but({job.uid for job in self._cache.jobs()})
        return changes

    def distrust(self, job: Key) -> None:
        """See Live."""
        self._live.distrust(job)

    def written(self, job: Key, uid: str, *, deleted: bool) -> None:
        """See Live."""
        self._live.written(job, uid, deleted=deleted)

    def memory(self, uid: str) -> Memory:
        """What this process remembers of the job with that uid."""
        found = self._memories.get(uid)
        if found is None:
            found = self._memories[uid] = Memory()
        return found

    async def observe(self, job: Key) -> Snapshot | None:
        """A snapshot of the job; None if it no longer exists.

        Raises ApiError, and UserError for a job that this operator cannot read.
        """
        record = await self._live.job(job)
        return None if record is None else await self._snapshot(record)

    async def _snapshot(self, record: JobRecord) -> Snapshot:
        spec, status = _readable(record)
        memory = self.memory(record.uid)
        pods = [_kept_by_its_job(pod, record) for pod in self._cache.pods(record.key)]
        own = {pod.key[1] for pod in pods if pod.view.owner_uid == record.uid}
        views = [pod.view for pod in pods]
        views += await self._vanished(record, own)
        _warn_unknown_fields(record, memory)
        budget = self._budget(record)
        seen = Snapshot(
            now=self._clock(),
            namespace=record.key[0],
            name=record.key[1],
            uid=record.uid,
            generation=record.generation,
            resource_version=record.resource_version,
            deleting=record.deleting,
            spec=spec,
            vacate=record.vacate,
            save=record.save,
            unknown_fields=(
                *(f"spec.{field}" for field in record.unknown),
                *record.left_out,
                *self._unknown(spec),
                *self._unknown_places(record, status),
            ),
            status=status,
            pods=tuple(sorted(views, key=lambda pod: (pod.name, pod.uid))),
            pods_complete=self._live.knows_pods_of(record),
            nodes=await self._nodes(views),
            zones=self._cache.zones(),
            nodes_complete=self._live.nodes_listed,
            signals=self._cache.signals,
            evictions=self._evictions(pods, memory),
            responds=self._cache.responds,
            budget=budget,
            foreign_budgets=self._foreign_budgets(record, [pod for pod in pods if pod.key[1] in own]),
            foreign_pods=_foreign_pods(record, pods),
            same_uri=self._better_claims(record),
            younger_gangs=self._younger_gangs(record),
            template_check=memory.template_check,
        )
        _forget_settled(memory, record, own, budget, seen.now)
        template_hash = _template_hash(seen, memory)
        kept = await self._kept(seen, template_hash, memory)
        return seen.model_copy(
            update={
                "template_hash": template_hash,
                "kept": kept,
                "refusals": (*memory.refusals.values(), *_refused_deletions(memory, seen, kept)),
                "channel_refused": memory.channel_refused.message if memory.channel_refused else "",
                "allotted": tuple(sorted(memory.allotted)),
                "created": tuple(sorted(memory.created)),
            }
        )

    def _unknown(self, spec: TrainingJobSpec) -> list[str]:
        """Names in the job's signals that the table does not have, or that no job may change."""
        rows = self._cache.signal_table.choices
        return [f"spec.disruption.signals.{name}" for name in sorted(spec.disruption.signals) if name not in rows]

    def _unknown_places(self, record: JobRecord, status: TrainingJobStatus) -> list[str]:
        """Names in the vacate annotation that are neither a node nor ever were a pod of the job."""
        ours = names.base(record.key[1], record.uid) + "-"
        wanted = vacate_request.named(record.vacate) if record.vacate and self._live.nodes_listed else ()
        pods = (name.startswith(ours) and 0 <= names.member_number(name) < status.next_member for name in wanted)
        unknown = [name for name, pod in zip(wanted, pods, strict=True) if not pod and self._cache.node(name) is None]
        return [f"{VACATE_ANNOTATION}={name} (neither a node nor a member)" for name in unknown]

    async def _vanished(self, record: JobRecord, there: set[str]) -> list[PodView]:
        """Pods that the watch no longer shows, in their last states.

        A pod whose label was removed still exists, and a member may still train. If no end of a pod was seen, only the
        API server can say that it is gone.
        """
        self._await_ends(record, there)
        gone = [pod.view for pod in self._cache.gone(record.key)]
        seen_to_end = {view.name for view in gone if view.owner_uid == record.uid and _ends(view)}
        suspect = record.in_run | {view.name for view in gone if view.name in record.to_come}
        absent = self.memory(record.uid).absent
        absent -= there
        asked = sorted(suspect - there - seen_to_end - absent)
        found = await gather_in_batches(lambda name: self._pod(record, name), asked)
        views = {view.uid: view for view in found if view is not None}
        return [*views.values(), *(view.model_copy(update={"gone": True}) for view in gone if view.uid not in views)]

    def _await_ends(self, record: JobRecord, there: set[str]) -> None:
        """Raise Conflict while the watch may still report how a missing member ended: a LIST may overtake it."""
        now = self._clock()
        missed = (pod for pod in self._cache.gone(record.key) if pod.key[1] in record.in_run - there)
        if any(pod.view.owner_uid == record.uid and self._live.awaits_end_of(pod, now) for pod in missed):
            raise Conflict(f"members of {'/'.join(record.key)} are gone; the watch has not shown yet how they ended")

    async def _pod(self, record: JobRecord, name: str) -> PodView | None:
        """The pod if the job owns it, whatever its labels; otherwise None."""
        try:
            raw = await self._api.get(PODS, record.key[0], name)
        except NotFound:
            self.memory(record.uid).absent.add(name)
            return None
        return parse.pod(raw, self._cache.signal_table) if parse.controller(raw) == record.uid else None

    async def _kept(self, seen: Snapshot, template_hash: str, memory: Memory) -> tuple[KeptTemplate, ...]:
        """The job's kept templates. The one in use is read with its content if spec.template is refused."""
        stored = [one for one in self._cache.revisions_named((seen.namespace, seen.name)) if one.owner == seen.uid]
        found = {one.key[1]: KeptTemplate(name=one.key[1], uid=one.uid) for one in stored}
        check, checked = seen.template_check, seen.status.template_checked
        counts = names.kept_template(seen.name, seen.uid, checked)
        refused = check.verdict is TemplateVerdict.BAD and check.hash == template_hash != checked
        if refused and counts in found:
            found[counts] = await self._read_kept(seen, found[counts], memory)
        return tuple(found[name] for name in sorted(found))

    async def _read_kept(self, seen: Snapshot, kept: KeptTemplate, memory: Memory) -> KeptTemplate:
        """The kept template with its content, read once because it never changes; without it if it cannot be read."""
        if memory.kept and memory.kept[0] is seen.spec and memory.kept[1].uid == kept.uid:
            return memory.kept[1]
        try:
            raw = await self._api.get(REVISIONS, seen.namespace, kept.name)
        except (NotFound, Forbidden) as error:
            logger.warning("trainingjob %s/%s: its kept template cannot be read: %s", seen.namespace, seen.name, error)
            self._cache.forget(REVISIONS, (seen.namespace, kept.name), kept.uid)
            return kept
        template = parse.kept_template(raw)
        if template is None or parse.uid(raw) != kept.uid:
            return kept
        read = kept.model_copy(update={"template": template})
        read = read.model_copy(update={"hash": member.template_hash(seen, read)})
        memory.kept = (seen.spec, read)
        return read

    async def _nodes(self, pods: Sequence[PodView]) -> tuple[NodeView, ...]:
        under = defaultdict[str, set[str]](set)
        for pod in pods:
            if pod.node and not pod.gone:
                under[pod.node].add(pod.uid)

        async def look(name: str) -> NodeView:
            node = await self._with_deadline(await self._node(name, under[name]))
            slows = self._cache.namespaces_slowed_by(name) >= SLOWED_NAMESPACES
            return node.model_copy(update={"slows_jobs": True}) if slows else node

        return tuple(await gather_in_batches(look, sorted(under)))

    async def _with_deadline(self, node: NodeView) -> NodeView:
        """The node, with its NodeClaim's deadline if a signal row uses it."""
        if self._claims is None or not node.claim or not node.taints:
            return node
        rows = (self._cache.signal_table.find(SignalSource.TAINT, t.key, t.value, effect=t.effect) for t in node.taints)
        if not any(row and row.deadline_in_claim for row in rows):
            return node
        ends = await self._claims.ends(node)
        return node.model_copy(update={"claim_ends": ends}) if ends else node

    async def _node(self, name: str, pods: set[str]) -> NodeView:
        """The node. If the cache lacks it, it may be newer than the cache, so the API server is asked.

        After a NotFound the watch would show a new node of that name. But a pod that was placed on it since may know of
        it earlier, so new pods cause a new request.
        """
        known = self._cache.node(name)
        if known is not None:
            return known.view
        missing = NodeView(name=name, exists=False, ready=False)
        if pods <= self._absent.get(name, set()):
            return missing
        try:
            raw = await self._api.get(NODES, None, name)
        except NotFound:
            self._absent[name] = self._absent.get(name, set()) | pods
            return missing
        self._cache.apply(NODES, raw)
        return parse.node(raw, self._cache.signal_table)

    def _evictions(self, pods: Sequence[PodRecord], memory: Memory) -> tuple[EvictionView, ...]:
        found = {one.uid: one for pod in pods for eviction in self._cache.evictions_of(pod) if (one := eviction.view)}
        memory.answered = {uid: at for uid, at in memory.answered.items() if uid in found}
        views = (one.model_copy(update={"tried": memory.answered.get(one.uid)}) for one in found.values())
        return tuple(sorted(views, key=lambda one: (one.name, one.uid)))

    def _budget(self, record: JobRecord) -> Budget | None:
        """The job's own budget. If another object has its name, the creation of ours is refused."""
        found = self._budget_named(record)
        return found.view if found is not None and found.owner == record.uid else None

    def _foreign_budgets(self, record: JobRecord, pods: Sequence[PodRecord]) -> tuple[str, ...]:
        """Names of other budgets that cover one of the job's pods or have the name of its budget."""
        uids = {pod.labels.get(LABEL_UID, "") for pod in pods}
        others = self._cache.budgets_over(record.key[0], uids)
        covering = (one for one in others if one.owner != record.uid and any(one.selects(pod.labels) for pod in pods))
        named = self._budget_named(record)
        taken = {named.key[1]} if named is not None and named.owner != record.uid else set()
        return tuple(sorted({budget.key[1] for budget in covering} | taken))

    def _budget_named(self, record: JobRecord) -> BudgetRecord | None:
        """The budget with the name of the job's, of any owner."""
        return self._cache.budget((record.key[0], names.budget(record.key[1], record.uid)))

    def _better_claims(self, record: JobRecord) -> tuple[str, ...]:
        rivals = [one for one in self._cache.jobs_at(record.root) if one.holds_root and one.claim < record.claim]
        return tuple(sorted({"/".join(one.key) if one.key[0] == record.key[0] else ELSEWHERE for one in rivals}))

    def _younger_gangs(self, record: JobRecord) -> int:
        now, age = self._clock(), (record.created, record.key)
        return sum((one.created, one.key) > age and one.holds_or_rests(now) for one in self._cache.gangs())

    def _forget_all_but(self, uids: set[str]) -> None:
        for uid in set(self._memories) - uids:
            del self._memories[uid]


def _readable(record: JobRecord) -> tuple[TrainingJobSpec, TrainingJobStatus]:
    if record.spec is None or record.status is None:
        raise UserError(
            f"trainingjob {'/'.join(record.key)}: {record.fault}: CRD and operator are of different versions, "
            "install the matching CRD"
        )
    return record.spec, record.status


def _ends(last: PodView) -> bool:
    """Whether the last known state shows an end. A pod that is only being deleted may have lost its label and still
    run."""
    return last.terminated is not None or last.phase in ("Succeeded", "Failed")


def _kept_by_its_job(pod: PodRecord, record: JobRecord) -> PodRecord:
    """The pod, still counted as the job's if its owner was removed: it keeps training, and status names its uid.

    Not while the job is being deleted: then `--cascade=orphan` removed the owner on purpose.
    """
    if pod.view.owner_uid or record.deleting or pod.uid not in record.planned_uids:
        return pod
    return replace(pod, view=pod.view.model_copy(update={"owner_uid": record.uid}))


def _foreign_pods(record: JobRecord, pods: Sequence[PodRecord]) -> tuple[str, ...]:
    strangers = (pod for pod in pods if pod.view.owner_uid != record.uid and pod.counts_for_budget_of(record.uid))
    return tuple(sorted(pod.key[1] for pod in strangers))


def _template_hash(seen: Snapshot, memory: Memory) -> str:
    if memory.template_hash is None or memory.template_hash[0] is not seen.spec:
        memory.template_hash = (seen.spec, member.template_hash(seen))
    return memory.template_hash[1]


def _forget_settled(memory: Memory, record: JobRecord, own: set[str], budget: Budget | None, now: datetime) -> None:
    """Forget answers about names that are no longer needed, and refusals of names that exist now.

    Old refusals go too: the write may be allowed by now, and no event says so.
    """
    memory.allotted &= record.members
    memory.created &= record.members
    memory.absent &= record.members
    budgets = {names.budget(record.key[1], record.uid)}
    checked = record.status.template_checked if record.status else ""
    templates = {names.kept_template(record.key[1], record.uid, checked)}
    created = record.members - own | (set() if budget else budgets) | templates
    changed = own | (budgets if budget else set())
    memory.refusals = {
        name: refusal
        for name, refusal in memory.refusals.items()
        if name in (changed if refusal.kind is RefusalKind.PATCH_REFUSED else created)
        and (refusal.until is None or now < refusal.until)
    }


def _refused_deletions(memory: Memory, seen: Snapshot, kept: tuple[KeptTemplate, ...]) -> list[Refusal]:
    """Refused deletions of objects that still exist and that no other client is deleting; the others are forgotten."""
    alive = {pod.uid for pod in seen.pods if not (pod.gone or pod.deleting)} | {one.uid for one in kept}
    alive |= {seen.budget.uid if seen.budget else "", "" if seen.deleting else seen.uid}
    memory.refused_deletions = {
        uid: refusal
        for uid, refusal in memory.refused_deletions.items()
        if uid in alive and (refusal.until is None or seen.now < refusal.until)
    }
    return sorted(memory.refused_deletions.values(), key=lambda refusal: refusal.pod)


def _warn_unknown_fields(record: JobRecord, memory: Memory) -> None:
    """Log unknown fields once per generation. Refusing the job would let drains of its nodes hang."""
    if record.unknown and memory.warned_generation != record.generation:
        memory.warned_generation = record.generation
        logger.warning(
            "trainingjob %s: this operator does not know and ignores %s: CRD and operator are of different versions, "
            "install the matching ones",
            "/".join(record.key),
            ", ".join(record.unknown),
        )
