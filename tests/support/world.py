"""An in-memory cluster as far as one job can see it: applies a Decision to a Snapshot the way `act` and Kubernetes do.

Pure: a snapshot in, a snapshot out. `writes` cuts a plan off, as a crash between two writes does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from perdure.wire import ANNOTATION_ASSIGNMENT, Role, Standby, write_assignment
from perdure_operator.api.marks import marks
from perdure_operator.api.names import ANNOTATION_NUDGE
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.decide.facts import terminated
from perdure_operator.state.decision import (
    Action,
    Answer,
    Assign,
    CheckTemplate,
    CreatePod,
    Decision,
    DeleteBudget,
    DeleteJob,
    DeletePod,
    DropTemplate,
    KeepTemplate,
    Mark,
    SetBudget,
)
from perdure_operator.state.snapshot import (
    Budget,
    KeptTemplate,
    NodeView,
    PodView,
    RefusalKind,
    Snapshot,
    TemplateCheck,
    TemplateVerdict,
)

GRACE = timedelta(seconds=120)


class Conflict(Exception):
    """A precondition did not hold: the round ends."""


def apply(snapshot: Snapshot, plan: Decision, *, writes: int | None = None) -> Snapshot:
    """The cluster after the first `writes` writes of the plan, all of them where None is given."""
    left = len(plan.actions) + 1 if writes is None else writes
    if plan.status is not None:
        if left <= 0:
            return snapshot
        left -= 1
        snapshot = change(snapshot, status=plan.status, allotted=_allotted(snapshot, plan.status))
    for action in plan.actions[:left]:
        try:
            snapshot = carry_out(snapshot, action)
        except Conflict:
            break
    return snapshot if writes is None else change(snapshot, allotted=(), created=())  # a successor remembers nothing


def change(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """With these fields, validated again: no test passes on values that no cluster could give."""
    return Snapshot.model_validate({**dict(snapshot), **fields})


def change_pod(snapshot: Snapshot, name: str, **fields: Any) -> Snapshot:
    """With these fields of one pod."""
    pods = [pod.model_copy(update=fields) if pod.name == name else pod for pod in snapshot.pods]
    return change(snapshot, pods=tuple(pods))


def change_node(snapshot: Snapshot, name: str, **fields: Any) -> Snapshot:
    """With these fields of one node."""
    nodes = [node.model_copy(update=fields) if node.name == name else node for node in snapshot.nodes]
    return change(snapshot, nodes=tuple(nodes))


def carry_out(snapshot: Snapshot, action: Action) -> Snapshot:  # noqa: C901, PLR0912 - one case for each action
    """One write; raises Conflict where a precondition does not hold."""
    match action:
        case CheckTemplate():
            check = TemplateCheck(hash=snapshot.template_hash, verdict=TemplateVerdict.GOOD, time=snapshot.now)
            return change(snapshot, template_check=check)
        case KeepTemplate(name=name):
            kept = KeptTemplate(name=name, uid=f"uid-of-{name}", hash=snapshot.template_hash)
            return change(snapshot, kept=(*snapshot.kept, kept))
        case DropTemplate(name=name):
            return change(snapshot, kept=tuple(one for one in snapshot.kept if one.name != name))
        case SetBudget(min_available=least, uid=uid):
            if uid != (snapshot.budget.uid if snapshot.budget else None):
                raise Conflict
            return change(snapshot, budget=Budget(min_available=least, uid=uid or "budget"))
        case DeleteBudget():
            return change(snapshot, budget=None)
        case CreatePod(name=name, apart=apart, kept=kept, priority_class=named):
            made_from = next((one.hash for one in snapshot.kept if one.name == kept), snapshot.template_hash)
            return change_pod(_create(snapshot, name, made_from, apart=apart), name, priority_class=named)
        case Assign(name=name, uid=uid, role=role, old=old, new=new):
            if _pod(snapshot, name, uid).assignment != old or name in _refused(snapshot, {RefusalKind.PATCH_REFUSED}):
                raise Conflict
            return change_pod(snapshot, name, role=role, assignment=new, labelled=True)
        case Mark(name=name, uid=uid, old=old, new=new):
            pod = _pod(snapshot, name, uid)
            shown = pod.marks | {ANNOTATION_NUDGE: pod.nudge, ANNOTATION_ASSIGNMENT: pod.assignment}
            if any(shown.get(key) != value for key, value in old.items()):
                raise Conflict
            marked = {key: value for key, value in shown.items() if key not in old} | new
            told, nudge = marked.pop(ANNOTATION_ASSIGNMENT), marked.pop(ANNOTATION_NUDGE)
            return change_pod(snapshot, name, assignment=told, nudge=nudge, marks=marked)
        case Answer():
            return _answered(snapshot, action)
        case DeletePod(name=name, uid=uid):
            pod = _pod(snapshot, name, uid)
            if name in _refused(snapshot, {RefusalKind.DELETION_REFUSED}):
                raise Conflict
            return remove(snapshot, name) if terminated(pod) else delete(snapshot, name, snapshot.now + GRACE)
        case DeleteJob():
            return change(snapshot, deleting=True)


def _answered(snapshot: Snapshot, said: Answer) -> Snapshot:
    if said.uid not in {one.uid for one in snapshot.evictions}:
        return snapshot
    told = {
        "heartbeat": said.heartbeat,
        "completed": said.completed,
        "message": said.message,
        "tried": min(said.heartbeat, snapshot.now),
    }
    told |= {"expected": said.expected} if said.expected else {}
    views = (one.model_copy(update=told) if one.uid == said.uid else one for one in snapshot.evictions)
    return change(snapshot, evictions=tuple(views))


def delete(snapshot: Snapshot, name: str, deadline: datetime) -> Snapshot:
    """A running pod is deleted."""
    return change_pod(snapshot, name, deleting=True, deletion_deadline=deadline)


def remove(snapshot: Snapshot, name: str) -> Snapshot:
    """The object goes, without a memory of it."""
    return change(snapshot, pods=tuple(pod for pod in snapshot.pods if pod.name != name))


def usable(node: NodeView) -> bool:
    """Whether the scheduler would use the node."""
    return node.exists and node.ready and not node.cordoned and not node.taints


def _allotted(snapshot: Snapshot, status: TrainingJobStatus) -> tuple[str, ...]:
    """The names that this very write has put into status, and those that earlier ones did."""
    return (*snapshot.allotted, *sorted(_to_come(status) - _to_come(snapshot.status)))


def _to_come(status: TrainingJobStatus) -> set[str]:
    """Names for the next run, and beside the one that is on."""
    return {*(status.next.members if status.next else ()), *(status.spares.names if status.spares else ())}


def _refused(snapshot: Snapshot, kinds: set[RefusalKind]) -> set[str]:
    return {refusal.pod for refusal in snapshot.refusals if refusal.kind in kinds}


def _create(snapshot: Snapshot, name: str, template_hash: str, *, apart: bool) -> Snapshot:
    if any(pod.name == name and not pod.gone for pod in snapshot.pods):
        return snapshot
    if name in _refused(snapshot, {RefusalKind.REFUSED, RefusalKind.NAME_TAKEN}):
        raise Conflict
    snapshot = change(snapshot, created=(*snapshot.created, name))
    formers = {pod.node for pod in snapshot.pods if pod.role == Role.FORMER and not terminated(pod)}
    kept_off = formers if apart else set()
    load = {node.name: 0 for node in snapshot.nodes if usable(node) and node.name not in kept_off}
    for pod in snapshot.pods:
        if pod.node in load:
            load[pod.node] += 1
    node = min(load, key=lambda each: (load[each], each), default="")
    standby = write_assignment(Standby())
    pod = PodView(
        name=name,
        uid=f"uid-of-{name}",
        owner_uid=snapshot.uid,
        role=Role.STANDBY,
        assignment=standby,
        marks=marks(snapshot.spec.disruption.autoscaler, Role.STANDBY),
        node=node,
        template_hash=template_hash,
        unschedulable="" if node else "0/3 nodes are available",
    )
    return change(snapshot, pods=(*snapshot.pods, pod))


def _pod(snapshot: Snapshot, name: str, uid: str) -> PodView:
    for pod in snapshot.pods:
        if pod.name == name and pod.uid == uid and not pod.gone:
            return pod
    raise Conflict
