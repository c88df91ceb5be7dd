"""What status says to people: conditions, phase, counts. No decision is taken from what is written here."""

from __future__ import annotations

from typing import Final

from perdure.contract import LABEL_JOB
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import Disruption, Phase
from perdure_operator.decide.facts import over, own
from perdure_operator.decide.turn import Turn, Waiting, find, finished_at, holds

_WARNINGS: Final = frozenset(
    {
        Reason.TEMPLATE_INVALID,
        Reason.QUOTA_EXCEEDED,
        Reason.POD_REFUSED,
        Reason.SHARED_ROOT,
        Reason.IMAGE_PULL_FAILED,
        Reason.AGENT_MISSING,
        Reason.CONTAINER_NOT_CREATED,
        Reason.TOLERATES_LEAVING_NODE,
        Reason.UNSCHEDULABLE,
    }
)
"""What a person should act on."""


def summarise(turn: Turn) -> Turn:
    """The last policy: describes what the others have decided."""
    members = own(turn.snapshot)
    alive = [name for name in turn.status.members if name in members and not over(members[name])]
    turn = _running(turn)
    turn = _disrupted(turn)
    turn = _protected(turn)
    turn = _suspended(turn)
    return turn.update(
        phase=_phase(turn),
        replicas=len(alive),
        selector=f"{LABEL_JOB}={turn.snapshot.name}",
        observed_generation=turn.snapshot.generation,
    )


def _running(turn: Turn) -> Turn:
    status = turn.status
    if finished_at(status):
        reason = Reason.COMPLETED if holds(status, ConditionType.COMPLETED) else Reason.FAILED
        return turn.condition(ConditionType.RUNNING, False, reason, "the job is finished")
    if _trains(turn) and status.plan:
        message = f"run {status.plan.run}: {len(status.plan.members)} members, {status.plan.world} processes"
        if turn.snapshot.deleting:
            message += "; the job is being deleted: no run follows this one"
        return turn.condition(ConditionType.RUNNING, True, Reason.TRAINING, message)
    waiting = turn.waiting or Waiting(Reason.STARTING_MEMBERS, "waiting for the next look at the cluster")
    old = find(status, ConditionType.RUNNING)
    turn = turn.condition(ConditionType.RUNNING, False, waiting.reason, waiting.message)
    if waiting.reason in _WARNINGS and (old is None or old.reason != waiting.reason):
        turn = turn.tell(waiting.reason, waiting.message, warning=True)
    return turn


def _trains(turn: Turn) -> bool:
    plan, intent = turn.status.plan, turn.status.intent
    return plan is not None and not turn.waiting and not (intent and intent.leave)


def _disrupted(turn: Turn) -> Turn:
    intent = turn.status.intent
    if intent is None:
        return turn.condition(ConditionType.DISRUPTED, False, Reason.UNDISTURBED, "nothing asks the run to end")
    return turn.condition(ConditionType.DISRUPTED, True, Reason(intent.disruption), intent.cause)


def _protected(turn: Turn) -> Turn:
    if finished_at(turn.status):
        return turn
    foreign = turn.snapshot.foreign_budgets
    if not foreign:
        if turn.snapshot.budget is None:
            return turn.condition(ConditionType.PROTECTED, False, Reason.BUDGET_MISSING, "no PodDisruptionBudget yet")
        text = "evictions wait for the exit save"
        return turn.condition(ConditionType.PROTECTED, True, Reason.BUDGET_IN_PLACE, text)
    old = find(turn.status, ConditionType.PROTECTED)
    names = ", ".join(foreign[:3])
    message = f"PodDisruptionBudget {names} also matches the members: evictions fail until its selector is changed"
    if old is None or old.reason != Reason.PDB_CONFLICT:
        turn = turn.tell(Reason.PDB_CONFLICT, message, warning=True)
    return turn.condition(ConditionType.PROTECTED, False, Reason.PDB_CONFLICT, message)


def _suspended(turn: Turn) -> Turn:
    if turn.waiting and turn.waiting.reason is Reason.SUSPENDED:
        return turn.condition(ConditionType.SUSPENDED, True, Reason.SUSPENDED, turn.waiting.message)
    if holds(turn.status, ConditionType.SUSPENDED):
        return turn.condition(ConditionType.SUSPENDED, False, Reason.RESUMED, "spec.suspend is false")
    return turn


def _phase(turn: Turn) -> Phase:
    status = turn.status
    if finished_at(status):
        return Phase.COMPLETED if holds(status, ConditionType.COMPLETED) else Phase.FAILED
    if status.plan is None:
        if turn.waiting and turn.waiting.reason is Reason.SUSPENDED:
            return Phase.SUSPENDED
        return Phase.STARTING if status.members else Phase.PENDING
    if status.intent and status.intent.leave:
        ends = {Disruption.SIZE_CHANGE: Phase.RESCALING, Disruption.MEMBER_LOST: Phase.RECOVERING}
        return ends.get(status.intent.disruption, Phase.VACATING)
    if _trains(turn):
        return Phase.RUNNING
    return Phase.STARTING if turn.waiting and turn.waiting.reason is Reason.ASSIGNING else Phase.RECOVERING
