"""Asks the members of a run that has to end to save and leave, waits for them, and deletes those that are late."""

from __future__ import annotations

from typing import Final

from perdure.contract import Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Disruption, Intent, RunPlan
from perdure_operator.decide.assignments import leave
from perdure_operator.decide.disruption import MARGIN_SECONDS
from perdure_operator.decide.facts import awaited, listed
from perdure_operator.decide.turn import Turn, clock, later
from perdure_operator.state.plan import Assign, DeletePod
from perdure_operator.state.snapshot import PodView

GRACE_MARGIN_SECONDS: Final = 5
"""A deleted pod's save has to end this long before its grace does."""


def vacate(turn: Turn) -> Turn:
    """Level-triggered: whoever does not show the request yet is asked again."""
    plan, intent = turn.status.plan, turn.status.intent
    if plan is None or intent is None or not intent.leave:
        return turn
    turn, intent = _shorten(turn, plan, intent)
    pods = awaited(turn, plan)
    if not pods:
        return turn
    deadline = intent.deadline or turn.now
    if turn.now >= deadline:
        return _delete_late(turn, pods)
    turn = turn.act(*_requests(pods, intent)).wake(deadline)
    if intent.disruption is Disruption.MEMBER_LOST:
        message = f"{intent.cause}; waiting for {listed(pods)} to stop until {clock(deadline)}"
        return turn.wait(Reason.STOPPING, message)
    message = f"waiting for the exit save of {listed(pods)} until {clock(later(deadline, -MARGIN_SECONDS))}"
    return turn.wait(Reason.EXIT_SAVE, message)


def _requests(pods: list[PodView], intent: Intent) -> list[Assign]:
    """A terminating pod gets no updates any more: its SIGTERM is its request."""
    text = leave(intent)
    return [
        Assign(name=pod.name, uid=pod.uid, role=pod.role or Role.STANDBY, old=pod.assignment, new=text)
        for pod in pods
        if not pod.deleting and pod.assignment != text
    ]


def _shorten(turn: Turn, plan: RunPlan, intent: Intent) -> tuple[Turn, Intent]:
    """A deleted member has only its own grace: nobody can save with it any longer."""
    left = _grace_left(turn, plan)
    deadline = later(turn.now, (left or 0) + MARGIN_SECONDS)
    if left is None or intent.deadline is None or deadline >= intent.deadline:
        return turn, intent
    shorter = intent.model_copy(update={"seconds": int(left), "deadline": deadline})
    return turn.update(intent=shorter).because(f"a member was deleted: {int(left)} s are left to save"), shorter


def _grace_left(turn: Turn, plan: RunPlan) -> float | None:
    """How long the deleted member with the earliest deadline can still save, None where no member is deleted."""
    deadlines = [pod.deletion_deadline for pod in awaited(turn, plan) if pod.deleting and pod.deletion_deadline]
    if not deadlines:
        return None
    return max((min(deadlines) - turn.now).total_seconds() - GRACE_MARGIN_SECONDS, 1)


def _delete_late(turn: Turn, pods: list[PodView]) -> Turn:
    late = [pod for pod in pods if not pod.deleting]
    turn = turn.act(*(DeletePod(name=pod.name, uid=pod.uid) for pod in late))
    ends = [pod.deletion_deadline for pod in pods if pod.deletion_deadline]
    until = f" until {clock(max(ends))}" if ends else ""
    return turn.wait(Reason.DELETING_MEMBERS, f"deleted, for their time is over: {listed(pods)}; waiting{until}")
