"""What the cache keeps of an object: the facts that are read, parsed once, and no more. Pure.

A pod as the API server sends it takes 30 KB of memory, what is read of it one. Two records that `tell_the_same` differ
in nothing a decision can depend on. Called by `cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from perdure.wire import LABEL_JOB, LABEL_ROLE, ContractError, Role, Standby, read_assignment
from perdure_operator.api.default_signals import VACATE_ANNOTATION
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
    """None where it cannot be read: see `fault`."""
    unknown: tuple[str, ...]
    """Fields and words of the spec that only a newer CRD knows."""
    left_out: tuple[str, ...]
    """Paths of what nobody could read."""
    status: TrainingJobStatus | None
    fault: str
    """Why spec or status cannot be read, "" where they can."""
    root: Root | None
    members: frozenset[str]
    """The pods that status names."""
    vacate: str = ""
    """Its annotation perdure.dev/vacate."""

    @property
    def is_new(self) -> bool:
        """Whether no operator has written its status: whoever decides by an outdated one fails to write the first."""
        return self.status == TrainingJobStatus()

    @property
    def in_run(self) -> frozenset[str]:
        """Members of the run that is on, and of the one before, of which status does not say that they have ended."""
        if self.status is None:
            return frozenset()
        current, previous = self.status.current, self.status.previous
        members = {member.name for member in current.plan.members} if current else set()
        ended = {outcome.name for outcome in current.outcomes} if current else set()
        leaving = {member.name for member in previous.members} if previous else set()
        return frozenset((members - ended) | leaving)

    @property
    def planned_uids(self) -> frozenset[str]:
        """Uids of the members of the run that is on, and of those of the one before that have not ended."""
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
    def holds_root(self) -> bool:
        """Whether it may write to its root, now or without anybody's doing."""
        if self.status is not None and self.status.finished_at:
            return False
        return bool(self.members) or not (self.deleting or (self.spec is not None and self.spec.suspend))

    @property
    def claim(self) -> tuple[int, str, Key]:
        """The least of those that share a root may have it: whose run is on, who has members, who pauses, who is older.

        Members that have no run yet do not write: a job whose owner has just given it another's root lets that one be.
        """
        trains = self.status is not None and self.status.current is not None
        rank = 0 if trains else 1 if self.members else 2 if self._pauses else 3
        return rank, self.created, self.key

    @property
    def waits_as_gang(self) -> bool:
        """Whether members hold nodes in vain before a run, or rest after that."""
        if self.status is None:
            return False
        return self.status.gang is not None or bool(self.status.next and self.status.next.in_vain_since)

    def holds_or_rests(self, now: datetime) -> bool:
        """Whether members hold nodes in vain, or have let go of them, and their pause is not over."""
        gang, upcoming = (self.status.gang, self.status.next) if self.status else (None, None)
        holds = upcoming is not None and bool(upcoming.members and upcoming.in_vain_since)
        return holds or (gang is not None and gang.until > now)

    @property
    def _pauses(self) -> bool:
        """Whether it has had members and goes on by itself: only a suspension takes the start time away."""
        started = self.status is not None and self.status.start_time is not None
        return started and not (self.spec is not None and self.spec.suspend)

    def tells_the_same(self, other: JobRecord) -> bool:
        """See above."""
        return self._told == other._told

    @property
    def _told(self) -> tuple[object, ...]:
        problems = (self.fault, self.unknown, self.left_out)
        return self.uid, self.generation, self.deleting, problems, self.spec, self.status, self.vacate


@dataclass(frozen=True, slots=True)
class PodRecord(Record):
    """A pod that has, or had, the label of a job."""

    job: Key | None
    labels: Mapping[str, str]
    run: int
    """The run its assignment names, 0 where none."""
    view: PodView

    def tells_the_same(self, other: PodRecord) -> bool:
        """See above."""
        mine, theirs = (one.view.__dict__ | {"resource_version": ""} for one in (self, other))
        return (self.uid, self.job, self.labels) == (other.uid, other.job, other.labels) and mine == theirs

    def counts_for_budget_of(self, uid: str) -> bool:
        """Whether the PodDisruptionBudget of that job takes it for a member, whoever owns it."""
        return self.labels.get(LABEL_UID) == uid and self.labels.get(LABEL_ROLE) == Role.MEMBER


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """A node."""

    view: NodeView

    def tells_the_same(self, other: NodeRecord) -> bool:
        """Nodes report every few minutes; see above."""
        return (self.uid, self.view) == (other.uid, other.view)


@dataclass(frozen=True, slots=True)
class BudgetRecord(Record):
    """A PodDisruptionBudget, ours or anybody's."""

    owner: str
    labels: Mapping[str, str]
    spec: Json
    view: Budget

    @property
    def selects_uid(self) -> str:
        """The job's uid without which it matches no pod; "" where it may match any job's."""
        selector = self.spec.get("selector") or {}
        return str((selector.get("matchLabels") or {}).get(LABEL_UID, ""))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it covers a pod with these labels."""
        return parse.selects(self.spec.get("selector"), labels)

    def tells_the_same(self, other: BudgetRecord) -> bool:
        """See above."""
        return (self.uid, self.owner, self.labels, self.spec) == (other.uid, other.owner, other.labels, other.spec)


@dataclass(frozen=True, slots=True)
class RevisionRecord(Record):
    """A ControllerRevision that keeps a job's template; the template itself is read when it is needed."""

    owner: str
    labels: Mapping[str, str]

    @property
    def job(self) -> Key:
        """The job whose label it has."""
        return self.key[0], self.labels.get(LABEL_JOB, "")

    def tells_the_same(self, other: RevisionRecord) -> bool:
        """See above."""
        return (self.uid, self.owner, self.labels) == (other.uid, other.owner, other.labels)


@dataclass(frozen=True, slots=True)
class EvictionRecord(Record):
    """An Eviction of any pod."""

    pod: Key
    view: EvictionView | None
    """None where the operator does not answer it."""

    def tells_the_same(self, other: EvictionRecord) -> bool:
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
    """The record of an object; `known` is that of an earlier state of it, of which what is the same is kept.

    `signals` is the table for which nodes and pods are read.
    """
    base = (key_of(raw), parse.uid(raw), version_of(raw))
    if resource == PODS:
        return _pod(base, raw, known if isinstance(known, PodRecord) else None, signals)
    if resource == JOBS:
        return _job(base, raw, known if isinstance(known, JobRecord) and known.uid == base[1] else None)
    if resource == NODES:
        return NodeRecord(*base, parse.node(raw, signals))
    if resource == BUDGETS:
        labels = parse.meta(raw).get("labels") or {}
        return BudgetRecord(*base, parse.controller(raw), labels, raw.get("spec") or {}, parse.budget(raw))
    if resource == REVISIONS:
        return RevisionRecord(*base, parse.controller(raw), parse.meta(raw).get("labels") or {})
    if resource == EVICTIONS:
        return EvictionRecord(*base, (base[0][0], parse.evicted_pod(raw)), parse.eviction(raw))
    raise ValueError(f"nobody reads {resource.plural}")


def _pod(base: tuple[Key, str, int], raw: Json, known: PodRecord | None, signals: SignalTable) -> PodRecord:
    labels: Mapping[str, str] = parse.meta(raw).get("labels") or {}
    job = (base[0][0], labels[LABEL_JOB]) if LABEL_JOB in labels else None
    view = parse.pod(raw, signals)
    if known is None:
        return PodRecord(*base, job, labels, _run(view.assignment), view)
    run = known.run if known.view.assignment == view.assignment else _run(view.assignment)
    return PodRecord(*base, job, known.labels if known.labels == labels else labels, run, view)


def _run(assignment: str) -> int:
    try:
        said = read_assignment(assignment)
    except (ContractError, RecursionError):  # somebody else's words
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
