"""A job and its pods as `kubectl perdure` reads them, and what status says of them. Pure.

Status is the operator's: nothing here concludes more than it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Disruption, Intent, TrainingJobStatus
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.draft import later
from perdure_operator.decide.facts import LATE_MARGIN_SECONDS
from perdure_operator.state.snapshot import PodView

UNREADABLE: Final = "unreadable"
"""The stage of a job that this version cannot read."""


@dataclass(frozen=True)
class JobSeen:
    """A job, the pods that it owns, and when they were read."""

    record: JobRecord
    pods: tuple[PodView, ...]
    now: datetime

    @property
    def status(self) -> TrainingJobStatus:
        """Its status; an empty one if this version cannot read it."""
        return self.record.status or TrainingJobStatus()


class Wait(Model):
    """What a job waits for."""

    message: str
    """In the operator's words."""
    until: datetime | None = None
    """When the wait ends by itself; absent where it has no such time, or only the message names it."""


class Disrupted(Model):
    """Why the run has to end or change now."""

    disruption: Disruption
    cause: str
    nodes: tuple[str, ...] = ()
    """The nodes that members have to leave."""
    since: datetime | None = None
    """Since when, if the run is on."""


class SavedStep(Model):
    """The last step that is known to be saved. Members report it when they end."""

    step: int
    reported: datetime | None = None
    """By when it was reported, at the latest; absent where status does not tell."""


class JobSummary(Model):
    """A job in one row."""

    namespace: str
    name: str
    stage: str
    """A stage of the operator, Suspended, Completed, Failed, or `unreadable`."""
    members: int = 0
    """Living members of the run."""
    wanted: int | None = None
    """What spec.replicas asks for."""
    run: int = 0
    saved: SavedStep | None = None
    waits_for: Wait | None = None
    disrupted: Disrupted | None = None


def summary(seen: JobSeen) -> JobSummary:
    """The job in one row."""
    record, status = seen.record, seen.status
    return JobSummary(
        namespace=record.key[0],
        name=record.key[1],
        stage=stage(seen),
        members=status.replicas,
        wanted=record.spec.replicas if record.spec else None,
        run=status.current.run if status.current else status.run,
        saved=saved_step(status),
        waits_for=wait(seen),
        disrupted=why_disrupted(status),
    )


def stage(seen: JobSeen) -> str:
    """See JobSummary."""
    status, found = seen.status, stage_of(seen.status)
    if seen.record.fault:
        return UNREADABLE
    if found is Stage.FINISHED or (found is Stage.BETWEEN and status.holds(ConditionType.SUSPENDED)):
        return str(status.phase)
    return found.value


def saved_step(status: TrainingJobStatus) -> SavedStep | None:
    """See SavedStep."""
    if status.step is None:
        return None
    ended = status.current.outcomes if status.current else ()
    told = [one.time for one in ended if one.commit_step == status.step and one.time]
    told += [one.time for one in status.history if status.step in (one.kept, one.reached) and one.time]
    return SavedStep(step=status.step, reported=status.completion_time or max(told, default=None))


def wait(seen: JobSeen) -> Wait | None:
    """What the job waits for; None while nothing is awaited."""
    status = seen.status
    if seen.record.fault:
        return Wait(message=f"{seen.record.fault}: CRD and kubectl perdure are of different versions")
    if status.finished_at:
        return None
    running, disrupted = status.find(ConditionType.RUNNING), status.find(ConditionType.DISRUPTED)
    if running is None:
        return Wait(message="an operator has not looked at this job yet: is one running?")
    if running.status != "True":
        return Wait(message=running.message, until=_until(status))
    if disrupted and disrupted.status == "True":
        cause = why_disrupted(status)
        said = disrupted.message.removeprefix(f"{cause.cause}; " if cause else "")
        return Wait(message=said, until=_until(status)) if not cause or said != cause.cause else None
    return None


def _until(status: TrainingJobStatus) -> datetime | None:
    """When the wait ends by itself, as far as status has that time as a field."""
    intent = status.current.intent if status.current else None
    match stage_of(status):
        case Stage.PREPARING if intent:
            return intent.ready_by or intent.grow_by
        case Stage.LEAVING if intent:
            return _saved_by(intent)
        case Stage.BETWEEN if status.gang:
            return status.gang.until
        case Stage.RUNNING if status.previous:
            return _saved_by(status.previous.intent)
        case _:
            return None


def _saved_by(intent: Intent) -> datetime | None:
    """Until when members may save: the operator deletes late ones a while after it."""
    return later(intent.deadline, -LATE_MARGIN_SECONDS) if intent.deadline else None


def why_disrupted(status: TrainingJobStatus) -> Disrupted | None:
    """Why the run has to end or change now, or why the last one did while the next has not begun."""
    intent = status.current.intent if status.current else None
    if intent is not None:
        return Disrupted(disruption=intent.disruption, cause=intent.cause, nodes=intent.nodes, since=intent.since)
    upcoming = status.next
    if upcoming and upcoming.disruption:
        return Disrupted(disruption=upcoming.disruption, cause=upcoming.cause)
    return None


def in_order(jobs: Iterable[JobSeen]) -> list[JobSeen]:
    """By namespace and name."""
    return sorted(jobs, key=lambda one: one.record.key)
