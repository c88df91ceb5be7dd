"""`kubectl perdure checkpoint`: asks the run of a job for a save now, and says what is known of its commits. Pure.

The request is the job's annotation perdure.dev/save, as a user may write it by hand. The operator passes it on.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

from perdure.wire import Completion
from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.cli.kubectl.job import JobSeen, SavedStep, saved_step
from perdure_operator.cli.kubectl.page import Facts, Page, deadline
from perdure_operator.cli.kubectl.status_page import (
    JobPage,
    death_costs_in_words,
    job_page,
    save_takes,
    saved_in_words,
)
from perdure_operator.decide.saving import paused_until
from perdure_operator.decide.signals import users_save


class SaveRequest(Model):
    """What was asked, and what is known of the job's commits."""

    namespace: str
    name: str
    asked: str | None = None
    """The value of the annotation perdure.dev/save; null if nothing was written."""
    asked_for_at: datetime | None = None
    """When the operator asks the run for it, if that waits after earlier saves; null if it does not."""
    saved: SavedStep | None = None
    """The newest commit; null if none is known, which does not mean that there is none."""
    newer: bool | None = None
    """Whether that one was saved after the run was asked for it; null if it was not waited for."""
    death_costs: str = ""
    """What the death of any one member costs now, if its rank 0 reports it."""
    required_grace_seconds: int | None = None
    """About how long a save takes, if its rank 0 reports it."""


def value(now: datetime) -> str:
    """A new value of the annotation: the time."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def refusal(seen: JobSeen, *, wait: bool) -> str:
    """Why the job's run cannot be asked to save; "" if it can."""
    who, record, status = "/".join(seen.record.key), seen.record, seen.status
    if record.fault:
        return f"{who} cannot be read: {record.fault}"
    if status.finished_at:
        return f"{who} is {status.phase.value}: no member trains"
    if record.spec is not None and record.spec.completion is not Completion.LOG:
        return f"members of {who} cannot be asked to save and train on, as completion is {record.spec.completion.value}"
    if status.current is None:
        running = status.find(ConditionType.RUNNING)
        why = f": {running.message}" if running else ""
        return f"no run of {who} is on{why}"
    if wait and status.progress is None:
        return f"{who} reports nothing while it trains, so there is nothing to wait for: see docs/reports.md"
    return ""


def is_newer(before: JobSeen, now: JobSeen, asked: str) -> bool:
    """Whether a commit that was not there before was saved after the operator had asked the run for this request."""
    saves, old, new = now.status.saves, saved_step(before.status), saved_step(now.status)
    if saves is None or saves.last_time is None or users_save(asked) not in saves.shown:
        return False
    if new is None or new.time is None or new.time < saves.last_time:
        return False
    return old is None or new.step > old.step


def answer(seen: JobSeen, asked: str | None, *, newer: bool | None = None) -> SaveRequest:
    """What the command tells."""
    job, saves = job_page(seen).job, seen.status.saves
    waits = asked is not None and saves is not None and users_save(asked) not in saves.shown
    return SaveRequest(
        namespace=job.namespace,
        name=job.name,
        asked=asked,
        asked_for_at=paused_until(saves, seen.now) if waits and saves else None,
        saved=job.saved,
        newer=newer,
        death_costs=job.death_costs,
        required_grace_seconds=job.required_grace_seconds,
    )


def page(seen: JobSeen, found: SaveRequest, flags: Sequence[str] = ()) -> Page:
    """The same for people. `flags` are kubectl's own, as they were given."""
    shown: JobPage = job_page(seen)
    facts = Facts(
        (
            ("Job", f"{found.namespace}/{found.name}, {shown.job.stage}"),
            ("Asked", _asked_in_words(found, seen.now)),
            ("Saved", saved_in_words(shown, seen.now)),
            ("A death costs", death_costs_in_words(shown.job)),
            ("A save takes", save_takes(shown.job)),
        )
    )
    if found.asked is None or found.newer:
        return (facts,)
    words = ("kubectl", "perdure", "logs", found.name, "-n", found.namespace, "--tail=20", *flags)
    return facts, f"Whether it has saved: {shlex.join(words)}"


def _asked_in_words(found: SaveRequest, now: datetime) -> str:
    if not found.asked:
        return "nothing was written"
    waits = f"; the run is asked for it at {deadline(found.asked_for_at, now)}" if found.asked_for_at else ""
    return f"at {found.asked}, to save and train on{waits}"
