"""Series of the jobs, from nothing but their status and spec: a new leader continues every counter, and a deleted job
has no series. Pure.

Labels are the job's namespace and name, and words of closed sets. What a user or a member wrote is never a label. What
members report is as old as that report, and some of it they report only when they end. Used by `exposition`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import (
    PAUSE_SECONDS,
    Disruption,
    EarlierDisruption,
    HistoryEntry,
    NextRun,
    PauseCounts,
    Takeover,
    TimeAccount,
    TrainingJobStatus,
)
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.decide import stage_of
from perdure_operator.decide.accounting import badput, goodput, ratio, undecided
from perdure_operator.decide.facts import waits_for_room
from perdure_operator.decide.history import COUNTED_WAYS

_CONDITION_VALUES: Final = {"True": 1.0, "False": 0.0}
"""Others are Unknown: -1."""
_TYPES: Final = frozenset(kind.value for kind in ConditionType)
_REASONS: Final = frozenset(reason.value for reason in Reason)
_TAKEOVERS: Final = {Takeover.LIVE: "live", Takeover.IN_PLACE: "in place", Takeover.RECREATE: "recreate"}


class SeriesKind(StrEnum):
    """Prometheus' types of series."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


_FAMILIES: Final[Mapping[SeriesKind, Callable[..., Metric]]] = {
    SeriesKind.GAUGE: GaugeMetricFamily,
    SeriesKind.COUNTER: CounterMetricFamily,
    SeriesKind.HISTOGRAM: HistogramMetricFamily,
}


@dataclass(frozen=True)
class Series:
    """One name, its type, what it means, and its labels beside namespace and name."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    kind: SeriesKind = SeriesKind.GAUGE

    def family(self) -> Metric:
        """An empty family of it."""
        return _FAMILIES[self.kind](self.name, self.meaning, labels=["namespace", "name", *self.labels])


SERIES: Final = (
    Series("perdure_job_info", "Always 1; `uid` tells jobs of one name apart.", ("uid",)),
    Series("perdure_job_unreadable", "1 if this operator cannot parse the job's spec or status; absent otherwise."),
    Series("perdure_job_created_timestamp_seconds", "When the job was created."),
    Series("perdure_job_start_timestamp_seconds", "When members were first wanted since the last suspension."),
    Series("perdure_job_completion_timestamp_seconds", "When the job was Completed."),
    Series("perdure_job_phase", "1 for the job's phase.", ("phase",)),
    Series("perdure_job_stage", "1 for the stage that the operator decides by.", ("stage",)),
    Series("perdure_job_condition", "1: True, 0: False, -1: Unknown.", ("type",)),
    Series("perdure_job_waiting", "1 for the reason of the condition Running while that is not True.", ("reason",)),
    Series("perdure_job_run", "The newest run number that a plan or an intent used."),
    Series(
        "perdure_job_replicas",
        "Living members of the current run; of a job that is over, those whose pods still run.",
    ),
    Series("perdure_job_replicas_wanted", "spec.replicas."),
    Series("perdure_job_standbys", "Allocated members of the next run and spares."),
    Series(
        "perdure_job_scaling_replicas",
        "Members that the operator gives the job of its pool; absent unless it shares one by goodput.",
    ),
    Series(
        "perdure_job_scaling_speedup",
        "How much faster than one process so many members are expected to train; absent before that is known.",
    ),
    Series("perdure_job_unready_nodes", "Members' nodes that are not Ready."),
    Series(
        "perdure_job_step",
        "Optimizer steps done, as rank 0 reports while it trains; without reports, the step of the newest commit that "
        "a member reported when it ended.",
    ),
    Series(
        "perdure_job_last_commit_timestamp_seconds",
        "When rank 0 learned of its newest commit; absent without reports, and while no run is on.",
    ),
    Series("perdure_job_steps_at_risk", "Steps since the newest commit that rank 0 reports; absent without reports."),
    Series(
        "perdure_job_required_grace_seconds",
        "An estimate of what a save takes that begins now, by what the newest one took; absent before that.",
    ),
    Series(
        "perdure_job_save_duration_seconds", "How long the newest save took, until it was in the log; absent before it."
    ),
    Series("perdure_job_save_stall_seconds", "How long the newest periodic save stopped training."),
    Series(
        "perdure_job_restore_duration_seconds",
        "How long the newest run restored the commit that it began with; absent before it gave account, and after a "
        "live take-over.",
    ),
    Series("perdure_job_samples_per_second", "Samples per second of all ranks together; absent if none are reported."),
    Series("perdure_job_batch_samples", "Samples in a step, where the session chooses them; absent otherwise."),
    Series(
        "perdure_job_statistical_efficiency_ratio",
        "What a sample of such a step wins, beside one in a step of the script's own batch; absent before it is known.",
    ),
    Series(
        "perdure_job_goodput_samples_per_second",
        "perdure_job_samples_per_second times perdure_job_statistical_efficiency_ratio.",
    ),
    Series("perdure_job_progress_ratio", "How much of the training is done; absent where its end is not known."),
    Series(
        "perdure_job_remaining_seconds", "An estimate of the seconds to the end of the training, where it is known."
    ),
    Series(
        "perdure_job_steps_lost",
        "Steps that runs had done and their successors did not begin with, as far as known. A gauge: later reports "
        "correct it downwards.",
    ),
    Series("perdure_job_steps_in_doubt", "At most this many more steps may be lost."),
    Series("perdure_job_runs_unreported", "Runs of which no member reported how far they came."),
    Series("perdure_job_failures", "Runs that failed, by what failed.", ("cause",), SeriesKind.COUNTER),
    Series(
        "perdure_job_failure_budget_used_ratio",
        "Failures in a row by the number at which the operator gives the job up: 1 is given up.",
        ("budget",),
    ),
    Series(
        "perdure_job_goodput_seconds",
        "Seconds of steps that are in a commit, or that a later run has begun with.",
        kind=SeriesKind.COUNTER,
    ),
    Series("perdure_job_badput_seconds", "All other seconds, by cause.", ("cause",), SeriesKind.COUNTER),
    Series(
        "perdure_job_undecided_seconds",
        "Seconds of finished steps that are in no commit yet, and of the step that is being made.",
    ),
    Series("perdure_job_goodput_ratio", "Seconds of goodput by all seconds, over the job's life."),
    Series("perdure_job_replacements", "Members of the next run that could not train and were replaced, in a row."),
    Series("perdure_job_takeovers", "Runs that took over from the run before them.", ("how",), SeriesKind.COUNTER),
    Series(
        "perdure_job_disruptions",
        "Runs that ended before their work was done and had a successor, by why, and by how that took over.",
        ("disruption", "how"),
        SeriesKind.COUNTER,
    ),
    Series(
        "perdure_job_disruption_steps_lost",
        "Of perdure_job_steps_lost, those of runs that ended for this disruption.",
        ("disruption",),
    ),
    Series(
        "perdure_job_pause_seconds",
        "Pauses of training: live, as members reported them; restart, before runs that began with new processes, as "
        "far as the time before they trained is accounted for.",
        ("kind",),
        SeriesKind.HISTOGRAM,
    ),
    Series("perdure_job_takeover_pause_seconds", "Pause of training in the newest take-over, as members reported it."),
    Series("perdure_job_exit_seconds", "Seconds that members took to save and leave when last asked."),
    Series(
        "perdure_job_disruption_start_timestamp_seconds",
        "When the first signal of this disruption came; absent while the current run need not end, and while its "
        "members move only if there is room.",
        ("disruption",),
    ),
    Series(
        "perdure_job_handover_start_timestamp_seconds",
        "When the current run was planned; absent once the leaving members of the run before it have ended.",
    ),
)

Point = tuple[str, str | tuple[str, ...] | None, float | PauseCounts]
"""A series' name, the value of its label, or the values of its labels, and its own value."""


def families(jobs: Iterable[JobRecord]) -> list[Metric]:
    """The families of all these jobs, in the order of SERIES."""
    found = {one.name: one.family() for one in SERIES}
    for job in jobs:
        for name, label, value in points(job):
            more = (label,) if isinstance(label, str) else label or ()
            _add(found[name], [*job.key, *more], value)
    return list(found.values())


def _add(family: Metric, labels: list[str], value: float | PauseCounts) -> None:
    if isinstance(family, HistogramMetricFamily) and isinstance(value, PauseCounts):
        counts = accumulate([*value.counts, *[0] * (len(PAUSE_SECONDS) + 1)][: len(PAUSE_SECONDS) + 1])
        buckets = list(zip([*map(str, PAUSE_SECONDS), "+Inf"], counts, strict=True))
        family.add_metric(labels, buckets, sum_value=value.seconds)
    else:
        family.add_metric(labels, value)  # type: ignore[attr-defined]


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
    yield from _progress(job.status)
    yield from _losses(job.status)
    yield from _failures(job.status, job.spec)
    yield from _moves(job.status)
    if job.status.time_account is not None:
        yield from _time(job.status.time_account)


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
    if given := status.scaling:
        yield "perdure_job_scaling_replicas", None, float(given.size)
        if given.speedup is not None:
            yield "perdure_job_scaling_speedup", None, given.speedup


def _progress(status: TrainingJobStatus) -> Iterator[Point]:
    progress, save = status.progress, status.last_save
    step = progress.step if progress is not None else status.step  # as kubectl's column STEP
    if step is not None:
        yield "perdure_job_step", None, float(step)
    if save is not None:
        yield "perdure_job_last_commit_timestamp_seconds", None, save.time.timestamp()
    if progress is None:
        return
    if save is not None:
        yield "perdure_job_steps_at_risk", None, float(max(0, progress.step - save.step))
    rate, percent = progress.samples_per_second, progress.efficiency_percent
    reported = {
        "perdure_job_required_grace_seconds": progress.required_grace_seconds,
        "perdure_job_save_duration_seconds": progress.save_seconds,
        "perdure_job_save_stall_seconds": progress.save_stall_seconds,
        "perdure_job_samples_per_second": rate,
        "perdure_job_batch_samples": progress.batch,
        "perdure_job_statistical_efficiency_ratio": None if percent is None else percent / 100,
        "perdure_job_goodput_samples_per_second": None if rate is None or percent is None else rate * percent / 100,
        "perdure_job_progress_ratio": None if progress.percent is None else progress.percent / 100,
        "perdure_job_remaining_seconds": progress.remaining_seconds,
    }
    for name, value in reported.items():
        if value is not None:
            yield name, None, float(value)


def _losses(status: TrainingJobStatus) -> Iterator[Point]:
    yield "perdure_job_steps_lost", None, float(status.steps_lost)
    yield "perdure_job_steps_in_doubt", None, float(status.steps_in_doubt)
    yield "perdure_job_runs_unreported", None, float(status.runs_unreported)
    lost: Counter[Disruption] = Counter()
    ended: list[EarlierDisruption | HistoryEntry | NextRun] = [*status.earlier_disruptions, *status.history]
    if status.next is not None:
        ended.append(status.next)
    for one in ended:
        if one.disruption is not None:
            lost[one.disruption] += one.steps_lost
    for disruption, steps in lost.items():
        yield "perdure_job_disruption_steps_lost", disruption.value, float(steps)


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


def _time(account: TimeAccount) -> Iterator[Point]:
    if account.open is not None:
        yield "perdure_job_goodput_seconds", None, goodput(account)
        if account.open.restore:
            yield "perdure_job_restore_duration_seconds", None, account.open.restore
    for cause, seconds in badput(account).items():
        yield "perdure_job_badput_seconds", cause, seconds
    yield "perdure_job_undecided_seconds", None, undecided(account)
    if account.open is not None and (part := ratio(account)) is not None:
        yield "perdure_job_goodput_ratio", None, part


def _moves(status: TrainingJobStatus) -> Iterator[Point]:
    earlier = status.earlier_takeovers
    counts = Counter({how: getattr(earlier, field) for how, field in COUNTED_WAYS.items()})
    counts.update(entry.how for entry in status.history)
    for how, word in _TAKEOVERS.items():
        yield "perdure_job_takeovers", word, float(counts[how])
    yield from _disruptions(status)
    restarts = status.time_account.restarts if status.time_account else PauseCounts()
    for kind, pauses in (("live", status.pauses), ("restart", restarts)):
        if pauses.counts:
            yield "perdure_job_pause_seconds", kind, pauses
    if status.history and status.history[-1].pause is not None:
        yield "perdure_job_takeover_pause_seconds", None, status.history[-1].pause
    if status.exit_seconds is not None:
        yield "perdure_job_exit_seconds", None, status.exit_seconds
    current = status.current
    intent = current.intent if current else None
    if intent is not None and not waits_for_room(intent):
        yield "perdure_job_disruption_start_timestamp_seconds", intent.disruption.value, intent.since.timestamp()
    if current is not None and status.previous is not None and current.plan.assigned_time is not None:
        yield "perdure_job_handover_start_timestamp_seconds", None, current.plan.assigned_time.timestamp()


def _disruptions(status: TrainingJobStatus) -> Iterator[Point]:
    counts = Counter((one.disruption, one.how) for one in status.history if one.disruption is not None)
    for earlier in status.earlier_disruptions:
        counts.update({(earlier.disruption, how): getattr(earlier, field) for how, field in COUNTED_WAYS.items()})
    for (disruption, how), count in counts.items():
        if how in _TAKEOVERS:
            yield "perdure_job_disruptions", (disruption.value, _TAKEOVERS[how]), float(count)
