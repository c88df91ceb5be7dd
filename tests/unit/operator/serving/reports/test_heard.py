"""One report for each living pod, and a period by which all of them stay bearable."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from perdure.wire.report import TrainerPhase
from perdure_operator.cluster.protocol import PODS
from perdure_operator.serving.reports.heard import Received, ReportBoard
from perdure_operator.serving.reports.tokens import ReportingPod
from tests.support.raw import NOW
from tests.support.reporting import report, sender, trains


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
        (newest,) = heard.of_jobs()
        at.append(newest.step_at)
    assert at == [None, NOW, NOW, None, None, NOW + timedelta(seconds=20)]


def test_a_phase_is_as_old_as_the_first_report_of_it_after_another() -> None:
    heard, at = ReportBoard(), list[datetime | None]()
    trains, saves = TrainerPhase.TRAINING, TrainerPhase.SAVING
    for after, run, phase in ((0, 1, trains), (5, 1, trains), (10, 1, saves), (15, 1, saves), (20, 2, saves)):
        heard.take(received(of(0), after=after, run=run, phase=phase))
        (newest,) = heard.of_jobs()
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


def test_a_report_without_a_step_hides_no_other_of_its_job() -> None:
    heard = ReportBoard()
    heard.take(received(of(0), after=1))
    heard.take(received(of(1), after=2, step=None))
    assert [one.sender.name for one in heard.of_jobs()] == ["pod-0"]


def test_the_newest_report_of_those_that_speak_for_a_job_is_its_own() -> None:
    heard = ReportBoard()
    heard.take(received(of(0, job=1), after=9))
    heard.take(received(of(1, job=2), after=3))
    heard.take(received(of(2, job=1), after=5))
    heard.take(received(of(3, job=3), after=1, speaks=False))
    assert [one.sender.name for one in heard.of_jobs()] == ["pod-1", "pod-0"]
    heard.take(received(of(0, job=1), after=10, speaks=False))
    assert [one.sender.name for one in heard.of_jobs()] == ["pod-1", "pod-2"]


def test_the_more_pods_report_the_less_often_each_does() -> None:
    heard = ReportBoard()
    assert (heard.next_seconds(speaks=True), heard.next_seconds(speaks=False)) == (5, 30)
    for number in range(400):
        heard.take(received(of(number, job=number), speaks=number < 100))
    assert (heard.next_seconds(speaks=True), heard.next_seconds(speaks=False)) == (10, 30)
    for number in range(400, 5000):
        heard.take(received(of(number, job=number), speaks=number < 1400))
    assert (heard.next_seconds(speaks=True), heard.next_seconds(speaks=False)) == (60, 300)


def test_pods_that_are_gone_are_forgotten() -> None:
    stage, heard = trains(), ReportBoard()
    for rank in (0, 1):
        heard.take(received(sender(stage, rank)))
    gone, kept = sender(stage), sender(stage, 1)
    stage.cache.forget(PODS, ("ns", gone.name), gone.uid)
    heard.forget_ended(stage.cache)
    assert heard.last(gone.uid) is None
    assert [one.sender for one in heard.of_jobs()] == [kept]
