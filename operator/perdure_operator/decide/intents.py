"""From a reason to an intent: standbys take over from a run that trains on, or everybody saves and leaves first.

Called by the policies that see, collect and reconsider reasons; they alone decide when.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, NextRun
from perdure_operator.decide.blame import ExitCause, backoff_until, charge, judge
from perdure_operator.decide.disruptions import EndReason
from perdure_operator.decide.draft import Draft, Waiting, later, next_run
from perdure_operator.decide.facts import (
    LATE_MARGIN_SECONDS,
    SEAT_SECONDS,
    add_lost_run,
    patience,
    runs_lost_with,
    still_running,
)
from perdure_operator.decide.sizing import SETTLING_SECONDS, grow_by
from perdure_operator.decide.succession import state_leaves_until, succession

SHORT_NOTICE_SECONDS: Final = 30
"""Of a node that is gone sooner nobody waits for standbys: the time is for the save."""
LONGEST_PAUSE_SECONDS: Final = 25
"""For a longer one after a failure nobody holds a seat that others could use."""

CALM_SECONDS: Final = 600
"""Two failures so long after each other are no row that has to be slowed down."""

_EVERYBODY: Final = frozenset({Disruption.SUSPEND, Disruption.STOP})
"""No run follows at once."""
_NOBODY_STAYS: Final = _EVERYBODY | {Disruption.NODE_FAULT}
"""Who went on in its pod would take along what is suspect."""
_ANNOUNCED: Final = frozenset(
    {Disruption.NODE_LEAVING, Disruption.NODE_FAULT, Disruption.MEMBER_DELETED, Disruption.SIZE_CHANGE}
)
"""Reasons that cost nothing: the next run begins as soon as it can."""


def start_move(draft: Draft, current: CurrentRun, found: EndReason) -> Draft:
    """The run has to end: standbys first where they can take over, else everybody leaves at once."""
    if may_prepare(draft, current, found):
        return _prepare(draft, current, found)
    return leave_at_once(draft, current, found)


def may_prepare(draft: Draft, current: CurrentRun, found: EndReason) -> bool:
    """Whether the run's members, those that stay, can go on in their pods once standbys are Ready."""
    patient = found.if_room or draft.snapshot.spec.disruption.replacement_timeout_seconds > 0
    if found.deadline and found.deadline < later(_deadline_seen(draft, current.intent), SHORT_NOTICE_SECONDS):
        return False
    if not patient or draft.snapshot.deleting or found.disruption in _NOBODY_STAYS or _nobody_goes_on(draft, found):
        return False
    pause = _pause(draft, current, found)
    return pause is not None and pause <= later(draft.now, LONGEST_PAUSE_SECONDS)


def _nobody_goes_on(draft: Draft, found: EndReason) -> bool:
    """Whether there is nobody for whose sake standbys would be awaited: the run is lost, or all have ended.

    Or who goes on has nothing to go on with, and whoever has is gone before long.
    """
    if found.urgent and state_leaves_until(draft):
        return True
    if found.disruption is Disruption.MEMBER_LOST:
        return not succession(draft).stays
    return not still_running(draft)


def ready_by(draft: Draft, current: CurrentRun, intent: Intent) -> datetime | None:
    """Until when standbys are waited for: who has saved, or lost a peer, holds its seat no longer."""
    told = [one.time for one in current.outcomes if one.outcome and one.time]
    ends = [*([intent.ready_by] if intent.ready_by else []), *([later(min(told), SEAT_SECONDS)] if told else [])]
    return min([*ends, *_not_worth_more(draft, current, intent)], default=None)


def _not_worth_more(draft: Draft, current: CurrentRun, intent: Intent) -> list[datetime]:
    """Where one standby after the other dies: what the others hold is no more than their run has lasted.

    Standbys cost no failure, and the job that cannot be started would be tried for hours.
    """
    row, begun = draft.status.next.replacements if draft.status.next else None, current.plan.assigned_time
    if intent.disruption is not Disruption.MEMBER_LOST or not row or row.count < 2 or not begun or not intent.ready_by:
        return []
    if current.plan.takes_over:  # of what it goes on with since the last commit nobody knows how much it is
        return []
    lost = later(intent.ready_by, -patience(draft.snapshot, Disruption.MEMBER_LOST))
    least = draft.snapshot.spec.disruption.replacement_timeout_seconds
    return [later(lost, max((lost - begun).total_seconds(), least))]


def limited(draft: Draft, current: CurrentRun, found: EndReason, intent: Intent | None = None) -> Intent:
    """The intent to go on with standbys for this reason; what was decided once keeps its times."""
    old = intent or current.intent
    lost_now = found.disruption is Disruption.MEMBER_LOST and not (old and old.disruption is found.disruption)
    grows = found.disruption is Disruption.SIZE_CHANGE and not succession(draft).leaves
    growing_by = ((old.grow_by if old else None) or grow_by(draft)) if grows and _ends_growing(draft) else None
    until = old.ready_by if old and not lost_now and not grows else None
    if found.if_room:
        until = None
    elif until is None and not grows:
        until = later(draft.now, patience(draft.snapshot, found.disruption))
    if until is not None and found.deadline:
        until = min(until, _half_way(_deadline_seen(draft, old), found.deadline))
    not_before = old.not_before if old and (grows or not old.grow_by) else None
    if grows and growing_by and not_before is None and current.plan.assigned_time:
        not_before = later(current.plan.assigned_time, SETTLING_SECONDS)
    if found.disruption is Disruption.MEMBER_LOST:
        not_before = _begins(draft, current, found, not_before)
    return Intent(
        disruption=found.disruption,
        cause=found.cause,
        nodes=found.nodes,
        since=old.since if old else draft.now,
        newest=old.newest if old else None,
        deadline_seen=_still_seen(draft, old, found),
        prepare=True,
        ready_by=until,
        grow_by=growing_by,
        not_before=not_before,
    )


def _ends_growing(draft: Draft) -> bool:
    """Without `elastic` nobody gives it up, as long as it is known that the run trains."""
    upcoming = draft.status.next
    return draft.snapshot.spec.elastic is not None or bool(upcoming and upcoming.attempts)


def _deadline_seen(draft: Draft, intent: Intent | None) -> datetime:
    """Since when the notice counts: an intent may be hours old, of another reason, when a deadline appears."""
    return (intent.deadline_seen if intent else None) or draft.now


def _still_seen(draft: Draft, old: Intent | None, found: EndReason) -> datetime | None:
    """A reason that comes before that of the nodes says nothing of whether their deadline is still shown."""
    if found.deadline:
        return _deadline_seen(draft, old)
    return old.deadline_seen if old and found.disruption is not Disruption.NODE_LEAVING else None


def _half_way(since: datetime, deadline: datetime) -> datetime:
    """How long a save takes nobody knows before it has ended: at least half of the notice is left for it."""
    return later(since, (deadline - since).total_seconds() / 2)


def leave_at_once(draft: Draft, current: CurrentRun, found: EndReason, fallback_reason: str = "") -> Draft:
    """From here on the move is finished first: the next run has its number. Standbys that are there are used."""
    old, status = current.intent, draft.status
    seconds, lost = draft.snapshot.spec.disruption.exit_timeout_seconds, status.lost
    if found.disruption is Disruption.MEMBER_LOST:
        seconds, lost = _last_seconds(draft, current), runs_lost_with(draft, current)
    if found.disruption is Disruption.NODE_FAULT:
        seconds, lost = 0, _suspect(draft, current)
    intent = Intent(
        disruption=found.disruption,
        cause=found.cause,
        nodes=found.nodes,
        since=old.since if old else draft.now,
        newest=old.newest if old else None,
        deadline_seen=_still_seen(draft, old, found),
        leave=True,
        fallback_reason=fallback_reason,
        seconds=seconds,
        lost=lost,
        deadline=later(draft.now, seconds + LATE_MARGIN_SECONDS),
        ahead=found.disruption in _ANNOUNCED
        and not fallback_reason
        and current.replacements is None,  # else they are paced
    )
    known = status.next if status.next and found.disruption not in _EVERYBODY else NextRun(run=0)
    words = {"disruption": found.disruption, "cause": found.cause, "fallback_reason": fallback_reason}
    upcoming = known.model_copy(update={"run": next_run(status), "plan": None, **words})
    if old is None or old.disruption is not found.disruption:
        draft = draft.tell(Reason(found.disruption), found.cause)
    draft = draft.update_current(intent=intent).update(next=upcoming, run=upcoming.run)
    previous = status.previous
    if found.disruption is Disruption.NODE_FAULT and previous and previous.run in lost:
        draft = draft.update(previous=previous.model_copy(update={"intent": intent}))
    return draft.because(f"run {current.run} ends: {found.cause}")


def _prepare(draft: Draft, current: CurrentRun, found: EndReason) -> Draft:
    old = current.intent
    if old is None or old.disruption is not found.disruption:
        draft = draft.tell(Reason(found.disruption), found.cause)
    intent = limited(draft, current, found)
    upcoming = NextRun(run=next_run(draft.status), disruption=found.disruption, cause=found.cause)
    draft = draft.update_current(intent=intent).update(next=upcoming)
    return draft.because(f"standbys are to take over from run {current.run}: {found.cause}")


def _begins(draft: Draft, current: CurrentRun, found: EndReason, decided: datetime | None) -> datetime | None:
    """When the next run may begin; later than was decided, where a member that ended later costs what others did not.

    Then the pause counts from that member's end: counted from now it would never be over.
    """
    pause = _pause(draft, current, found)
    blamed = _exit_cause(current).blamed
    if decided is None or pause is None or blamed is None or blamed.time is None:
        return pause if decided is None else decided
    return max(decided, min(blamed.time, draft.now) + (pause - draft.now))


def _exit_cause(current: CurrentRun) -> ExitCause:
    return judge(current.outcomes, planned=False, late=False)


def _pause(draft: Draft, current: CurrentRun, found: EndReason) -> datetime | None:
    """When the next run may begin after a member was lost; None where it has to be closed before anything else is."""
    if found.disruption is not Disruption.MEMBER_LOST:
        return draft.now
    exit_cause = _exit_cause(current)
    charged = charge(draft, exit_cause, current)
    if charged.status.finished_at or charged.status.log_lost:
        return None
    if charged.status.failures == draft.status.failures or _goes_on_at_once(draft, exit_cause):
        return draft.now
    return backoff_until(charged.status.failures)


def _goes_on_at_once(draft: Draft, exit_cause: ExitCause) -> bool:
    """Whether those that are there go on without a pause: somebody else's fault, and the first for a while.

    Of commits since the last one nobody has told where all train on. Only with `elastic`: else nobody trains before a
    replacement has started, which takes longer.
    """
    if draft.snapshot.spec.elastic is None or exit_cause.reason is not Reason.INFRASTRUCTURE_FAILURE:
        return False
    last = draft.status.failures
    return last.last_time is None or not last.consecutive or draft.now >= later(last.last_time, CALM_SECONDS)


def _suspect(draft: Draft, current: CurrentRun) -> tuple[int, ...]:
    """The lost runs with all that may train now: none of them is to save any more."""
    status, before = draft.status, current.plan.takes_over
    runs = {current.run, *(status.next.attempted_runs if status.next else ())}
    if before and status.opened < current.run:
        runs.add(before)
    return reduce(add_lost_run, sorted(runs), status.lost)


def _last_seconds(draft: Draft, current: CurrentRun) -> int:
    """Nothing of a lost run can be saved; but members that have not begun it may still be at work on the one before."""
    begun = not current.plan.takes_over or draft.status.opened >= current.run
    return 0 if begun else draft.snapshot.spec.disruption.exit_timeout_seconds


def fall_back(draft: Draft, current: CurrentRun, found: EndReason, held: Waiting) -> Draft:
    """No standby was ready in time: as if there were none."""
    draft = leave_at_once(draft, current, found, fallback_reason=f"no standby was ready in time: {held.reason}")
    if held.reason is Reason.STARTING_MEMBERS and draft.intent:  # they are only slow
        draft = draft.update_current(intent=draft.intent.model_copy(update={"ahead": True}))
    words = f"no standby was ready in time, all members save and leave: {held.message}"
    return draft.tell(Reason.STANDBYS_NOT_READY, words, warning=True).but(waiting=None)
