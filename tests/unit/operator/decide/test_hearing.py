"""What status says of training follows what members report, and how long ago they did."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import LastSave, TrainingProgress
from perdure_operator.decide import decide
from perdure_operator.decide.hearing import SILENT
from tests.support.jobs import Job, job

MINUTES = SILENT.total_seconds()


def heard(here: Job) -> Job:
    """As `loop.progress` writes it."""
    now = here.snapshot.now
    progress, save = TrainingProgress(run=1, step=20, observed_at=now), LastSave(step=16, time=now, observed_at=now)
    return here.status(progress=progress, last_save=save)


def says(here: Job) -> str:
    return here.settle().condition(ConditionType.RUNNING).message


def test_members_that_report_are_not_said_to_be_silent_until_they_end() -> None:
    assert says(heard(job().running(world=2))) == (
        "run 1: 2 members have their ranks, 2 processes in all; members report their progress: see status.progress"
    )


def test_once_nothing_was_heard_for_long_status_says_since_when_and_no_more() -> None:
    here = heard(job().running(world=2))
    assert "see status.progress" in says(here.after(MINUTES - 1))
    assert says(here.after(MINUTES)).endswith(
        f"; no report since {here.snapshot.now:%H:%M:%SZ}: whether they train is not known until they end: see kubectl "
        "logs digits-ab12-0; no commit is known yet"
    )


def rated(here: Job, run: int = 1) -> Job:
    progress = TrainingProgress(
        run=run, step=20, samples_per_second=96.0, remaining_seconds=60, percent=4, observed_at=here.snapshot.now
    )
    return here.status(progress=progress)


def test_rates_that_nobody_reports_any_more_are_dropped_and_the_step_stays() -> None:
    here = rated(job().running(world=2))
    assert here.after(MINUTES - 1).settle().now.progress == here.now.progress
    left = here.after(MINUTES).settle().now.progress
    assert left is not None
    assert (left.step, left.samples_per_second, left.remaining_seconds) == (20, None, None)
    assert left.observed_at == here.snapshot.now


def test_rates_of_a_run_that_is_not_trained_any_more_are_dropped() -> None:
    left = rated(job().running(world=2), run=0).settle().now.progress
    assert left is not None
    assert (left.step, left.samples_per_second) == (20, None)


def test_of_an_old_reports_step_and_a_later_commits_the_later_one_is_left() -> None:
    here = rated(job().running(world=2)).status(step=24)
    assert here.settle().now.progress == here.now.progress, "it trains from an older state on"
    assert here.after(MINUTES).settle().now.progress is None


def test_status_says_why_new_members_cannot_report() -> None:
    here = job().running(world=2)
    refused = replace(here, snapshot=here.snapshot.model_copy(update={"channel_refused": "no tokens here"}))
    assert "; new members cannot report, and train without: no tokens here; whether they" in says(refused)


def test_the_job_is_looked_at_when_its_progress_gets_old() -> None:
    here = heard(job().running(world=2)).settle()
    assert decide(here.after(60.0).settle().snapshot).requeue_after == MINUTES - 60


def test_what_was_reported_is_dropped_once_no_run_is_on() -> None:
    here = heard(job().running(world=2))
    ended = here.all_ended(ExitKind.COMPLETED, step=30, commit=(4, 30)).settle()
    assert (ended.now.progress, ended.now.last_save, ended.now.step) == (None, None, 30)


def test_it_stays_while_one_run_follows_another_in_the_same_pods() -> None:
    here = heard(job().running(world=2))
    assert here.cordon("n1").settle().now.progress == here.snapshot.status.progress


def test_a_job_that_nobody_reports_for_is_as_it_was() -> None:
    here = job().running(world=2)
    assert (here.now.progress, here.now.last_save) == (None, None)
    assert here.after(timedelta(days=1).total_seconds()).settle().now == here.now
