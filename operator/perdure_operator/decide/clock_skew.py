"""No time in status is ahead of now: a leader must not wait out the difference to the clock of an earlier one.

Operators use the API server's time (see `cluster.clock`). So this is about a server's clock that was set back, and
about times that an operator wrote before it knew the server's.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from perdure_operator.api.status import CurrentRun, GangRest, Growth, Intent, NextRun, PreviousRun, Spares
from perdure_operator.decide.draft import PAUSE_AT_MOST_SECONDS, Draft, later
from perdure_operator.decide.facts import LATE_MARGIN_SECONDS, PULLING_SECONDS, longest_gang_pause, patience
from perdure_operator.decide.sizing import growth_seconds, longest_rest
from perdure_operator.state.snapshot import Snapshot


def correct_times(draft: Draft) -> Draft:
    """Replace times ahead of now by now, and move a deadline that lies too far ahead to the latest that is possible."""
    status, now = draft.status, draft.now
    return draft.update(
        current=_of_current(status.current, now, draft.snapshot) if status.current else None,
        previous=_of_previous(status.previous, now) if status.previous else None,
        next=_of_next(status.next, now) if status.next else None,
        failures=_past(status.failures, now, "last_time"),
        log_lost=_past(status.log_lost, now, "time") if status.log_lost else None,
        root_problem=_past(status.root_problem, now, "time") if status.root_problem else None,
        spares=_of_spares(status.spares, now) if status.spares else None,
        withdrawals=_past(status.withdrawals, now, "last_time") if status.withdrawals else None,
        saves=_past(status.saves, now, "last_time") if status.saves else None,
        growth=_of_growth(status.growth, draft) if status.growth else None,
        gang=_of_gang(status.gang, draft) if status.gang else None,
        unready=tuple(_past(one, now, "since", "given_up") for one in status.unready),
        given_up=min(status.given_up, now) if status.given_up else None,
        start_time=min(status.start_time, now) if status.start_time else None,
    )


def _of_spares(spares: Spares, now: datetime) -> Spares:
    row = spares.replacements
    return spares.model_copy(update={"replacements": _past(row, now, "last_time")}) if row else spares


def _of_growth(growth: Growth, draft: Draft) -> Growth:
    elastic = draft.snapshot.spec.elastic
    latest = later(draft.now, longest_rest(elastic.grow_timeout_seconds if elastic else 0))
    return growth.model_copy(update={"until": min(growth.until, latest)})


def _of_gang(gang: GangRest, draft: Draft) -> GangRest:
    latest = later(draft.now, longest_gang_pause(draft.snapshot.spec.start_timeout_seconds))
    return gang.model_copy(update={"until": min(gang.until, latest)})


def _of_previous(previous: PreviousRun, now: datetime) -> PreviousRun:
    return previous.model_copy(update={"intent": _of_intent(previous.intent, now)})


def _of_current(current: CurrentRun, now: datetime, snapshot: Snapshot) -> CurrentRun:
    intent = current.intent
    if intent is None:
        return current
    intent = _of_intent(intent, now)
    if intent.ready_by:
        latest = later(now, max(patience(snapshot, intent.disruption), PULLING_SECONDS))
        intent = intent.model_copy(update={"ready_by": min(intent.ready_by, latest)})
    if intent.grow_by:
        latest = later(now, growth_seconds(snapshot.spec))
        intent = intent.model_copy(update={"grow_by": min(intent.grow_by, latest)})
    if intent.not_before:
        intent = intent.model_copy(update={"not_before": min(intent.not_before, later(now, PAUSE_AT_MOST_SECONDS))})
    return current.model_copy(update={"intent": intent})


def _of_intent(intent: Intent, now: datetime) -> Intent:
    intent = _past(intent, now, "since", "newest", "deadline_seen")
    if intent.deadline is None:
        return intent
    latest = later(now, intent.seconds + LATE_MARGIN_SECONDS)
    return intent.model_copy(update={"deadline": min(intent.deadline, latest)})


def _of_next(upcoming: NextRun, now: datetime) -> NextRun:
    old, enough, upcoming = upcoming.replacements, upcoming.enough, _past(upcoming, now, "in_vain_since")
    upcoming = upcoming.model_copy(update={"enough": _past(enough, now, "since")}) if enough else upcoming
    return upcoming.model_copy(update={"replacements": _past(old, now, "last_time")}) if old else upcoming


def _past(value: Any, now: datetime, *fields: str) -> Any:
    """The value, with none of these fields ahead of now."""
    ahead = {name: now for name in fields if (time := getattr(value, name)) is not None and time > now}
    return value.model_copy(update=ahead) if ahead else value
