"""Status to series. What the tables do not name is tested to be there by its types alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure_operator.api.status import (
    PAUSE_SECONDS,
    Condition,
    CurrentRun,
    Disruption,
    EarlierDisruption,
    EarlierTakeovers,
    Failures,
    HistoryEntry,
    Intent,
    LastSave,
    NextRun,
    OpenAccount,
    PauseCounts,
    PreviousRun,
    RunPlan,
    Scaling,
    SecondsSpent,
    Takeover,
    TimeAccount,
    TrainingJobStatus,
    TrainingProgress,
)
from perdure_operator.cluster.protocol import JOBS
from perdure_operator.cluster.read import records
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.serving.metrics import jobs
from perdure_operator.serving.metrics.jobs import SeriesKind
from tests.support.full_status import FULL
from tests.support.raw import job

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
Values = dict[tuple[str, str | tuple[str, ...] | None], float]


def record(status: TrainingJobStatus | dict[str, Any] | None = None, **spec: Any) -> JobRecord:
    raw = job(**spec)
    raw["metadata"] |= {"uid": "u1", "resourceVersion": "7", "creationTimestamp": "2026-11-21T12:00:00Z"}
    if isinstance(status, TrainingJobStatus):
        status = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["status"] = status or {}
    read = records.read(JOBS, raw)
    assert isinstance(read, JobRecord)
    return read


def values(status: TrainingJobStatus | dict[str, Any] | None = None, **spec: Any) -> Values:
    return {
        (name.removeprefix("perdure_job_"), label): value
        for name, label, value in jobs.points(record(status, **spec))
        if isinstance(value, float)
    }


def condition(kind: str, status: str, reason: str) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message="", last_transition_time=NOON)


def took_over(*ways: Takeover) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(run=run, size=2, how=how) for run, how in enumerate(ways, 1))


def ended(disruption: Disruption, how: Takeover, *, steps_lost: int = 0) -> HistoryEntry:
    return HistoryEntry(run=1, size=2, disruption=disruption, how=how, steps_lost=steps_lost)


PLAN = RunPlan(run=2, world=2, master="10.0.0.1:29502", seconds=60, wait=75, members=(), assigned_time=NOON)
INTENT = Intent(disruption=Disruption.NODE_LEAVING, cause="n1 is cordoned", since=NOON)
ORDER = INTENT.model_copy(update={"prepare": True, "ready_by": NOON + timedelta(minutes=10)})
WISH = INTENT.model_copy(update={"prepare": True})
REPORTED = TrainingProgress(
    run=2,
    step=4510,
    samples_per_second=96.5,
    percent=40,
    remaining_seconds=600,
    required_grace_seconds=12,
    save_stall_seconds=0.25,
    save_seconds=11.5,
    batch=512,
    efficiency_percent=80,
    observed_at=NOON,
)
SAVED = LastSave(step=4500, time=NOON, observed_at=NOON)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(
            TrainingJobStatus(), {("phase", "Pending"): 1, ("stage", "between"): 1, ("run", None): 0}, id="new"
        ),
        pytest.param(
            TrainingJobStatus(conditions=(condition("Running", "True", "Assigned"),)),
            {("condition", "Running"): 1},
            id="running",
        ),
        pytest.param(
            TrainingJobStatus(conditions=(condition("Running", "False", "StorageRefused"),)),
            {("condition", "Running"): 0, ("waiting", "StorageRefused"): 1},
            id="waiting",
        ),
        pytest.param(
            TrainingJobStatus(conditions=(condition("Running", "Unknown", "NodeLeaving"),)),
            {("condition", "Running"): -1, ("waiting", "NodeLeaving"): 1},
            id="unknown",
        ),
        pytest.param(
            TrainingJobStatus(step=7, steps_lost=3, steps_in_doubt=2, runs_unreported=1),
            {("step", None): 7, ("steps_lost", None): 3, ("steps_in_doubt", None): 2, ("runs_unreported", None): 1},
            id="losses",
        ),
        pytest.param(
            TrainingJobStatus(step=450, progress=REPORTED, last_save=SAVED),
            {
                ("step", None): 4510,
                ("last_commit_timestamp_seconds", None): NOON.timestamp(),
                ("samples_per_second", None): 96.5,
                ("progress_ratio", None): 0.4,
                ("remaining_seconds", None): 600,
                ("steps_at_risk", None): 10,
                ("required_grace_seconds", None): 12,
                ("save_stall_seconds", None): 0.25,
                ("save_duration_seconds", None): 11.5,
                ("batch_samples", None): 512,
                ("statistical_efficiency_ratio", None): 0.8,
                ("goodput_samples_per_second", None): 77.2,
            },
            id="what rank 0 reports is newer than what members said at their end",
        ),
        pytest.param(
            TrainingJobStatus(
                time_account=TimeAccount(
                    spent=SecondsSpent(productive=70.0, nodes=20.0, handover=0.5, unreported=4.5),
                    open=OpenAccount(run=2, restore=1.5, unfinished=5.0, unsaved=10.0),
                )
            ),
            {
                ("restore_duration_seconds", None): 1.5,
                ("goodput_seconds", None): 60.0,
                ("badput_seconds", "nodes"): 20.0,
                ("badput_seconds", "hand-over"): 0.5,
                ("badput_seconds", "unreported"): 4.5,
                ("badput_seconds", "redone"): 0.0,
                ("undecided_seconds", None): 15.0,
                ("goodput_ratio", None): 0.6,
            },
            id="time",
        ),
        pytest.param(
            TrainingJobStatus(failures=Failures(code=5, infrastructure=2, code_in_a_row=3, out_of_memory=1)),
            {
                ("failures", "code"): 5,
                ("failures", "infrastructure"): 2,
                ("failure_budget_used_ratio", "code"): 0.75,
                ("failure_budget_used_ratio", "infrastructure"): 0,
                ("failure_budget_used_ratio", "out of memory"): 0.25,
            },
            id="failures",
        ),
        pytest.param(
            TrainingJobStatus(
                earlier_takeovers=EarlierTakeovers(live=4, in_place=2, recreate=1),
                history=took_over(Takeover.START, Takeover.LIVE, Takeover.LIVE, Takeover.UNKNOWN, Takeover.NEVER),
            ),
            {("takeovers", "live"): 6, ("takeovers", "in place"): 2, ("takeovers", "recreate"): 1},
            id="take-overs go on behind a truncated history, and what is not known counts nowhere",
        ),
        pytest.param(
            TrainingJobStatus(
                earlier_disruptions=(
                    EarlierDisruption(disruption=Disruption.NODE_LEAVING, live=4),
                    EarlierDisruption(disruption=Disruption.MEMBER_LOST, recreate=1, steps_lost=30),
                ),
                history=(
                    ended(Disruption.NODE_LEAVING, Takeover.LIVE),
                    ended(Disruption.NODE_LEAVING, Takeover.UNKNOWN),
                    ended(Disruption.MEMBER_LOST, Takeover.IN_PLACE, steps_lost=4),
                    ended(Disruption.SUSPEND, Takeover.START),
                    *took_over(Takeover.LIVE),
                ),
                next=NextRun(run=9, disruption=Disruption.NODE_FAULT, steps_lost=2),
            ),
            {
                ("disruptions", ("NodeLeaving", "live")): 5,
                ("disruptions", ("MemberLost", "in place")): 1,
                ("disruptions", ("MemberLost", "recreate")): 1,
                ("disruption_steps_lost", "NodeLeaving"): 0,
                ("disruption_steps_lost", "MemberLost"): 34,
                ("disruption_steps_lost", "NodeFault"): 2,
            },
            id="disruptions go on behind a truncated history, too",
        ),
        pytest.param(
            TrainingJobStatus(scaling=Scaling(size=3, speedup=2.5, since=NOON)),
            {("scaling_replicas", None): 3, ("scaling_speedup", None): 2.5},
            id="a share of a pool",
        ),
        pytest.param(
            TrainingJobStatus(current=CurrentRun(run=2, plan=PLAN, intent=INTENT)),
            {("disruption_start_timestamp_seconds", "NodeLeaving"): NOON.timestamp()},
            id="disrupted",
        ),
        pytest.param(
            TrainingJobStatus(current=CurrentRun(run=2, plan=PLAN, intent=ORDER)),
            {("disruption_start_timestamp_seconds", "NodeLeaving"): NOON.timestamp()},
            id="replacements start, and members have to leave",
        ),
        pytest.param(
            TrainingJobStatus(current=CurrentRun(run=2, plan=PLAN), previous=PreviousRun(run=1, intent=INTENT)),
            {("handover_start_timestamp_seconds", None): NOON.timestamp()},
            id="leavers have not ended",
        ),
        pytest.param(
            TrainingJobStatus(completion_time=NOON), {("completion_timestamp_seconds", None): NOON.timestamp()}
        ),
    ],
)
def test_status_becomes_series(status: TrainingJobStatus, expected: Values) -> None:
    assert values(status).items() >= expected.items()


def test_what_is_not_known_has_no_series() -> None:
    absent = {
        "waiting",
        "step",
        "last_commit_timestamp_seconds",
        "samples_per_second",
        "progress_ratio",
        "remaining_seconds",
        "steps_at_risk",
        "required_grace_seconds",
        "save_stall_seconds",
        "save_duration_seconds",
        "restore_duration_seconds",
        "batch_samples",
        "statistical_efficiency_ratio",
        "goodput_samples_per_second",
        "scaling_replicas",
        "scaling_speedup",
        "goodput_seconds",
        "badput_seconds",
        "undecided_seconds",
        "goodput_ratio",
        "start_timestamp_seconds",
        "completion_timestamp_seconds",
        "takeover_pause_seconds",
        "exit_seconds",
        "disruption_start_timestamp_seconds",
        "handover_start_timestamp_seconds",
        "unreadable",
    }
    assert not {name for name, _ in values()} & absent


def test_a_job_whose_time_nobody_has_told_has_no_goodput_and_no_ratio() -> None:
    account = TimeAccount(spent=SecondsSpent(members=9.0, unreported=600.0))
    shown = values(TrainingJobStatus(time_account=account))
    assert {("goodput_seconds", None), ("goodput_ratio", None)} & shown.keys() == set()
    assert (shown["badput_seconds", "members"], shown["badput_seconds", "unreported"]) == (9.0, 600.0)


def test_a_run_that_has_restored_nothing_has_no_duration_of_it() -> None:
    assert ("restore_duration_seconds", None) not in values(
        TrainingJobStatus(time_account=TimeAccount(open=OpenAccount(run=3)))
    )


def test_a_report_without_numbers_shows_its_step_alone() -> None:
    bare = TrainingProgress(run=2, step=0, observed_at=NOON)
    extra = set(values(TrainingJobStatus(progress=bare))) - set(values(TrainingJobStatus()))
    assert extra == {("step", None)}


def test_members_that_move_only_if_there_is_room_disturb_no_drain() -> None:
    wished = values(TrainingJobStatus(current=CurrentRun(run=2, plan=PLAN, intent=WISH)))
    assert ("disruption_start_timestamp_seconds", "NodeLeaving") not in wished


def test_a_limit_of_zero_is_used_up_by_the_first_failure() -> None:
    failed = TrainingJobStatus(failures=Failures(code_in_a_row=1))
    assert values(failed, failure={"maxCodeFailures": 0})["failure_budget_used_ratio", "code"] == 1


def test_a_job_that_cannot_be_parsed_is_counted_as_such_and_says_nothing_else() -> None:
    assert set(values({"conditions": 7})) == {("info", "u1"), ("created_timestamp_seconds", None), ("unreadable", None)}


def test_words_of_a_newer_operator_become_no_labels() -> None:
    newer = {
        "phase": "Dancing",
        "conditions": [
            {
                "type": "Mood",
                "status": "True",
                "reason": "Good",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            },
            {
                "type": "Running",
                "status": "No",
                "reason": "Mood",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            },
        ],
    }
    labels = {label for _, label in values(newer)}
    assert not labels & {"Dancing", "Mood", "Good"}


def test_every_series_is_described_once_and_every_point_belongs_to_one() -> None:
    names = [one.name for one in jobs.SERIES]
    assert len(set(names)) == len(names)
    assert {name for name, _, _ in jobs.points(record(FULL))} | {"perdure_job_unreadable"} == set(names)


def test_only_what_never_falls_is_a_counter() -> None:
    """Prometheus takes a counter that falls for one that began again, and counts all of it once more."""
    assert {one.name for one in jobs.SERIES if one.kind is not SeriesKind.GAUGE} == {
        *("perdure_job_failures", "perdure_job_takeovers", "perdure_job_goodput_seconds", "perdure_job_badput_seconds"),
        *("perdure_job_disruptions", "perdure_job_pause_seconds"),
    }


def test_labels_are_the_jobs_name_and_words_of_closed_sets() -> None:
    found = [sample for family in jobs.families([record(FULL)]) for sample in family.samples]
    assert {sample.labels["name"] for sample in found} == {"digits"}
    assert {label for sample in found for label in sample.labels} == {
        *(
            "namespace",
            "name",
            "uid",
            "phase",
            "stage",
            "type",
            "reason",
            "cause",
            "budget",
            "how",
            "disruption",
            "kind",
            "le",
        )
    }
    written = {"n2 is cordoned", "digits-3f2a-2", "n2"}
    assert not {value for sample in found for value in sample.labels.values()} & written


def test_a_deleted_job_has_no_series() -> None:
    assert not [sample for family in jobs.families([]) for sample in family.samples]


def test_times_are_those_of_status() -> None:
    later = NOON + timedelta(seconds=90)
    found = values(TrainingJobStatus(start_time=later, exit_seconds=12.5))
    assert found["start_timestamp_seconds", None] == later.timestamp()
    assert found["created_timestamp_seconds", None] == NOON.timestamp()
    assert found["exit_seconds", None] == 12.5


def test_pauses_are_a_histogram_of_all_runs_live_and_with_new_processes_apart() -> None:
    live = PauseCounts(counts=(3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2), seconds=2000.25)
    account = TimeAccount(restarts=PauseCounts(counts=(0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1), seconds=165.5))
    counted = record(TrainingJobStatus(pauses=live, time_account=account))
    (family,) = [one for one in jobs.families([counted]) if one.name == "perdure_job_pause_seconds"]
    found = {
        (sample.labels["kind"], sample.name.removeprefix(family.name), sample.labels.get("le")): sample.value
        for sample in family.samples
    }
    assert found["live", "_bucket", "0.05"] == found["live", "_bucket", "0.1"] == 3
    assert found["live", "_bucket", "0.2"] == found["live", "_bucket", "900.0"] == 4
    assert found["live", "_bucket", "+Inf"] == found["live", "_count", None] == 6
    assert found["live", "_sum", None] == 2000.25
    assert found["restart", "_bucket", "10.0"] == 0
    assert found["restart", "_bucket", "30.0"] == found["restart", "_bucket", "60.0"] == 4
    assert found["restart", "_bucket", "120.0"] == found["restart", "_count", None] == 5
    assert found["restart", "_sum", None] == 165.5


def test_a_job_that_has_not_paused_has_no_histogram() -> None:
    shown = {name for name, _, _ in jobs.points(record(TrainingJobStatus(time_account=TimeAccount())))}
    assert "perdure_job_pause_seconds" not in shown


@pytest.mark.parametrize("counts", [(1,), (1,) * 30], ids=["fewer", "more"])
def test_counts_that_somebody_edited_are_a_histogram_all_the_same(counts: tuple[int, ...]) -> None:
    edited = record(TrainingJobStatus(pauses=PauseCounts(counts=counts)))
    (family,) = [one for one in jobs.families([edited]) if one.name == "perdure_job_pause_seconds"]
    assert len([sample for sample in family.samples if sample.name.endswith("_bucket")]) == len(PAUSE_SECONDS) + 1
