"""From a reason to an intent: standbys take over from a run that trains on, or all members save and leave first.

Called by the policies that detect, collect and reconsider reasons; they alone decide when.
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
    PULLING_SECONDS,
    SEAT_SECONDS,
    add_lost_run,
    are_set_up,
    patience,
    runs_lost_with,
    still_running,
    waits_for_room,
)
from perdure_operator.decide.sizing import SETTLING_SECONDS, growth_seconds, most_with
from perdure_operator.decide.succession import state_leaves_until, succession

SHORT_NOTICE_SECONDS: Final = 30
"""With less notice than this, the job does not wait for standbys and saves instead."""
LONGEST_PAUSE_SECONDS: Final = 25
"""In a longer pause after a failure no member holds a seat that others could use."""

CALM_SECONDS: Final = 600
"""Failures this far apart are not consecutive: the second gets no backoff."""

_ALL_LEAVE: Final = frozenset({Disruption.SUSPEND, Disruption.STOP})
"""After these no run follows at once."""
_NONE_STAYS: Final = _ALL_LEAVE | {Disruption.NODE_FAULT}
"""After these no member stays: after a fault it would keep suspect state."""
_ANNOUNCED: Final = frozenset(
    {Disruption.NODE_LEAVING, Disruption.NODE_FAULT, Disruption.MEMBER_DELETED, Disruption.SIZE_CHANGE}
)
"""Reasons that cost no failure: the next run begins as soon as it can."""


def start_move(draft: Draft, current: CurrentRun, found: EndReason) -> Draft:
    """Begin to end the run: standbys take over if they can, otherwise all members leave at once."""
    if may_prepare(draft, current, found):
        return _prepare(draft, current, found)
    return leave_at_once(draft, current, found)


def may_prepare(draft: Draft, current: CurrentRun, found: EndReason) -> bool:
    """Whether the members that stay can go on in their pods once standbys are Ready."""
    none_has_to_leave = found.if_room or found.disruption is Disruption.SIZE_CHANGE
    patient = none_has_to_leave or draft.snapshot.spec.disruption.replacement_timeout_seconds > 0
    if found.deadline and found.deadline < later(_deadline_seen(draft, current.intent), SHORT_NOTICE_SECONDS):
        return False
    if not patient or draft.snapshot.deleting or found.disruption in _NONE_STAYS or _none_goes_on(draft, found):
        return False
    pause = _pause(draft, current, found)
    return pause is not None and pause <= later(draft.now, LONGEST_PAUSE_SECONDS)


def _none_goes_on(draft: Draft, found: EndReason) -> bool:
    """Whether no member is left for which waiting for standbys would pay: the run is lost, or all have ended.

    Or the members that stay do not hold the newest state, and those that hold it leave soon.
    """
    if found.urgent and state_leaves_until(draft):
        return True
    if found.disruption is Disruption.MEMBER_LOST:
        return not succession(draft).stays
    return not still_running(draft)


def ready_by(draft: Draft, current: CurrentRun, intent: Intent) -> datetime | None:
    """Until when the job waits for standbys: members that have saved, or lost a peer, hold their seats no longer."""
    times = [one.time for one in current.outcomes if one.outcome and one.time]
    ends = [
        *([intent.ready_by] if intent.ready_by else []),
        *([later(min(times), SEAT_SECONDS)] if times else []),
    ]
    return min([*ends, *_not_worth_more(draft, current, intent)], default=None)


def _not_worth_more(draft: Draft, current: CurrentRun, intent: Intent) -> list[datetime]:
    """When to stop waiting if one standby after the other dies: the others hold no more steps than their run lasted.

    Standbys cost no failure, so a job that cannot start would try for hours.
    """
    series, begun = draft.status.next.replacements if draft.status.next else None, current.plan.assigned_time
    if (
        intent.disruption is not Disruption.MEMBER_LOST
        or not series
        or series.count < 2
        or not begun
        or not intent.ready_by
    ):
        return []
    if current.plan.takes_over:  # it is not known how many steps since the last commit it took over
        return []
    lost = later(intent.ready_by, -patience(draft.snapshot, Disruption.MEMBER_LOST))
    least = draft.snapshot.spec.disruption.replacement_timeout_seconds
    return [later(lost, max((lost - begun).total_seconds(), least))]


def limited(draft: Draft, current: CurrentRun, found: EndReason, intent: Intent | None = None) -> Intent:
    """The intent to go on with standbys for this reason; times that were decided once stay."""
    old = intent or current.intent
    lost_now = found.disruption is Disruption.MEMBER_LOST and not (old and old.disruption is found.disruption)
    grows = found.disruption is Disruption.SIZE_CHANGE and not succession(draft).leaves
    growing_by = ((old.grow_by if old else None) or _grow_by(draft)) if grows else None
    until = old.ready_by if old and not lost_now and not grows else None
    if found.if_room:
        until = None
    elif until is None and not grows:
        until = later(draft.now, patience(draft.snapshot, found.disruption))
    elif until is not None and old is not None and found.disruption is Disruption.NODE_LEAVING:
        until = _with_time_to_set_up(draft, old, until)
    if until is not None and found.deadline:
        until = min(until, _half_way(_deadline_seen(draft, old), found.deadline))
    newest = old.newest if old else None
    if old and set(found.nodes) - set(old.nodes):
        newest = draft.now
    not_before = old.not_before if old and (grows or not old.grow_by) else None
    if grows and draft.snapshot.spec.elastic and not_before is None and current.plan.assigned_time:
        not_before = later(current.plan.assigned_time, SETTLING_SECONDS)
    if found.disruption is Disruption.MEMBER_LOST:
        not_before = _begins(draft, current, found, not_before)
    return Intent(
        disruption=found.disruption,
        cause=found.cause,
        nodes=found.nodes,
        since=_since(draft, old, found),
        newest=newest,
        deadline_seen=_still_seen(draft, old, found),
        prepare=True,
        ready_by=until,
        grow_by=growing_by,
        not_before=not_before,
    )


def _since(draft: Draft, old: Intent | None, found: EndReason) -> datetime:
    """Since when the run has to end for this reason. Another reason, or a wait for room, was not this one.

    An offer that failed clears the time limit too, and is no wait for room.
    """
    if old is None or old.disruption is not found.disruption:
        return draft.now
    offered = draft.status.next and draft.status.next.attempts
    return draft.now if waits_for_room(old) and not found.if_room and not offered else old.since


def _with_time_to_set_up(draft: Draft, old: Intent, until: datetime) -> datetime:
    """Until when standbys are awaited, if the time that their nodes need to set them up does not count.

    Once they are set up they have the usual time. A job with `elastic` that may go on without them does not wait.
    """
    usual = later(draft.now, patience(draft.snapshot, Disruption.NODE_LEAVING))
    if not are_set_up(draft) or most_with(draft, len(succession(draft).stays)):
        return min(until, usual)
    return max(until, min(later(old.newest or old.since, PULLING_SECONDS), later(draft.now, PULLING_SECONDS)))


def _grow_by(draft: Draft) -> datetime:
    upcoming = draft.status.next
    return later(draft.now, growth_seconds(draft.snapshot.spec, offered=bool(upcoming and upcoming.attempts)))


def _deadline_seen(draft: Draft, intent: Intent | None) -> datetime:
    """Since when the notice counts: the intent may be hours old, and have another reason, when a deadline appears."""
    return (intent.deadline_seen if intent else None) or draft.now


def _still_seen(draft: Draft, old: Intent | None, found: EndReason) -> datetime | None:
    """When the nodes' deadline was first seen, if it may still hold: another reason says nothing about it."""
    if found.deadline:
        return _deadline_seen(draft, old)
    return old.deadline_seen if old and found.disruption is not Disruption.NODE_LEAVING else None


def _half_way(since: datetime, deadline: datetime) -> datetime:
    """At least half of the notice is left for the save: how long it takes is known only when it has ended."""
    return later(since, (deadline - since).total_seconds() / 2)


def leave_at_once(draft: Draft, current: CurrentRun, found: EndReason, fallback_reason: str = "") -> Draft:
    """Ask all members to leave. From here on the move is completed: the next run has a number and uses the standbys."""
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
        since=_since(draft, old, found),
        newest=old.newest if old else None,
        deadline_seen=_still_seen(draft, old, found),
        leave=True,
        fallback_reason=fallback_reason,
        seconds=seconds,
        lost=lost,
        deadline=later(draft.now, seconds + LATE_MARGIN_SECONDS),
        ahead=found.disruption in _ANNOUNCED
        and not fallback_reason
        and current.replacements is None,  # otherwise they are paced
    )
    known = status.next if status.next and found.disruption not in _ALL_LEAVE else NextRun(run=0)
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
    """When the next run may begin: later than was decided, if a member that ended since costs a failure.

    The pause then counts from that member's end: counted from now it would never be over.
    """
    pause = _pause(draft, current, found)
    blamed = _exit_cause(current).blamed
    if decided is None or pause is None or blamed is None or blamed.time is None:
        return pause if decided is None else decided
    return max(decided, min(blamed.time, draft.now) + (pause - draft.now))


def _exit_cause(current: CurrentRun) -> ExitCause:
    return judge(current.outcomes, planned=False, late=False)


def _pause(draft: Draft, current: CurrentRun, found: EndReason) -> datetime | None:
    """When the next run may begin after a member was lost; None if the run has to be closed first."""
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
    """Whether the other members go on without a pause: the failure was infrastructure's, and the first for a while.

    While all members train on, none reports its commits, so time decides what counts as a series. Only with `elastic`:
    otherwise no member trains before a replacement has started, which takes longer than the pause.
    """
    if draft.snapshot.spec.elastic is None or exit_cause.reason is not Reason.INFRASTRUCTURE_FAILURE:
        return False
    last = draft.status.failures
    return last.last_time is None or not last.consecutive or draft.now >= later(last.last_time, CALM_SECONDS)


def _suspect(draft: Draft, current: CurrentRun) -> tuple[int, ...]:
    """The lost runs, with all runs that may train now: none of them may save any more."""
    status, before = draft.status, current.plan.takes_over
    runs = {current.run, *(status.next.attempted_runs if status.next else ())}
    if before and status.opened < current.run:
        runs.add(before)
    return reduce(add_lost_run, sorted(runs), status.lost)


def _last_seconds(draft: Draft, current: CurrentRun) -> int:
    """How long members may take to stop: a lost run cannot save, but they may still be at work on the previous run."""
    begun = not current.plan.takes_over or draft.status.opened >= current.run
    return 0 if begun else draft.snapshot.spec.disruption.exit_timeout_seconds


def fall_back(draft: Draft, current: CurrentRun, found: EndReason, held: Waiting) -> Draft:
    """Ask all members to leave, as no standby was Ready in time."""
    draft = leave_at_once(draft, current, found, fallback_reason=f"no standby was ready in time: {held.reason}")
    if held.reason is Reason.STARTING_MEMBERS and draft.intent:  # they are only slow
        draft = draft.update_current(intent=draft.intent.model_copy(update={"ahead": True}))
    words = f"no standby was ready in time, all members save and leave: {held.message}"
    return draft.tell(Reason.STANDBYS_NOT_READY, words, warning=True).but(waiting=None)
