"""What the cache keeps of an object: only the facts that are needed, parsed once. Pure.

A raw pod takes 30 KB of memory, its record 1 KB. Records with `same_facts` differ in nothing that a decision can depend
on. Called by `cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from perdure.wire import ANNOTATION_REPORT, LABEL_JOB, LABEL_ROLE, ContractError, Role, Standby, read_assignment
from perdure_operator.api.default_signals import SAVE_ANNOTATION, VACATE_ANNOTATION
from perdure_operator.api.names import LABEL_UID
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster import decode
from perdure_operator.cluster.protocol import BUDGETS, EVICTIONS, JOBS, NODES, PODS, REVISIONS, Json, Resource
from perdure_operator.cluster.read import parse, roots
from perdure_operator.cluster.read.roots import Root
from perdure_operator.state.signal_table import SHIPPED_TABLE, SignalTable
from perdure_operator.state.snapshot import Budget, EvictionView, NodeView, PodView

Key = tuple[str, str]
"""namespace, name; the namespace of a node is ""."""


@dataclass(frozen=True, slots=True)
class Record:
    """One object."""

    key: Key
    uid: str
    version: int
    """Its resourceVersion: comparable numbers within one kind (documented since Kubernetes 1.35)."""


@dataclass(frozen=True, slots=True)
class JobRecord(Record):
    """A TrainingJob."""

    resource_version: str
    generation: int
    deleting: bool
    created: str
    spec: TrainingJobSpec | None
    """None if it cannot be parsed: see `fault`."""
    unknown: tuple[str, ...]
    """Fields and enum values of the spec that only a newer CRD knows."""
    left_out: tuple[str, ...]
    """Paths of unreadable parts."""
    status: TrainingJobStatus | None
    fault: str
    """Why spec or status cannot be parsed; "" if they can."""
    root: Root | None
    members: frozenset[str]
    """The pods that status names."""
    vacate: str = ""
    """Value of its annotation perdure.dev/vacate."""
    save: str = ""
    """Value of its annotation perdure.dev/save."""

    @property
    def is_new(self) -> bool:
        """Whether no operator has written its status. A decision by an outdated one cannot write the first status."""
        return self.status == TrainingJobStatus()

    @property
    def in_run(self) -> frozenset[str]:
        """Members of the current and the previous run that have not ended, as far as status says."""
        if self.status is None:
            return frozenset()
        current, previous = self.status.current, self.status.previous
        members = {member.name for member in current.plan.members} if current else set()
        ended = {outcome.name for outcome in current.outcomes} if current else set()
        leaving = {member.name for member in previous.members} if previous else set()
        return frozenset((members - ended) | leaving)

    @property
    def planned_uids(self) -> frozenset[str]:
        """Uids of the current run's members, and of the previous run's members that have not ended."""
        if self.status is None:
            return frozenset()
        current, previous = self.status.current, self.status.previous
        planned = (*(current.plan.members if current else ()), *(previous.members if previous else ()))
        return frozenset(member.uid for member in planned)

    @property
    def to_come(self) -> frozenset[str]:
        """Members allocated for the next run, and spares."""
        return _to_come(self.status) if self.status else frozenset()

    @property
    def slow_nodes(self) -> frozenset[str]:
        """The nodes of its members that hold up the others."""
        progress = self.status.progress if self.status else None
        return frozenset(one.node for one in progress.stragglers if one.named and one.node) if progress else frozenset()

    @property
    def holds_root(self) -> bool:
        """Whether the job writes to its root now, or may begin to without a change of its spec."""
        if self.status is not None and self.status.finished_at:
            return False
        return bool(self.members) or not (self.deleting or (self.spec is not None and self.spec.suspend))

    @property
    def claim(self) -> tuple[int, str, Key]:
        """The order of jobs that share a root; the lowest may have it: training, with members, pausing, then by age.

        Members without a run do not write. So a job that was just given another job's root does not disturb that job.
        """
        trains = self.status is not None and self.status.current is not None
        rank = 0 if trains else 1 if self.members else 2 if self._pauses else 3
        return rank, self.created, self.key

    @property
    def waits_as_gang(self) -> bool:
        """Whether its start holds nodes in vain, or it pauses after one."""
        if self.status is None:
            return False
        return self.status.gang is not None or bool(self.status.next and self.status.next.in_vain_since)

    def holds_or_rests(self, now: datetime) -> bool:
        """Whether its start holds nodes in vain, or its pause after one is not over."""
        gang, upcoming = (self.status.gang, self.status.next) if self.status else (None, None)
        holds = upcoming is not None and bool(upcoming.members and upcoming.in_vain_since)
        return holds or (gang is not None and gang.until > now)

    @property
    def _pauses(self) -> bool:
        """Whether it had members and will have them again: only a suspension clears the start time."""
        started = self.status is not None and self.status.start_time is not None
        return started and not (self.spec is not None and self.spec.suspend)

    def same_facts(self, other: JobRecord) -> bool:
        """See above."""
        return self._facts == other._facts

    @property
    def _facts(self) -> tuple[object, ...]:
        problems = (self.fault, self.unknown, self.left_out)
        status = self.status and self.status.model_copy(update=_NUMBERS)
        return self.uid, self.generation, self.deleting, problems, self.spec, status, self.vacate, self.save


_NUMBERS: Final = {"progress": None, "last_save": None}
"""Fields of a status that only `loop.progress` writes, which starts the rounds that they need itself."""


_ONLY_FOR_WRITES: Final = {"resource_version": "", "has_labels": True, "has_annotations": True}
"""Fields of a PodView by which nothing is decided."""


@dataclass(frozen=True, slots=True)
class PodRecord(Record):
    """A pod that has, or had, the label of a job."""

    job: Key | None
    labels: Mapping[str, str]
    run: int
    """The run that its assignment names; 0 for none."""
    view: PodView
    channel: str = ""
    """Digest of the annotation that says where it reports (`parse.channel_digest`); no decision depends on it."""

    def same_facts(self, other: PodRecord) -> bool:
        """See above."""
        mine, theirs = (one.view.__dict__ | _ONLY_FOR_WRITES for one in (self, other))
        return (self.uid, self.job, self.labels) == (other.uid, other.job, other.labels) and mine == theirs

    def counts_for_budget_of(self, uid: str) -> bool:
        """Whether the PodDisruptionBudget of that job counts it as a member, of any owner."""
        return self.labels.get(LABEL_UID) == uid and self.labels.get(LABEL_ROLE) == Role.MEMBER


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """A node."""

    view: NodeView
    labels: Mapping[str, str] = field(default_factory=dict)
    """All of its labels, by which pods choose it; `view` has those that are signals."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What its pods can have in all, as quantities."""

    def same_facts(self, other: NodeRecord) -> bool:
        """See above. Ignores the nodes' reports every few minutes."""
        return (self.uid, self.view) == (other.uid, other.view)


@dataclass(frozen=True, slots=True)
class BudgetRecord(Record):
    """Any PodDisruptionBudget, ours or not."""

    owner: str
    labels: Mapping[str, str]
    spec: Json
    view: Budget

    @property
    def selects_uid(self) -> str:
        """The job uid that its pods must have; "" if it may match pods of any job."""
        selector = self.spec.get("selector") or {}
        return str((selector.get("matchLabels") or {}).get(LABEL_UID, ""))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it covers a pod with these labels."""
        return parse.selects(self.spec.get("selector"), labels)

    def same_facts(self, other: BudgetRecord) -> bool:
        """See above."""
        return (self.uid, self.owner, self.labels, self.spec) == (other.uid, other.owner, other.labels, other.spec)


@dataclass(frozen=True, slots=True)
class RevisionRecord(Record):
    """A ControllerRevision that keeps a job's template. The template itself is read when needed."""

    owner: str
    labels: Mapping[str, str]

    @property
    def job(self) -> Key:
        """The job whose label it has."""
        return self.key[0], self.labels.get(LABEL_JOB, "")

    def same_facts(self, other: RevisionRecord) -> bool:
        """See above."""
        return (self.uid, self.owner, self.labels) == (other.uid, other.owner, other.labels)


@dataclass(frozen=True, slots=True)
class EvictionRecord(Record):
    """An Eviction of any pod."""

    pod: Key
    view: EvictionView | None
    """None if the operator does not answer it."""

    def same_facts(self, other: EvictionRecord) -> bool:
        """See above."""
        return (self.uid, self.pod, self.view) == (other.uid, other.pod, other.view)


AnyRecord = JobRecord | PodRecord | NodeRecord | BudgetRecord | RevisionRecord | EvictionRecord


def key_of(raw: Json) -> Key:
    """Namespace and name of an object."""
    metadata = parse.meta(raw)
    return metadata.get("namespace") or "", metadata["name"]


def version_of(raw: Json) -> int:
    """See Record.version."""
    text = str(parse.meta(raw).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def read(
    resource: Resource, raw: Json, known: AnyRecord | None = None, signals: SignalTable = SHIPPED_TABLE
) -> AnyRecord:
    """The record of an object. `known` is the record of an earlier state, whose equal parts are reused.

    `signals` is the signal table that selects facts of nodes and pods.
    """
    base = (key_of(raw), parse.uid(raw), version_of(raw))
    if resource == PODS:
        return _pod(base, raw, known if isinstance(known, PodRecord) else None, signals)
    if resource == JOBS:
        return _job(base, raw, known if isinstance(known, JobRecord) and known.uid == base[1] else None)
    if resource == NODES:
        allocatable = (raw.get("status") or {}).get("allocatable") or {}
        return NodeRecord(*base, parse.node(raw, signals), parse.meta(raw).get("labels") or {}, allocatable)
    if resource == BUDGETS:
        labels = parse.meta(raw).get("labels") or {}
        return BudgetRecord(*base, parse.controller(raw), labels, raw.get("spec") or {}, parse.budget(raw))
    if resource == REVISIONS:
        return RevisionRecord(*base, parse.controller(raw), parse.meta(raw).get("labels") or {})
    if resource == EVICTIONS:
        return EvictionRecord(*base, (base[0][0], parse.evicted_pod(raw)), parse.eviction(raw))
    raise ValueError(f"the cache has no records of {resource.plural}")


def _pod(base: tuple[Key, str, int], raw: Json, known: PodRecord | None, signals: SignalTable) -> PodRecord:
    labels: Mapping[str, str] = parse.meta(raw).get("labels") or {}
    job = (base[0][0], labels[LABEL_JOB]) if LABEL_JOB in labels else None
    view = parse.pod(raw, signals)
    channel = parse.channel_digest((parse.meta(raw).get("annotations") or {}).get(ANNOTATION_REPORT, ""))
    if known is None:
        return PodRecord(*base, job, labels, _run(view.assignment), view, channel)
    run = known.run if known.view.assignment == view.assignment else _run(view.assignment)
    return PodRecord(*base, job, known.labels if known.labels == labels else labels, run, view, channel)


def _run(assignment: str) -> int:
    try:
        said = read_assignment(assignment)
    except (ContractError, RecursionError):  # not written by the operator
        return 0
    return 0 if isinstance(said, Standby) else said.run


def _job(base: tuple[Key, str, int], raw: Json, known: JobRecord | None) -> JobRecord:
    metadata, fault = parse.meta(raw), ""
    generation = int(metadata.get("generation", 0))
    spec: TrainingJobSpec | None = None
    unknown: tuple[str, ...] = ()
    status: TrainingJobStatus | None = None
    root: Root | None = None
    try:
        spec, unknown = parse.spec(raw.get("spec") or {})
        if known is not None and known.spec == spec:
            spec, root = known.spec, known.root
        else:
            root = roots.of(base[0][0], spec)
        status = TrainingJobStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        fault = _fault(error)
    return JobRecord(
        *base,
        resource_version=str(metadata.get("resourceVersion", "")),
        generation=generation,
        deleting=bool(metadata.get("deletionTimestamp")),
        created=str(metadata.get("creationTimestamp", "")),
        spec=spec,
        unknown=unknown,
        left_out=decode.left_out(raw),
        status=status,
        fault=fault,
        root=root,
        members=_members(status) if status is not None else frozenset(),
        vacate=(metadata.get("annotations") or {}).get(VACATE_ANNOTATION, ""),
        save=(metadata.get("annotations") or {}).get(SAVE_ANNOTATION, ""),
    )


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"field {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _members(status: TrainingJobStatus) -> frozenset[str]:
    planned = status.current.plan.members if status.current else ()
    leaving = status.previous.members if status.previous else ()
    return _to_come(status) | {member.name for member in (*planned, *leaving)}


def _to_come(status: TrainingJobStatus) -> frozenset[str]:
    upcoming, spares = status.next, status.spares
    return frozenset((*(upcoming.members if upcoming else ()), *(spares.names if spares else ())))
