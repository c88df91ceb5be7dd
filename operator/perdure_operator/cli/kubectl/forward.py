"""Plays the operator's own decisions forward, from a snapshot in which members have to leave. Pure: nothing is written.

The decisions are those of `decide`, round after round. What is made up here is the cluster's part: whether new members
find room, that pods with a node get Ready, and that the API server takes what the operator writes. The play ends where
members would have to act.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Final

from perdure.wire import Role, Standby, write_assignment
from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.api.marks import marks
from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import Reaction, SignalSource
from perdure_operator.api.status import Takeover, TrainingJobStatus
from perdure_operator.decide import Stage, decide, stage_of
from perdure_operator.decide.draft import later
from perdure_operator.decide.facts import LATE_MARGIN_SECONDS, terminated
from perdure_operator.decide.signals import table_of
from perdure_operator.state.decision import Assign, CheckTemplate, CreatePod, Decision, SetBudget
from perdure_operator.state.snapshot import Budget, NodeView, PodView, Snapshot, Taint, TemplateCheck, TemplateVerdict

ROUNDS: Final = 100
"""A simulation needs about five rounds. A job that still finds new reasons after this many is shown as waiting."""
_STAYS: Final = frozenset({Reaction.CHECKPOINT_NOW, Reaction.AVOID, Reaction.IGNORE})
"""Reactions to a cordon for which no member leaves."""
MADE_UP: Final = "what-if-"
"""How names and uids begin that the play makes up."""
FREE: Final = NodeView(name=f"{MADE_UP}a-free-node")
"""Where new members start if they find room."""
NO_ROOM: Final = "no node has room"
"""The scheduler's words in the other case."""
_ASKS: Final = {SignalSource.CORDON: "a cordoned node", SignalSource.JOB: f"the annotation {VACATE_ANNOTATION}"}
"""What asks members to leave, in words."""
UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What Kubernetes gives a node that is cordoned."""


class How(StrEnum):
    """How the run would go on."""

    LIVE = "live"  # between two batches, if the script can; else in place
    IN_PLACE = "in place"
    RECREATE = "recreate"
    HANGS = "hangs"  # as one of these, but the run makes no step at which it could; `play` knows nothing of that
    TRAINS_ON = "trains on"  # no member leaves for this, as long as it stays so
    WAITS = "waits"  # no run is on, or the play has come to no end


class Outlook(Model):
    """What the operator would do, in one of the two cases."""

    how: How
    seconds: float
    """Seconds from the cordon until members are asked, without the time that new members take to be Ready."""
    size: int = 0
    """How many members the next run has; 0 if there is none yet."""
    starting: int = 0
    """How many new members have to find room and be Ready first."""
    why: str = ""
    """Why not in a better way, or why no member leaves; in the operator's words, where it has some."""
    events: tuple[str, ...] = ()
    """The events that it would send."""
    saved_by: datetime | None = None
    """Until when members that leave may save, if all are asked at that time."""
    awaited_until: datetime | None = None
    """Until when new members are awaited; absent without a time limit, and if none are."""


def drained(snapshot: Snapshot, nodes: Iterable[str], evicted: Iterable[str] = ()) -> Snapshot:
    """The snapshot a moment after `kubectl drain` has cordoned these nodes and evicted these pods, if any."""
    going, deleted = frozenset(nodes), frozenset(evicted)
    pods = tuple(_deleted(pod, snapshot.now) if pod.name in deleted else pod for pod in snapshot.pods)
    names = {*snapshot.allotted, *_to_come(snapshot.status)}  # the operator knows that these were never used
    seen = tuple(_cordoned(node) if node.name in going else node for node in snapshot.nodes)
    return snapshot.model_copy(update={"nodes": seen, "pods": pods, "allotted": tuple(sorted(names))})


def asked_to_leave(snapshot: Snapshot, vacate: str) -> Snapshot:
    """The snapshot a moment after a user has given the job the annotation perdure.dev/vacate with this value."""
    names = {*snapshot.allotted, *_to_come(snapshot.status)}
    return snapshot.model_copy(update={"vacate": vacate, "allotted": tuple(sorted(names))})


def _deleted(pod: PodView, now: datetime) -> PodView:
    return pod.model_copy(update={"deleting": True, "deletion_deadline": later(now, pod.grace)})


def play(snapshot: Snapshot, *, room: bool, by: SignalSource = SignalSource.CORDON) -> Outlook:
    """What the operator does from here on. `room`: new members find a node and get Ready there, or find none.

    `by`: what has just asked members to leave.
    """
    ready_before = frozenset(pod.uid for pod in snapshot.pods if pod.ready or not _lives(snapshot, pod))
    pods = tuple(_found_a_place(snapshot, pod, room=room) for pod in snapshot.pods)
    seen, events = snapshot.model_copy(update={"nodes": (*snapshot.nodes, FREE), "pods": pods}), list[str]()
    began, run = snapshot.now, snapshot.status.current.run if snapshot.status.current else 0
    awaited = None
    for _ in range(ROUNDS):
        decision = decide(seen)
        before, seen = seen, _written(seen, decision, room=room)
        events += [event.message for event in decision.events]
        intent = seen.status.current.intent if seen.status.current else None
        awaited = (intent.ready_by or intent.grow_by) if intent and intent.prepare else awaited
        how = _how(seen.status, run)
        if how is not None:
            return _ended(seen, how, began, tuple(events), awaited=awaited, ready_before=ready_before, by=by)
        if seen != before:
            continue
        if decision.requeue_after is None:
            break
        seen = seen.model_copy(update={"now": later(seen.now, decision.requeue_after)})
    how = How.TRAINS_ON if seen.status.current else How.WAITS
    return _ended(seen, how, began, tuple(events), awaited=awaited, ready_before=ready_before, by=by)


def _how(status: TrainingJobStatus, run: int) -> How | None:
    """How the run goes on, once members would be asked to; None until then."""
    current, stage = status.current, stage_of(status)
    if stage is Stage.HANDING_OVER:
        return How.LIVE
    if stage is Stage.LEAVING:
        return How.RECREATE
    if current and current.run != run:
        return How.IN_PLACE if status.how is Takeover.IN_PLACE else How.RECREATE
    return None


def _lives(seen: Snapshot, pod: PodView) -> bool:
    return pod.owner_uid == seen.uid and not (pod.gone or pod.deleting or terminated(pod))


def _ended(
    seen: Snapshot,
    how: How,
    began: datetime,
    events: tuple[str, ...],
    *,
    awaited: datetime | None,
    ready_before: frozenset[str],
    by: SignalSource,
) -> Outlook:
    status = seen.status
    upcoming, current = status.next, status.current
    plan = upcoming.plan if upcoming and upcoming.plan else current.plan if current else None
    leaving = current.intent if how is How.RECREATE and current else None
    before = status.previous.intent if how is How.IN_PLACE and status.previous else None
    asked = leaving or before
    return Outlook(
        how=how,
        seconds=(seen.now - began).total_seconds(),
        size=len(plan.members) if plan and how in (How.LIVE, How.IN_PLACE) else 0,
        starting=sum(_lives(seen, pod) and pod.uid not in ready_before for pod in seen.pods),
        why=_why(seen, how, by),
        events=events,
        saved_by=later(asked.deadline, -LATE_MARGIN_SECONDS) if asked and asked.deadline else None,
        awaited_until=awaited,
    )


def _why(seen: Snapshot, how: How, by: SignalSource) -> str:
    """Why it is no better way, as status has it."""
    status = seen.status
    intent = status.current.intent if status.current else None
    if how is How.IN_PLACE:
        return status.history[-1].why if status.history else ""
    if how is How.RECREATE and intent:
        immediate = seen.spec.disruption.replacement_timeout_seconds == 0
        return intent.fallback_reason or ("disruption.replacementTimeoutSeconds is 0" if immediate else "")
    disrupted = status.find(ConditionType.DISRUPTED)
    if how is How.TRAINS_ON and disrupted:
        row = table_of(seen).find(by)
        ignores = row is None or row.reaction in _STAYS
        said = row.reaction.value if row else "switched off"
        return f"its reaction to {_ASKS[by]} is {said}" if ignores else disrupted.message
    running = status.find(ConditionType.RUNNING)
    return running.message if how is How.WAITS and running else ""


def _written(seen: Snapshot, decision: Decision, *, room: bool) -> Snapshot:
    """The cluster after the operator's writes; new members are Ready at once if they find room."""
    if decision.status is not None:
        names = {*seen.allotted, *_to_come(decision.status)}
        seen = seen.model_copy(update={"status": decision.status, "allotted": tuple(sorted(names))})
    for action in decision.actions:
        match action:
            case CheckTemplate():
                seen = seen.model_copy(update={"template_check": _checked(seen)})
            case SetBudget(min_available=least, uid=uid):
                seen = seen.model_copy(update={"budget": Budget(min_available=least, uid=uid or MADE_UP)})
            case CreatePod():
                seen = seen.model_copy(update={"pods": (*seen.pods, _created(seen, action, room=room))})
            case Assign(uid=uid, role=role, new=new):
                given = {"role": role, "assignment": new, "labelled": True}
                pods = (pod.model_copy(update=given) if pod.uid == uid else pod for pod in seen.pods)
                seen = seen.model_copy(update={"pods": tuple(pods)})
            case _:  # of no consequence before members act
                pass
    return seen


def _checked(seen: Snapshot) -> TemplateCheck:
    """The dry run's answer, as status tells the newest one."""
    known = seen.status.find(ConditionType.TEMPLATE_ACCEPTED)
    verdict = TemplateVerdict.BAD if known and known.status == "False" else TemplateVerdict.GOOD
    return TemplateCheck(
        hash=seen.template_hash, verdict=verdict, message=known.message if known else "", time=seen.now
    )


def _created(seen: Snapshot, action: CreatePod, *, room: bool) -> PodView:
    made_from = next((one.hash for one in seen.kept if one.name == action.kept), seen.template_hash)
    pod = PodView(
        name=action.name,
        uid=f"{MADE_UP}{action.name}",
        owner_uid=seen.uid,
        role=Role.STANDBY,
        assignment=write_assignment(Standby()),
        marks=marks(seen.spec.disruption.autoscaler, Role.STANDBY),
        template_hash=made_from,
        root=next((one.root for one in seen.pods if one.owner_uid == seen.uid), ""),
        priority_class=action.priority_class,
    )
    return _placed(seen, pod, room=room)


def _found_a_place(seen: Snapshot, pod: PodView, *, room: bool) -> PodView:
    """A pod that waits for a node gets one, or finds none; one that has a node and nothing against it gets Ready."""
    if not _lives(seen, pod) or pod.ready or pod.waiting_reason:
        return pod
    return _ready(seen, pod) if pod.node else _placed(seen, pod, room=room)


def _placed(seen: Snapshot, pod: PodView, *, room: bool) -> PodView:
    if not room:
        return pod.model_copy(update={"unschedulable": NO_ROOM})
    return _ready(seen, pod.model_copy(update={"node": FREE.name, "unschedulable": ""}))


def _ready(seen: Snapshot, pod: PodView) -> PodView:
    well = {"ip": pod.ip or "192.0.2.1", "phase": "Running", "ready": True, "ready_since": seen.now}
    return pod.model_copy(update=well | {"initializing": "", "pulling": False})


def _cordoned(node: NodeView) -> NodeView:
    shown = any(taint.key == UNSCHEDULABLE.key for taint in node.taints)
    taints = node.taints if shown else (*node.taints, UNSCHEDULABLE)
    return node.model_copy(update={"cordoned": True, "taints": taints})


def _to_come(status: TrainingJobStatus) -> set[str]:
    upcoming, spares = status.next, status.spares
    return {*(upcoming.members if upcoming else ()), *(spares.names if spares else ())}
