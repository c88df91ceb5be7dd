"""A job and its pods as `kubectl perdure` reads them, and what status says of them. Pure.

Status is the operator's: nothing here concludes more than it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import Field

from perdure_operator.api.model import Model
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Disruption, MoveAct, Straggler, TrainingJobStatus, TrainingProgress
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.accounting import badput, goodput, ratio, undecided
from perdure_operator.decide.draft import clock, later
from perdure_operator.decide.facts import LATE_MARGIN_SECONDS
from perdure_operator.decide.health import is_silent, named_stragglers, trained_runs
from perdure_operator.state.snapshot import PodView

UNREADABLE: Final = "unreadable"
"""The stage of a job that this version cannot read."""
DELETING: Final = "Deleting"
"""The stage of a job that is being deleted."""


@dataclass(frozen=True)
class JobSeen:
    """A job, the pods that it owns, and when they were read."""

    record: JobRecord
    pods: tuple[PodView, ...] | None
    """None if they were not read."""
    now: datetime

    @property
    def known(self) -> bool:
        """Whether this version can read its status."""
        return self.record.status is not None

    @property
    def status(self) -> TrainingJobStatus:
        """The job's status; an empty one if it is not `known`."""
        return self.record.status or TrainingJobStatus()


class Wait(Model):
    """What a job waits for, or why it has failed."""

    message: str
    """In the operator's words."""
    until: datetime | None = None
    """When the wait ends by itself, if the message names a time; null if it has none, or another one."""


class Disrupted(Model):
    """Why the run has to end or change now."""

    disruption: Disruption
    cause: str
    nodes: tuple[str, ...] = ()
    """The nodes that members have to leave."""
    since: datetime | None = None
    """Since when, if the run is on."""


class SavedStep(Model):
    """The newest commit that is known."""

    step: int
    time: datetime | None = None
    """The latest time at which it was saved; null if status does not say."""
    reported: bool = False
    """Whether rank 0 reports commits while it trains. Otherwise members report them when they end."""


class TimeSpent(Model):
    """What the job's time went to, in seconds."""

    goodput: float
    """In steps that are in a commit, or that a later run has begun with."""
    badput: dict[str, float]
    """The others, by cause."""
    undecided: float
    """In finished steps that are in no commit yet, and in the step that is being made."""
    goodput_ratio: float | None
    """Goodput by all seconds; null before there are any."""


def time_spent(status: TrainingJobStatus) -> TimeSpent | None:
    """None before a run gave account of its time."""
    account = status.time_account
    if account is None or account.open is None:
        return None
    return TimeSpent(
        goodput=goodput(account), badput=badput(account), undecided=undecided(account), goodput_ratio=ratio(account)
    )


class JobSummary(Model):
    """A job in one row."""

    namespace: str
    name: str
    stage: str
    """A stage of the operator, Deleting, Suspended, Completed, Failed, or `unreadable`."""
    members: int | None = None
    """Living members of the run; null if status cannot be read."""
    wanted: int | None = None
    """What spec.replicas asks for; null if the spec cannot be read."""
    run: int | None = None
    """The current run, or the newest one; null if status cannot be read."""
    step: int | None = None
    """Steps that the run has done, if its rank 0 reports them and was heard in the last minutes."""
    death_costs: str = ""
    """What the death of any one member costs now, if its rank 0 reports it and was heard in the last minutes."""
    live: bool | None = None
    """Whether members can change live, if its rank 0 reports it and was heard in the last minutes."""
    live_why: str = ""
    """Why they cannot."""
    required_grace_seconds: int | None = None
    """About how long a save takes that begins now, if its rank 0 reports it and was heard in the last minutes."""
    save_stall_seconds: float | None = None
    """How long training stood still for the newest save, if rank 0 reports it and was heard in the last minutes."""
    handover_act: MoveAct | None = None
    """How far rank 0 is in a live hand-over, if it reports one and was heard in the last minutes."""
    data_wait_percent: int | None = None
    """The part of its steps in which rank 0 waits for data, if it reports it and was heard in the last minutes."""
    batch: int | None = None
    """Samples in a step, if its session chooses them and rank 0 was heard in the last minutes."""
    efficiency_percent: int | None = None
    """What a sample of such a step wins beside one of the script's own batch, if it is measured."""
    values: dict[str, float] = Field(default_factory=dict)
    """The newest numbers that rank 0's script has reported, if rank 0 was heard in the last minutes."""
    stragglers: tuple[Straggler, ...] = ()
    """Members that have held up the others for a minute, if rank 0 was heard in the last minutes."""
    saved: SavedStep | None = None
    """Null if no commit is known, which does not mean that there is none."""
    waits_for: Wait | None = None
    disrupted: Disrupted | None = None


def summary(seen: JobSeen) -> JobSummary:
    """The job in one row."""
    record, status = seen.record, seen.status
    heard = heard_progress(status, seen.now)
    return JobSummary(
        namespace=record.key[0],
        name=record.key[1],
        stage=stage(seen),
        members=status.replicas if seen.known else None,
        wanted=record.spec.replicas if record.spec else None,
        run=(status.current.run if status.current else status.run) if seen.known else None,
        step=reported_step(status, seen.now),
        death_costs=reported_death_costs(status, seen.now),
        live=heard.live if heard else None,
        live_why=heard.live_why if heard else "",
        required_grace_seconds=heard.required_grace_seconds if heard else None,
        save_stall_seconds=heard.save_stall_seconds if heard else None,
        handover_act=heard.handover_act if heard else None,
        data_wait_percent=heard.data_wait_percent if heard else None,
        batch=heard.batch if heard else None,
        efficiency_percent=heard.efficiency_percent if heard else None,
        values=heard.values if heard else {},
        stragglers=reported_stragglers(status, seen.now),
        saved=saved_step(status),
        waits_for=wait(seen),
        disrupted=why_disrupted(status),
    )


def stage(seen: JobSeen) -> str:
    """See JobSummary."""
    status, found = seen.status, stage_of(seen.status)
    if seen.record.fault:
        return UNREADABLE
    if seen.record.deleting:
        return DELETING
    if found is Stage.FINISHED or (found is Stage.BETWEEN and status.holds(ConditionType.SUSPENDED)):
        return str(status.phase)
    return found.value


def reported_step(status: TrainingJobStatus, now: datetime) -> int | None:
    """See JobSummary."""
    progress = status.progress
    return None if progress is None or is_silent(progress, now) else progress.step


def reported_death_costs(status: TrainingJobStatus, now: datetime) -> str:
    """See JobSummary. What members of a run reported says nothing of the one that follows."""
    progress = heard_progress(status, now)
    return progress.death_costs if progress else ""


def reported_stragglers(status: TrainingJobStatus, now: datetime) -> tuple[Straggler, ...]:
    """See JobSummary."""
    progress = heard_progress(status, now)
    return named_stragglers(progress) if progress else ()


def heard_progress(status: TrainingJobStatus, now: datetime) -> TrainingProgress | None:
    """What was heard lately of a run that may be on."""
    progress = status.progress
    if progress is None or is_silent(progress, now) or progress.run not in trained_runs(status):
        return None
    return progress


def saved_step(status: TrainingJobStatus) -> SavedStep | None:
    """See SavedStep."""
    last = status.last_save
    if last is not None and (status.step is None or last.step >= status.step):
        return SavedStep(step=last.step, time=last.time, reported=True)
    if status.step is None:
        return None
    ended = status.current.outcomes if status.current else ()
    times = [one.time for one in ended if one.commit_step == status.step and one.time]
    times += [one.time for one in status.history if one.kept == status.step and one.time]
    times += [status.completion_time] if status.completion_time else []
    return SavedStep(step=status.step, time=min(times, default=None), reported=last is not None)


def wait(seen: JobSeen) -> Wait | None:
    """What the job waits for; None while nothing is awaited."""
    status = seen.status
    if seen.record.fault:
        return Wait(message=f"{seen.record.fault}: CRD and kubectl perdure are of different versions")
    if status.finished_at:
        failed = status.find(ConditionType.FAILED)
        return Wait(message=failed.message) if failed and failed.status == "True" else None
    running, disrupted = status.find(ConditionType.RUNNING), status.find(ConditionType.DISRUPTED)
    if running is None:
        return Wait(message="an operator has not looked at this job yet: is one running?")
    if status.observed_generation < seen.record.generation:
        return Wait(message="an operator has not looked at the newest spec yet: is one running?")
    if running.status != "True":
        return Wait(message=running.message, until=_until(status, running.message))
    for kind in (ConditionType.STORAGE_REACHABLE, ConditionType.PROGRESSING):
        found = status.find(kind)
        if found and found.status == "False":
            return Wait(message=found.message)
    if disrupted and disrupted.status == "True":
        cause = why_disrupted(status)
        said = disrupted.message.removeprefix(f"{cause.cause}; " if cause else "")
        return Wait(message=said, until=_until(status, said)) if not cause or said != cause.cause else None
    sized = status.find(ConditionType.SIZED)
    if sized and sized.status == "False":
        return Wait(message=sized.message, until=_until(status, sized.message))
    return None


def _until(status: TrainingJobStatus, message: str) -> datetime | None:
    """Which of the times in status the message gives as the end of the wait."""
    return next((one for one in _ends(status) if clock(one) in message), None)


def _ends(status: TrainingJobStatus) -> Iterator[datetime]:
    """The times in status that end a wait."""
    intents = [status.current.intent] if status.current and status.current.intent else []
    intents += [status.previous.intent] if status.previous else []
    for intent in intents:
        yield from (one for one in (intent.ready_by, intent.grow_by) if one)
        if intent.deadline:  # the operator deletes late members a while after their time to save
            yield from (later(intent.deadline, -LATE_MARGIN_SECONDS), intent.deadline)
    if status.gang:
        yield status.gang.until


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
    """The jobs sorted by namespace and name."""
    return sorted(jobs, key=lambda one: one.record.key)
