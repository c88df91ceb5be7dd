"""Status to series. What the tables do not name is tested to be there by its types alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure_operator.api.status import (
    Condition,
    CurrentRun,
    Disruption,
    EarlierTakeovers,
    Failures,
    HistoryEntry,
    Intent,
    PreviousRun,
    RunPlan,
    Takeover,
    TrainingJobStatus,
)
from perdure_operator.cluster.protocol import JOBS
from perdure_operator.cluster.read import records
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.serving.metrics import jobs
from tests.support.full_status import FULL
from tests.support.raw import job

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
Values = dict[tuple[str, str | None], float]


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
        (name.removeprefix("perdure_job_"), label): value for name, label, value in jobs.points(record(status, **spec))
    }


def condition(kind: str, status: str, reason: str) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message="", last_transition_time=NOON)


def took_over(*ways: Takeover) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(run=run, size=2, how=how) for run, how in enumerate(ways, 1))


PLAN = RunPlan(run=2, world=2, master="10.0.0.1:29502", seconds=60, wait=75, members=(), assigned_time=NOON)
INTENT = Intent(disruption=Disruption.NODE_LEAVING, cause="n1 is cordoned", since=NOON)


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
            TrainingJobStatus(current=CurrentRun(run=2, plan=PLAN, intent=INTENT)),
            {("disruption_start_timestamp_seconds", "NodeLeaving"): NOON.timestamp()},
            id="disrupted",
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
        "start_timestamp_seconds",
        "completion_timestamp_seconds",
        "takeover_pause_seconds",
        "exit_seconds",
        "disruption_start_timestamp_seconds",
        "handover_start_timestamp_seconds",
        "unreadable",
    }
    assert not {name for name, _ in values()} & absent


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
    assert {one.name for one in jobs.SERIES if one.counter} == {"perdure_job_failures", "perdure_job_takeovers"}


def test_labels_are_the_jobs_name_and_words_of_closed_sets() -> None:
    found = [sample for family in jobs.families([record(FULL)]) for sample in family.samples]
    assert {sample.labels["name"] for sample in found} == {"digits"}
    assert {label for sample in found for label in sample.labels} == {
        *("namespace", "name", "uid", "phase", "stage", "type", "reason", "cause", "budget", "how", "disruption")
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
