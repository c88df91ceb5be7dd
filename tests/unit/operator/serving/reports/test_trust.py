"""Which reports count: those of living members and standbys, about runs that there are, each newer than the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure.wire import ExitKind, Outcome, Role, write_outcome
from perdure.wire.report import Report
from perdure_operator.api.status import NextRun, PreviousRun, TrainingJobStatus
from perdure_operator.cluster.read.records import JobRecord, PodRecord
from perdure_operator.decide.health import trained_runs
from perdure_operator.serving.reports.tokens import ReportingPod
from perdure_operator.serving.reports.trust import refusal, speaks_for_job
from tests.support.reporting import job_of, members, report, sender, trains
from tests.support.stage import Stage


def judged(
    stage: Stage, said: Report, last: Report | None = None, *, by: ReportingPod | None = None, **changed: Any
) -> str:
    pod: PodRecord | None = members(stage.cache)[0]
    job: JobRecord | None = job_of(stage)
    return refusal(by or sender(stage), changed.get("pod", pod), changed.get("job", job), said, last)


def test_a_members_report_counts_and_so_does_the_next_one() -> None:
    stage = trains()
    assert judged(stage, report(1)) == ""
    assert judged(stage, report(2), report(1)) == ""


@pytest.mark.parametrize("sequence", [1, 2])
def test_a_replayed_report_does_not_count(sequence: int) -> None:
    assert judged(trains(), report(sequence), report(2)) == "report 2 of this pod is here already"


def test_a_pod_has_one_agent() -> None:
    assert judged(trains(), report(9, start="ffffffff"), report(2)) == "another agent reports for this pod"


def test_a_run_that_is_not_on_does_not_count_and_a_standbys_report_names_none() -> None:
    stage = trains()
    assert judged(stage, report(run=2)) == "run 2 is not planned, or over for long"
    assert judged(stage, report(run=None, step=None)) == ""


def test_a_run_that_takes_over_counts_beside_the_one_that_is_on() -> None:
    stage = trains()
    status = job_of(stage).status
    assert status is not None
    assert status.current is not None
    plan = status.current.plan.model_copy(update={"run": 2, "members": status.current.plan.members[::-1]})
    both = status.model_copy(update={"next": NextRun(run=2, plan=plan)})
    assert trained_runs(both) == {1, 2}
    assert judged(stage, report(run=2), job=replace(job_of(stage), status=both)) == ""


def test_a_member_that_still_trains_the_run_before_is_heard_and_does_not_speak_for_the_job() -> None:
    stage = trains()
    record = job_of(stage)
    status = record.status
    assert status is not None
    assert status.current is not None
    planned = status.current.model_copy(
        update={"run": 4, "plan": status.current.plan.model_copy(update={"run": 4, "takes_over": 2})}
    )
    moved = status.model_copy(update={"current": planned})
    words = [judged(stage, report(run=run), job=replace(record, status=moved)) for run in range(1, 6)]
    assert [not one for one in words] == [False, True, True, True, False]
    assert [speaks_for_job(sender(stage), report(run=run), moved) for run in range(1, 6)] == [False] * 3 + [True, False]


def test_a_run_that_ends_and_one_that_was_tried_are_heard() -> None:
    stage = trains()
    record = job_of(stage)
    assert record.status is not None
    status = record.status.model_copy(
        update={
            "previous": PreviousRun.model_construct(run=7),
            "next": NextRun(run=9, attempted_runs=(8,)),
        }
    )
    for run in (7, 8):
        assert judged(stage, report(run=run), job=replace(record, status=status)) == ""
        assert not speaks_for_job(sender(stage), report(run=run), status)


def test_only_a_runs_rank_0_speaks_for_its_job() -> None:
    stage = trains()
    status = job_of(stage).status
    assert status is not None
    assert speaks_for_job(sender(stage), report(), status)
    assert not speaks_for_job(sender(stage, rank=1), report(rank=0), status)
    assert not speaks_for_job(sender(stage), report(run=None), status)
    assert not speaks_for_job(sender(stage), report(), TrainingJobStatus())


def view(stage: Stage, **fields: Any) -> PodRecord:
    pod = members(stage.cache)[0]
    return replace(pod, view=pod.view.model_copy(update=fields))


def test_a_pod_that_has_ended_left_or_is_not_the_jobs_does_not_count() -> None:
    stage = trains()
    gone, left = "the token's pod is gone, or not the job's", "the pod has left its job, or ended"
    assert judged(stage, report(), pod=None) == gone
    assert judged(stage, report(), pod=members(stage.cache)[1]) == gone
    assert judged(stage, report(), pod=view(stage, owner_uid="another")) == gone
    assert judged(stage, report(), pod=view(stage, role=Role.FORMER.value)) == left
    assert judged(stage, report(), pod=view(stage, gone=True)) == left
    stage.end_pod(sender(stage).name, write_outcome(Outcome(ExitKind.STOPPED, run=1, rank=0)))
    assert judged(stage, report()) == left


def test_a_job_that_is_gone_or_another_of_its_name_does_not_count() -> None:
    stage = trains()
    assert judged(stage, report(), job=None) == "the token's job is gone"
    assert judged(stage, report(), job=replace(job_of(stage), uid="another")) == "the token's job is gone"
