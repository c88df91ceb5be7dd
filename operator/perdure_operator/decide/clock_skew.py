"""Clamps times in status to now, so that a new leader does not wait because an earlier one's clock was ahead.

Except in `history`, which no wait counts from.

Operators use the API server's time (see `cluster.clock`). So this is about a server's clock that was set back, and
about times that an operator wrote before it knew the server's.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from perdure_operator.api.model import Model
from perdure_operator.api.status import (
    CurrentRun,
    GangRest,
    Growth,
    Intent,
    MemberOutcome,
    NextRun,
    PreviousRun,
    Replacements,
    RunPlan,
    Spares,
    TrainingProgress,
)
from perdure_operator.decide.draft import PAUSE_AT_MOST_SECONDS, Draft, later
from perdure_operator.decide.facts import LATE_MARGIN_SECONDS, PULLING_SECONDS, longest_gang_pause, patience
from perdure_operator.decide.sizing import longest_growth_seconds, longest_rest
from perdure_operator.state.snapshot import Snapshot

_Value = TypeVar("_Value", bound=Model)


def correct_times(draft: Draft) -> Draft:
    """Replace times ahead of now by now, and move a deadline that lies too far ahead to the latest that is possible."""
    status, now = draft.status, draft.now
    return draft.update(
        current=_of_current(status.current, now, draft.snapshot) if status.current else None,
        previous=_of_previous(status.previous, now, draft.snapshot) if status.previous else None,
        next=_of_next(status.next, now) if status.next else None,
        failures=_past(status.failures, now, "code_time", "last_time"),
        log_lost=_past(status.log_lost, now, "time") if status.log_lost else None,
        root_problem=_past(status.root_problem, now, "time") if status.root_problem else None,
        spares=_of_spares(status.spares, now) if status.spares else None,
        withdrawals=_past(status.withdrawals, now, "last_time") if status.withdrawals else None,
        saves=_past(status.saves, now, "last_time") if status.saves else None,
        progress=_of_progress(status.progress, now) if status.progress else None,
        last_save=_past(status.last_save, now, "time", "observed_at") if status.last_save else None,
        time_account=_past(status.time_account, now, "since") if status.time_account else None,
        scaling=_past(status.scaling, now, "since") if status.scaling else None,
        growth=_of_growth(status.growth, draft) if status.growth else None,
        gang=_of_gang(status.gang, draft) if status.gang else None,
        unready=tuple(_past(one, now, "since", "given_up") for one in status.unready),
        given_up=min(status.given_up, now) if status.given_up else None,
        start_time=min(status.start_time, now) if status.start_time else None,
        completion_time=min(status.completion_time, now) if status.completion_time else None,
        conditions=tuple(_past(one, now, "last_transition_time") for one in status.conditions),
    )


def _of_progress(progress: TrainingProgress, now: datetime) -> TrainingProgress:
    stragglers = tuple(_past(one, now, "since", "heard_time") for one in progress.stragglers)
    return _past(
        progress.model_copy(update={"stragglers": stragglers}) if stragglers else progress,
        now,
        *("step_time", "phase_time", "began_time", "storage_failing_since", "hang_time", "watched_time", "observed_at"),
    )


def _of_spares(spares: Spares, now: datetime) -> Spares:
    return spares.model_copy(update={"replacements": _of_series(spares.replacements, now)})


def _of_growth(growth: Growth, draft: Draft) -> Growth:
    latest = later(draft.now, longest_rest(draft.snapshot.spec))
    return growth.model_copy(update={"until": min(growth.until, latest)})


def _of_gang(gang: GangRest, draft: Draft) -> GangRest:
    latest = later(draft.now, longest_gang_pause(draft.snapshot.spec.start_timeout_seconds))
    return gang.model_copy(update={"until": min(gang.until, latest)})


def _of_previous(previous: PreviousRun, now: datetime, snapshot: Snapshot) -> PreviousRun:
    fields = {"intent": _of_intent(previous.intent, now, snapshot), "outcomes": _of_outcomes(previous.outcomes, now)}
    return previous.model_copy(update={**fields, "replacements": _of_series(previous.replacements, now)})


def _of_current(current: CurrentRun, now: datetime, snapshot: Snapshot) -> CurrentRun:
    fields: dict[str, Any] = {"plan": _of_plan(current.plan, now), "outcomes": _of_outcomes(current.outcomes, now)}
    fields["intent"] = _of_intent(current.intent, now, snapshot) if current.intent else None
    return current.model_copy(update={**fields, "replacements": _of_series(current.replacements, now)})


def _of_intent(intent: Intent, now: datetime, snapshot: Snapshot) -> Intent:
    intent = _past(intent, now, "since", "newest", "deadline_seen")
    longest = {
        "ready_by": max(patience(snapshot, intent.disruption), PULLING_SECONDS),
        "grow_by": longest_growth_seconds(snapshot.spec),
        "not_before": PAUSE_AT_MOST_SECONDS,
        "deadline": intent.seconds + LATE_MARGIN_SECONDS,
    }
    latest = ((name, at, later(now, longest[name])) for name in longest if (at := getattr(intent, name)) is not None)
    ahead = {name: bound for name, at, bound in latest if at > bound}
    return intent.model_copy(update=ahead) if ahead else intent


def _of_next(upcoming: NextRun, now: datetime) -> NextRun:
    enough, plan, upcoming = upcoming.enough, upcoming.plan, _past(upcoming, now, "in_vain_since")
    fields: dict[str, Any] = {"enough": _past(enough, now, "since") if enough else None}
    fields |= {"plan": _of_plan(plan, now) if plan else None, "replacements": _of_series(upcoming.replacements, now)}
    return upcoming.model_copy(update=fields)


def _of_plan(plan: RunPlan, now: datetime) -> RunPlan:
    """The plan without an assigned time ahead of now. Members do not read that time."""
    return _past(plan, now, "assigned_time")


def _of_outcomes(outcomes: tuple[MemberOutcome, ...], now: datetime) -> tuple[MemberOutcome, ...]:
    return tuple(_past(one, now, "time") for one in outcomes)


def _of_series(series: Replacements | None, now: datetime) -> Replacements | None:
    return _past(series, now, "last_time") if series else None


def _past(value: _Value, now: datetime, *fields: str) -> _Value:
    """The value, with none of these fields ahead of now."""
    ahead = {name: now for name in fields if (time := getattr(value, name)) is not None and time > now}
    return value.model_copy(update=ahead) if ahead else value
