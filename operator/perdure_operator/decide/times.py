"""No time in status is ahead of now, whoever wrote it: a leader whose clock is behind must not wait out the difference.

The API server's time is asked for (see `cluster.clock`), so this is about a server's clock that was set, and about what
an operator wrote that had not heard it yet.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from perdure_operator.api.status import CurrentRun, NextRun
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.exit_problems import LATE_MARGIN_SECONDS


def correct_times(draft: Draft) -> Draft:
    """What counts from a time ahead counts from now; a deadline is no further away than it can have been set."""
    status, now = draft.status, draft.now
    return draft.update(
        current=_of_current(status.current, now) if status.current else None,
        next=_of_next(status.next, now) if status.next else None,
        failures=_past(status.failures, now, "last_time"),
        log_lost=_past(status.log_lost, now, "time") if status.log_lost else None,
        root_problem=_past(status.root_problem, now, "time") if status.root_problem else None,
        unready=tuple(_past(one, now, "since", "given_up") for one in status.unready),
        given_up=min(status.given_up, now) if status.given_up else None,
        start_time=min(status.start_time, now) if status.start_time else None,
    )


def _of_current(current: CurrentRun, now: datetime) -> CurrentRun:
    intent = current.intent
    if intent is None:
        return current
    intent = _past(intent, now, "since", "newest")
    if intent.deadline:
        latest = later(now, intent.seconds + LATE_MARGIN_SECONDS)
        intent = intent.model_copy(update={"deadline": min(intent.deadline, latest)})
    return current.model_copy(update={"intent": intent})


def _of_next(upcoming: NextRun, now: datetime) -> NextRun:
    old = upcoming.replacements
    return upcoming.model_copy(update={"replacements": _past(old, now, "last_time")}) if old else upcoming


def _past(value: Any, now: datetime, *fields: str) -> Any:
    """With none of these fields ahead of now."""
    ahead = {name: now for name in fields if (time := getattr(value, name)) is not None and time > now}
    return value.model_copy(update=ahead) if ahead else value
