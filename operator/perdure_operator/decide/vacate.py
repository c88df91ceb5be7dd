"""Asks the members of a run that has to end to save and leave, waits for them, and deletes those that are late."""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import Final

from perdure.contract import ExitKind, Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Disruption, Intent, MemberOutcome, RunPlan
from perdure_operator.decide.assignments import leave
from perdure_operator.decide.disruption import MARGIN_SECONDS, told_its_end
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import awaited, listed
from perdure_operator.state.decision import Assign, DeletePod
from perdure_operator.state.snapshot import PodView

GRACE_MARGIN_SECONDS: Final = 5
"""A deleted pod's save has to end this long before its grace does."""
PATIENCE_SECONDS: Final = 30
"""After a member was lost a commit may still be on its way, but no new save can end."""


def vacate(draft: Draft) -> Draft:
    """Level-triggered: whoever does not show the request yet is asked again."""
    plan, intent = draft.status.plan, draft.status.intent
    if plan is None or intent is None or not intent.leave:
        return draft
    draft, intent = _shorten(draft, plan, intent)
    pods = awaited(draft, plan)
    if not pods:
        return draft
    deadline = intent.deadline or draft.now
    if draft.now >= deadline:
        return _delete_late(draft, pods)
    draft = draft.act(*_requests(pods, intent)).wake(deadline)
    if intent.disruption is Disruption.MEMBER_LOST:
        message = f"{intent.cause}; waiting for {listed(pods)} to stop until {clock(deadline)}"
        return draft.wait(Reason.STOPPING, message)
    message = f"waiting for the exit save of {listed(pods)} until {clock(later(deadline, -MARGIN_SECONDS))}"
    return draft.wait(Reason.EXIT_SAVE, message)


def _requests(pods: list[PodView], intent: Intent) -> list[Assign]:
    """A terminating pod gets no updates any more: its SIGTERM is its request."""
    text = leave(intent)
    return [
        Assign(name=pod.name, uid=pod.uid, role=pod.role or Role.STANDBY, old=pod.assignment, new=text)
        for pod in pods
        if not pod.deleting and pod.assignment != text
    ]


def _shorten(draft: Draft, plan: RunPlan, intent: Intent) -> tuple[Draft, Intent]:
    """Nobody can save without the others: what is left of the time ends with the first who cannot use it.

    Members count `seconds` from their first sight of the request, so the time gone by stays part of it.
    """
    ends = [*_ends_of_grace(draft, plan), *_end_of_patience(draft, plan)]
    deadline = later(min(ends), MARGIN_SECONDS) if ends else intent.deadline
    if deadline is None or intent.deadline is None or deadline >= intent.deadline:
        return draft, intent
    cut = ceil((intent.deadline - deadline).total_seconds())
    shorter = intent.model_copy(update={"seconds": max(intent.seconds - cut, 1), "deadline": deadline})
    return draft.update(intent=shorter).because(f"the save has to end {cut} s earlier"), shorter


def _ends_of_grace(draft: Draft, plan: RunPlan) -> list[datetime]:
    """Until when each deleted member can still save: it has only its own grace."""
    deadlines = [pod.deletion_deadline for pod in awaited(draft, plan) if pod.deleting and pod.deletion_deadline]
    return [max(later(end, -GRACE_MARGIN_SECONDS), later(draft.now, 1)) for end in deadlines]


def _end_of_patience(draft: Draft, plan: RunPlan) -> list[datetime]:
    """Until when the others are waited for after one was lost, unless the run has told its end.

    `lost` never changes within a run's number, so they cannot be told to stop at once.
    """
    endings = draft.status.endings
    if told_its_end(plan, endings) or not any(_breaks_the_save(ending) for ending in endings):
        return []
    return [later(draft.now, PATIENCE_SECONDS)]


def _breaks_the_save(ending: MemberOutcome) -> bool:
    return ending.infrastructure or ending.outcome in (ExitKind.FAILED, ExitKind.PEER_LOST)


def _delete_late(draft: Draft, pods: list[PodView]) -> Draft:
    late = [pod for pod in pods if not pod.deleting]
    draft = draft.act(*(DeletePod(name=pod.name, uid=pod.uid) for pod in late))
    ends = [pod.deletion_deadline for pod in pods if pod.deletion_deadline]
    until = f" until {clock(max(ends))}" if ends else ""
    return draft.wait(Reason.DELETING_MEMBERS, f"deleted, for their time is over: {listed(pods)}; waiting{until}")
