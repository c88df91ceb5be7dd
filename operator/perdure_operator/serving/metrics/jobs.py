"""Series of the jobs, from nothing but their status and spec: a new leader continues every counter, and a deleted job
has no series. Pure.

Labels are the job's namespace and name, and words of closed sets. What a user or a member wrote is never a label. What
members report only when they end is as old as that report. Used by `exposition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import Takeover, TrainingJobStatus
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.decide import stage_of

_CONDITION_VALUES: Final = {"True": 1.0, "False": 0.0}
"""Others are Unknown: -1."""
_TYPES: Final = frozenset(kind.value for kind in ConditionType)
_REASONS: Final = frozenset(reason.value for reason in Reason)
_TAKEOVERS: Final = {Takeover.LIVE: "live", Takeover.IN_PLACE: "in place", Takeover.RECREATE: "recreate"}


@dataclass(frozen=True)
class Series:
    """One name, its type, what it means, and its label beside namespace and name, if any."""

    name: str
    meaning: str
    label: str = ""
    counter: bool = False

    def family(self) -> Metric:
        """An empty family of it."""
        labels = ["namespace", "name", *([self.label] if self.label else [])]
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.meaning, labels=labels)


SERIES: Final = (
    Series("perdure_job_info", "Always 1; `uid` tells jobs of one name apart.", "uid"),
    Series("perdure_job_unreadable", "1 if this operator cannot parse the job's spec or status; absent otherwise."),
    Series("perdure_job_created_timestamp_seconds", "When the job was created."),
    Series("perdure_job_start_timestamp_seconds", "When members were first wanted since the last suspension."),
    Series("perdure_job_completion_timestamp_seconds", "When the job was Completed."),
    Series("perdure_job_phase", "1 for the job's phase.", "phase"),
    Series("perdure_job_stage", "1 for the stage that the operator decides by.", "stage"),
    Series("perdure_job_condition", "1: True, 0: False, -1: Unknown.", "type"),
    Series("perdure_job_waiting", "1 for the reason of the condition Running while that is not True.", "reason"),
    Series("perdure_job_run", "The newest run number that a plan or an intent used."),
    Series("perdure_job_replicas", "Living members of the current run."),
    Series("perdure_job_replicas_wanted", "spec.replicas."),
    Series("perdure_job_standbys", "Allocated members of the next run and spares."),
    Series("perdure_job_unready_nodes", "Members' nodes that are not Ready."),
    Series("perdure_job_step", "Step of the newest commit that a member reported; members report when they end."),
    Series(
        "perdure_job_steps_lost",
        "Steps that runs had done and their successors did not begin with, as far as known. A gauge: later reports "
        "correct it downwards.",
    ),
    Series("perdure_job_steps_in_doubt", "At most this many more steps may be lost."),
    Series("perdure_job_runs_unreported", "Runs of which no member reported how far they came."),
    Series("perdure_job_failures", "Runs that failed, by what failed.", "cause", counter=True),
    Series(
        "perdure_job_failure_budget_used_ratio",
        "Failures in a row by the number at which the operator gives the job up: 1 is given up.",
        "budget",
    ),
    Series("perdure_job_replacements", "Members of the next run that could not train and were replaced, in a row."),
    Series("perdure_job_takeovers", "Runs that took over from the run before them.", "how", counter=True),
    Series("perdure_job_takeover_pause_seconds", "Pause of training in the newest take-over, as members reported it."),
    Series("perdure_job_exit_seconds", "Seconds that members took to save and leave when last asked."),
    Series(
        "perdure_job_disruption_start_timestamp_seconds",
        "When the first signal came that the current run has to end; absent while nothing asks for it.",
        "disruption",
    ),
    Series(
        "perdure_job_handover_start_timestamp_seconds",
        "When the current run was planned; absent once the leaving members of the run before it have ended.",
    ),
)

Point = tuple[str, str | None, float]
"""A series' name, the value of its label, and the value."""


def families(jobs: Iterable[JobRecord]) -> list[Metric]:
    """The families of all these jobs, in the order of SERIES."""
    found = {one.name: one.family() for one in SERIES}
    for job in jobs:
        key = list(job.key)
        for name, label, value in points(job):
            found[name].add_metric(key if label is None else [*key, label], value)  # type: ignore[attr-defined]
    return list(found.values())


def points(job: JobRecord) -> Iterator[Point]:
    """All points of one job."""
    yield "perdure_job_info", job.uid, 1.0
    if job.created:
        yield "perdure_job_created_timestamp_seconds", None, datetime.fromisoformat(job.created).timestamp()
    if job.spec is None or job.status is None:
        yield "perdure_job_unreadable", None, 1.0
        return
    yield from _life(job.status)
    yield from _members(job.status, job.spec)
    yield from _losses(job.status)
    yield from _failures(job.status, job.spec)
    yield from _moves(job.status)


def _life(status: TrainingJobStatus) -> Iterator[Point]:
    yield "perdure_job_phase", status.phase.value, 1.0
    yield "perdure_job_stage", stage_of(status).value, 1.0
    for condition in status.conditions:
        if condition.type in _TYPES:
            yield "perdure_job_condition", condition.type, _CONDITION_VALUES.get(condition.status, -1.0)
    running = status.find(ConditionType.RUNNING)
    if running is not None and running.status != "True" and running.reason in _REASONS:
        yield "perdure_job_waiting", running.reason, 1.0
    yield "perdure_job_run", None, float(status.run)
    if status.start_time is not None:
        yield "perdure_job_start_timestamp_seconds", None, status.start_time.timestamp()
    if status.completion_time is not None:
        yield "perdure_job_completion_timestamp_seconds", None, status.completion_time.timestamp()


def _members(status: TrainingJobStatus, spec: TrainingJobSpec) -> Iterator[Point]:
    upcoming, spares = status.next, status.spares
    standbys = len(upcoming.members if upcoming else ()) + len(spares.names if spares else ())
    replaced = upcoming.replacements.count if upcoming and upcoming.replacements else 0
    yield "perdure_job_replicas", None, float(status.replicas)
    yield "perdure_job_replicas_wanted", None, float(spec.replicas)
    yield "perdure_job_standbys", None, float(standbys)
    yield "perdure_job_replacements", None, float(replaced)
    yield "perdure_job_unready_nodes", None, float(len({one.node for one in status.unready}))


def _losses(status: TrainingJobStatus) -> Iterator[Point]:
    if status.step is not None:
        yield "perdure_job_step", None, float(status.step)
    yield "perdure_job_steps_lost", None, float(status.steps_lost)
    yield "perdure_job_steps_in_doubt", None, float(status.steps_in_doubt)
    yield "perdure_job_runs_unreported", None, float(status.runs_unreported)


def _failures(status: TrainingJobStatus, spec: TrainingJobSpec) -> Iterator[Point]:
    had, allowed = status.failures, spec.failure
    yield "perdure_job_failures", "code", float(had.code)
    yield "perdure_job_failures", "infrastructure", float(had.infrastructure)
    for budget, used, most in (
        ("code", had.code_in_a_row, allowed.max_code_failures),
        ("infrastructure", had.infrastructure_in_a_row, allowed.max_infrastructure_failures),
        ("out of memory", had.out_of_memory, allowed.max_out_of_memory_failures),
    ):
        yield "perdure_job_failure_budget_used_ratio", budget, used / (most + 1)


def _moves(status: TrainingJobStatus) -> Iterator[Point]:
    earlier = status.earlier_takeovers
    counts = {Takeover.LIVE: earlier.live, Takeover.IN_PLACE: earlier.in_place, Takeover.RECREATE: earlier.recreate}
    for entry in status.history:
        if entry.how in counts:
            counts[entry.how] += 1
    for how, count in counts.items():
        yield "perdure_job_takeovers", _TAKEOVERS[how], float(count)
    if status.history and status.history[-1].pause is not None:
        yield "perdure_job_takeover_pause_seconds", None, status.history[-1].pause
    if status.exit_seconds is not None:
        yield "perdure_job_exit_seconds", None, status.exit_seconds
    current = status.current
    if current is not None and current.intent is not None:
        intent = current.intent
        yield "perdure_job_disruption_start_timestamp_seconds", intent.disruption.value, intent.since.timestamp()
    if current is not None and status.previous is not None and current.plan.assigned_time is not None:
        yield "perdure_job_handover_start_timestamp_seconds", None, current.plan.assigned_time.timestamp()
