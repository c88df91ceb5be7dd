"""One report for each living pod, and a period by which all of them stay bearable."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure.agent.sender import JITTER_SECONDS, RETRY_SECONDS, SendLimits
from perdure.wire.report import TrainerPhase
from perdure.wire.scaling import ScalingHints
from perdure_operator.api.status import HistoryEntry
from perdure_operator.cluster.protocol import PODS
from perdure_operator.decide.health import SILENT
from perdure_operator.serving.reports.heard import OTHER_SECONDS, SPEAKER_SECONDS, STAND_IN, Received, ReportBoard
from perdure_operator.serving.reports.tokens import ReportingPod
from tests.support.hints import HINTS
from tests.support.raw import NOW
from tests.support.reporting import job_of, report, sender, trains
from tests.support.stage import Stage


def received(sent_by: ReportingPod, *, speaks: bool = True, after: float = 0.0, **fields: Any) -> Received:
    return Received(sent_by, report(**fields), speaks, NOW + timedelta(seconds=after))


def of(number: int, job: int = 0) -> ReportingPod:
    return ReportingPod(("ns", f"job-{job}"), f"job-uid-{job}", f"pod-{number}", f"uid-{number}")


def test_the_newest_report_of_a_pod_replaces_the_one_before() -> None:
    heard = ReportBoard()
    for sequence in (1, 2):
        heard.take(received(of(0), sequence=sequence))
    assert heard.last("uid-0") == report(2)
    assert heard.last("uid-1") is None


def test_a_step_is_as_old_as_the_first_report_of_it_in_its_run() -> None:
    heard, at = ReportBoard(), list[datetime | None]()
    for after, run, step in ((0, 1, 4), (5, 1, 4), (10, 1, 4), (15, 1, 5), (20, 2, 5), (25, 2, 5)):
        heard.take(received(of(0), after=after, run=run, step=step))
        (newest,) = heard.of_jobs(NOW)
        at.append(newest.step_at)
    assert at == [None, NOW, NOW, None, None, NOW + timedelta(seconds=20)]


def test_a_phase_is_as_old_as_the_first_report_of_it_after_another() -> None:
    heard, at = ReportBoard(), list[datetime | None]()
    trains, saves = TrainerPhase.TRAINING, TrainerPhase.SAVING
    for after, run, phase in ((0, 1, trains), (5, 1, trains), (10, 1, saves), (15, 1, saves), (20, 2, saves)):
        heard.take(received(of(0), after=after, run=run, phase=phase))
        (newest,) = heard.of_jobs(NOW)
        at.append(newest.phase_at)
    assert at == [None, NOW, None, NOW + timedelta(seconds=10), None]


def test_a_hang_is_as_old_as_the_first_report_of_it() -> None:
    heard, at = ReportBoard(), list[datetime | None]()
    for after, since in ((0, None), (5, 7.0), (10, 7.0), (15, 8.0), (20, None), (25, None), (30, 9.0), (35, 9.0)):
        heard.take(received(of(0), after=after, hangs_since=since))
        (newest,) = heard.of_run("job-uid-0", 1)
        at.append(newest.hangs_at if newest.report.hangs_since else None)
    first, second = NOW + timedelta(seconds=5), NOW + timedelta(seconds=30)
    assert at == [None, None, first, first, None, None, None, second]


def test_the_reports_of_a_run_are_those_of_its_jobs_pods_about_it() -> None:
    heard = ReportBoard()
    heard.take(received(of(0)))
    heard.take(received(of(1), speaks=False))
    heard.take(received(of(2), run=2))
    heard.take(received(of(3, job=1)))
    assert sorted(one.sender.name for one in heard.of_run("job-uid-0", 1)) == ["pod-0", "pod-1"]
    assert heard.of_run("job-uid-9", 1) == []


def test_a_report_without_a_step_hides_no_other_of_its_job() -> None:
    heard = ReportBoard()
    heard.take(received(of(0), after=1))
    heard.take(received(of(1), after=2, step=None))
    assert [one.sender.name for one in heard.of_jobs(NOW)] == ["pod-0"]


def test_the_newest_report_of_those_that_speak_for_a_job_is_its_own() -> None:
    heard = ReportBoard()
    heard.take(received(of(0, job=1), after=9))
    heard.take(received(of(1, job=2), after=3))
    heard.take(received(of(2, job=1), after=5))
    heard.take(received(of(3, job=3), after=1, speaks=False))
    assert [one.sender.name for one in heard.of_jobs(NOW)] == ["pod-1", "pod-0"]
    heard.take(received(of(0, job=1), after=10, speaks=False))
    assert [one.sender.name for one in heard.of_jobs(NOW)] == ["pod-1", "pod-2"]


def test_another_member_stands_in_for_a_silent_one_once_it_was_heard_for_as_long() -> None:
    late = STAND_IN.total_seconds()

    def counts(after: float, *, spoke: float | None, began: dict[int, float], **fields: Any) -> str:
        """Who counts so long after the first of these reports; `began`: when each of the others was first heard."""
        heard = ReportBoard()
        if spoke is not None:
            heard.take(received(of(0), after=spoke, rank=0))
        for number, first in began.items():
            for at in (first, after):
                heard.take(received(of(number), after=at, speaks=False, rank=number, **fields))
        found = heard.of_jobs(NOW + timedelta(seconds=after))
        return found[0].sender.name if found else ""

    both = {2: 0.0, 1: 0.0}
    assert counts(late - 1, spoke=0, began=both) == "pod-0"
    assert counts(late, spoke=0, began=both) == "pod-1"
    assert counts(late, spoke=1, began=both) == "pod-0"
    assert counts(late, spoke=0, began={2: 0.0, 1: 1.0}) == "pod-2"
    assert counts(late, spoke=0, began=both, step=None) == "pod-0"
    assert counts(late - 1, spoke=None, began=both) == "", "a new leader may not have heard it yet"
    assert counts(late, spoke=None, began=both) == "pod-1"


def test_one_report_that_gets_lost_makes_nobody_stand_in_however_seldom_a_pod_reports() -> None:
    """The next one comes after the period, the limits of the request that failed, and a retry with its jitter."""
    limits, heard, jobs = SendLimits(), ReportBoard(), 600
    for number in range(jobs):
        period = heard.take(received(of(number, job=number), rank=0))
    lost = period + limits.connect + limits.request + RETRY_SECONDS + JITTER_SECONDS
    assert lost > STAND_IN.total_seconds()
    first, last = of(jobs, job=0), of(jobs + 1, job=jobs - 1)
    for after in (0.0, lost):
        for other in (first, last):
            heard.take(received(other, after=after, speaks=False, rank=1))

    def stand_in(after: float) -> list[ReportingPod]:
        return [one.sender for one in heard.of_jobs(NOW + timedelta(seconds=after)) if not one.speaks]

    assert stand_in(lost) == [first], "its rank 0 was asked to report often"
    assert stand_in(lost + 5) == [first, last]


def test_nobody_stands_in_for_a_pod_that_reports_before_it_has_a_step() -> None:
    """It imports, or restores for longer than others."""
    heard, late = ReportBoard(), STAND_IN.total_seconds()
    for after in (0.0, late):
        heard.take(received(of(0), after=after, rank=0, step=None))
        heard.take(received(of(1), after=after, speaks=False, rank=1))
    assert heard.of_jobs(NOW + STAND_IN) == []
    assert [one.sender.name for one in heard.of_jobs(NOW + 2 * STAND_IN)] == ["pod-1"]


def test_a_next_run_that_has_no_step_yet_hides_nobody_that_stands_in_for_the_run_that_is_on() -> None:
    heard, late = ReportBoard(), STAND_IN.total_seconds()
    heard.take(received(of(0), rank=0))
    for after in (0.0, late):
        heard.take(received(of(1), after=after, speaks=False, rank=1))
    heard.take(received(of(2), after=late, rank=0, run=2, step=None))
    assert [one.sender.name for one in heard.of_jobs(NOW + STAND_IN)] == ["pod-1"]


def test_a_pod_that_stands_in_reports_as_often_as_the_one_that_it_stands_in_for() -> None:
    """Status would call it silent otherwise, in a cluster so large that other pods report every five minutes."""
    heard, late = ReportBoard(), STAND_IN.total_seconds()
    heard.take(received(of(0), rank=0))
    for number in range(10, 4000):
        heard.take(received(of(number, job=number), speaks=False, rank=number))
    for number in (1, 2):
        assert heard.take(received(of(number), speaks=False, rank=number)) == OTHER_SECONDS[1]
    assert heard.take(received(of(2), after=late, speaks=False, rank=2)) == SPEAKER_SECONDS[0]
    assert heard.take(received(of(1), after=late, speaks=False, rank=1)) == SPEAKER_SECONDS[0]
    assert heard.take(received(of(2), after=late + 5, speaks=False, rank=2)) == OTHER_SECONDS[1]
    heard.take(received(of(0), after=late + 6, rank=0))
    assert heard.take(received(of(1), after=late + 7, speaks=False, rank=1)) == OTHER_SECONDS[1]


def test_a_member_that_is_silent_itself_stands_in_for_nobody() -> None:
    heard = ReportBoard()
    for after in (0.0, STAND_IN.total_seconds()):
        heard.take(received(of(1), after=after, speaks=False, rank=1))
    last = NOW + STAND_IN
    assert heard.of_jobs(last + SILENT - timedelta(seconds=1))
    assert not heard.of_jobs(last + SILENT)


def test_of_two_members_the_one_that_was_heard_lately_stands_in() -> None:
    heard = ReportBoard()
    for number, last in ((1, 100.0), (2, 150.0)):
        for after in (0.0, last):
            heard.take(received(of(number), after=after, speaks=False, rank=number))

    def counts(after: float) -> list[str]:
        return [one.sender.name for one in heard.of_jobs(NOW + timedelta(seconds=after))]

    late = 100 + STAND_IN.total_seconds()
    assert (counts(late - 1), counts(late)) == (["pod-1"], ["pod-2"])


def test_what_another_member_said_later_counts_and_not_what_the_silent_one_said_before() -> None:
    heard = ReportBoard()
    for number, last in ((0, 100.0), (1, 150.0)):
        for after in (0.0, last):
            heard.take(received(of(number), after=after, speaks=number == 0, rank=number))
    (found,) = heard.of_jobs(NOW + timedelta(seconds=150) + STAND_IN)
    assert found.sender.name == "pod-1"


def test_of_two_members_the_one_of_the_newer_run_stands_in() -> None:
    heard, late = ReportBoard(), STAND_IN.total_seconds()
    for number, run in ((1, 1), (2, 2)):
        for after in (0.0, late / 2, late):
            heard.take(received(of(number), after=after, speaks=False, rank=number, run=run))
    assert [one.sender.name for one in heard.of_jobs(NOW + STAND_IN)] == ["pod-2"]


def test_the_more_pods_report_the_less_often_each_does() -> None:
    heard = ReportBoard()
    assert (heard.next_seconds(speaks=True), heard.next_seconds(speaks=False)) == (5, 30)
    for number in range(400):
        heard.take(received(of(number, job=number), speaks=number < 100))
    assert (heard.next_seconds(speaks=True), heard.next_seconds(speaks=False)) == (10, 30)
    for number in range(400, 5000):
        heard.take(received(of(number, job=number), speaks=number < 1400))
    assert (heard.next_seconds(speaks=True), heard.next_seconds(speaks=False)) == (60, 300)


def test_a_report_is_fresh_for_three_minutes_or_until_two_more_should_have_come() -> None:
    heard = ReportBoard()

    def fresh_for(speaks: bool) -> float:
        assert heard.take(received(of(0), speaks=speaks)) == heard.next_seconds(speaks=speaks)
        (one,) = [one for one in heard.of_run("job-uid-0", 1) if one.sender.uid == "uid-0"]
        return next(seconds for seconds in range(10_000) if not one.is_fresh(NOW + timedelta(seconds=seconds)))

    assert (fresh_for(True), fresh_for(False)) == (SILENT.total_seconds(), SILENT.total_seconds())
    for number in range(1, 5000):
        heard.take(received(of(number, job=number), speaks=number < 1400))
    assert (fresh_for(True), fresh_for(False)) == (SILENT.total_seconds(), 750)


def test_pods_that_are_gone_are_forgotten() -> None:
    stage, heard = trains(), ReportBoard()
    for rank in (0, 1):
        heard.take(received(sender(stage, rank)))
    gone, kept = sender(stage), sender(stage, 1)
    stage.cache.forget(PODS, ("ns", gone.name), gone.uid)
    heard.forget_ended(stage.cache)
    assert heard.last(gone.uid) is None
    assert [one.sender for one in heard.of_jobs(NOW)] == [kept]


def scaling(heard: ReportBoard, stage: Stage, after: float = 0.0) -> tuple[ScalingHints, float] | None:
    return heard.scaling_of(job_of(stage), NOW + timedelta(seconds=after))


def test_hints_are_those_of_rank_0_of_the_present_run_with_their_age() -> None:
    stage, heard, hints = trains(), ReportBoard(), replace(HINTS, profiled=2)
    assert scaling(heard, stage) is None, "nothing is heard"
    heard.take(received(sender(stage, 1), speaks=False, scaling=hints, rank=0))
    assert scaling(heard, stage) is None, "another member says that it is rank 0"
    heard.take(received(sender(stage), scaling=hints, run=2))
    assert scaling(heard, stage) is None, "another run"
    heard.take(received(sender(stage), after=4))
    assert scaling(heard, stage) is None, "it has measured nothing"
    heard.take(received(sender(stage), after=5, scaling=hints))
    assert scaling(heard, stage, after=12.5) == (hints, 7.5)


def test_a_job_of_the_same_uid_as_another_ones_member_hears_nothing_of_that() -> None:
    stage, heard = trains(), ReportBoard()
    heard.take(received(replace(sender(stage), job_uid="another"), scaling=HINTS))
    assert scaling(heard, stage) is None


def test_a_job_without_a_run_has_no_hints() -> None:
    stage, heard = trains(), ReportBoard()
    heard.take(received(sender(stage), scaling=HINTS))
    job = job_of(stage)
    assert job.status is not None
    between = replace(job, status=job.status.model_copy(update={"current": None}))
    assert heard.scaling_of(between, NOW) is None


@pytest.mark.parametrize(("said", "members_before", "believed"), [(1, 2, 1), (64, 2, 2), (3, 4, 3), (64, 4, 4)])
def test_a_job_has_measured_no_more_ranks_than_its_runs_had(said: int, members_before: int, believed: int) -> None:
    stage, heard = trains(), ReportBoard()
    job = job_of(stage)
    assert job.status is not None
    past = HistoryEntry(run=0, size=members_before)
    job = replace(job, status=job.status.model_copy(update={"history": (past, *job.status.history)}))
    heard.take(received(sender(stage), scaling=replace(HINTS, profiled=said)))
    assert heard.scaling_of(job, NOW) == (replace(HINTS, profiled=believed), 0.0)
