"""What status says of training follows what rank 0 reports, and how long ago it did: progress and conditions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import LastSave, Straggler, Suspect, SuspectDoes, TrainingPhase, TrainingProgress
from perdure_operator.decide import decide
from perdure_operator.decide.health import SILENT, health
from tests.support.jobs import Job, job
from tests.support.raw import NOW

MINUTES = SILENT.total_seconds()
REPORTED = (ConditionType.PROGRESSING, ConditionType.CHECKPOINT_FRESH, ConditionType.STORAGE_REACHABLE)


def reports(here: Job, *, stood: float = 0.0, saved: float | None = None, **fields: Any) -> Job:
    """As `loop.progress` writes it: the step was first reported `stood` seconds ago, the newest commit is so old."""
    now = here.snapshot.now
    known: dict[str, Any] = {"phase": "Training", "seconds_per_step": 1.0, "began_time": now - timedelta(days=9)}
    known |= {"run": 1, "step": 20, "step_time": now - timedelta(seconds=stood), "observed_at": now}
    progress = TrainingProgress(**known | fields)
    save = None if saved is None else LastSave(step=16, time=now - timedelta(seconds=saved), observed_at=now)
    return here.status(progress=progress, last_save=save)


def says(here: Job, kind: ConditionType) -> tuple[str, str, str] | None:
    found = here.settle().now.find(kind)
    return (found.status, found.reason, found.message) if found else None


def warnings(here: Job, reason: Reason) -> list[str]:
    return [event.message for event in decide(here.snapshot).events if event.reason == reason]


def trains(after: float = 0.0, **checkpoint: Any) -> Job:
    """Its run began so long ago."""
    known = checkpoint if checkpoint else {"every_seconds": 300}
    return job(checkpoint=CheckpointPolicy(uri="s3://bucket/digits", **known)).running(world=2).after(after)


def test_a_run_that_does_not_report_has_none_of_these_conditions() -> None:
    here = trains().settle()
    assert [kind for kind in REPORTED if here.now.find(kind)] == []
    assert here.condition(ConditionType.RUNNING).reason == Reason.ASSIGNED


def test_a_run_is_training_once_it_reports_steps() -> None:
    here = reports(trains())
    assert here.settle().condition(ConditionType.RUNNING).reason == Reason.TRAINING
    assert says(here, ConditionType.PROGRESSING) == (
        "True",
        "StepsReported",
        "rank 0 reports progress: see status.progress",
    )


@pytest.mark.parametrize(
    ("phase", "per_step", "limit"),
    [
        ("Training", None, 1800),
        ("Training", 12.0, 300),
        ("Training", 60.0, 600),
        ("Saving", 60.0, 900),
        ("Evaluating", None, 3600),
        ("Restoring", None, 1800),
        (None, None, 1800),
    ],
)
def test_each_phase_may_go_on_without_a_step_for_its_time(
    phase: str | None, per_step: float | None, limit: int
) -> None:
    def status(stood: float) -> str:
        found = says(reports(trains(), stood=stood, phase=phase, seconds_per_step=per_step), ConditionType.PROGRESSING)
        assert found
        return found[0]

    assert (status(limit - 1), status(limit)) == ("True", "False")


def test_a_run_that_makes_no_step_is_not_said_to_train_and_one_event_names_the_phase() -> None:
    here = reports(trains(), stood=400, phase="Saving", seconds_per_step=1.0).settle()
    assert here.condition(ConditionType.PROGRESSING).status == "True"
    here = reports(here, stood=900, phase="Saving")
    began = f"{here.snapshot.now - timedelta(seconds=900):%H:%M:%SZ}"
    words = f"rank 0 reports no new step since {began}: it is at step 20, in phase Saving"
    assert warnings(here, Reason.NO_PROGRESS) == [words]
    here = here.settle()
    assert says(here, ConditionType.PROGRESSING) == ("False", "NoProgress", words)
    assert here.condition(ConditionType.RUNNING).reason == Reason.ASSIGNED
    assert warnings(reports(here, stood=960), Reason.NO_PROGRESS) == []


def test_a_rank_0_that_says_that_it_hangs_makes_no_progress_whatever_its_phase() -> None:
    here = reports(trains(), stood=30).settle()
    assert here.condition(ConditionType.PROGRESSING).status == "True"
    here = reports(here, stood=40, hang_time=here.snapshot.now).settle()
    found = here.condition(ConditionType.PROGRESSING)
    assert (found.status, found.reason) == ("False", "NoProgress")
    assert reports(here, stood=0).settle().condition(ConditionType.PROGRESSING).status == "True"


def test_a_process_that_looks_at_itself_advances_without_steps_until_it_says_that_it_hangs_or_stops_looking() -> None:
    """It counts polls, batches and epochs, and knows the limit of its phase."""
    kind, here = ConditionType.PROGRESSING, trains()

    def status(watched: float, **fields: Any) -> str:
        now = here.snapshot.now
        looked = reports(here, stood=90_000, watched_time=now - timedelta(seconds=watched), **fields)
        return looked.settle().condition(kind).status

    assert status(0) == "True"
    assert status(299) == "True"
    assert status(300) == "False"
    assert status(0, hang_time=here.snapshot.now) == "False"


def test_a_run_without_progress_that_may_be_at_work_is_no_alarm_and_not_said_to_train() -> None:
    here = reports(trains(), stood=30).settle()
    here = reports(here, stood=400, hang_time=here.snapshot.now, may_be_work=True)
    assert warnings(here, Reason.NO_PROGRESS) == []
    began = f"{here.snapshot.now - timedelta(seconds=400):%H:%M:%SZ}"
    assert says(here, ConditionType.PROGRESSING) == (
        "Unknown",
        "MayBeWork",
        f"rank 0 reports no new step since {began}: it is at step 20, in phase Training; that may be an evaluation "
        "without the session's loaders, or other long work",
    )
    assert here.settle().condition(ConditionType.RUNNING).reason == Reason.ASSIGNED
    assert len(warnings(reports(here.settle(), stood=4000, hang_time=here.snapshot.now), Reason.NO_PROGRESS)) == 1


def test_the_member_that_all_others_wait_for_is_named_by_the_condition_and_by_one_more_event() -> None:
    here = reports(trains(), stood=400, hang_time=trains().snapshot.now).settle()
    suspects = (Suspect(name="digits-1", node="n2", rank=1, does=SuspectDoes.STANDS),)
    here = reports(here, stood=420, hang_time=here.snapshot.now, suspects=suspects)
    (words,) = warnings(here, Reason.MEMBER_WAITED_FOR)
    assert words.endswith("and rank 1 (digits-1 on n2) stands still elsewhere")
    here = here.settle()
    assert says(here, ConditionType.PROGRESSING) == ("False", "MemberWaitedFor", words)
    assert warnings(here, Reason.MEMBER_WAITED_FOR) == []
    here = reports(here, stood=0, suspects=suspects).settle()
    assert here.condition(ConditionType.PROGRESSING).reason == "StepsReported"


SLOW = Straggler(name="digits-1", node="n2", rank=1, own_percent=83, others_percent=45, since=NOW, named=True)


def test_a_member_that_holds_up_the_others_is_named_by_the_condition_while_they_train_and_by_one_event() -> None:
    kind = ConditionType.PROGRESSING
    here = reports(trains()).settle()
    here = reports(here, stragglers=(SLOW.model_copy(update={"named": False}),)).settle()
    assert here.condition(kind).reason == "StepsReported"
    here = reports(here, stragglers=(SLOW,))
    (words,) = warnings(here, Reason.STRAGGLER)
    assert words == (
        f"rank 1 (digits-1 on n2) holds up the others since {NOW:%H:%M:%SZ}: it works 83 % of each step itself, and "
        "they work 45 %; rank 0 reports progress: see status.progress"
    )
    here = here.settle()
    assert says(here, kind) == ("True", "Straggler", words)
    assert here.condition(ConditionType.RUNNING).reason == Reason.TRAINING
    here = reports(here, stragglers=(SLOW.model_copy(update={"own_percent": 81}),))
    assert warnings(here, Reason.STRAGGLER) == []
    assert "it works 81 %" in here.settle().condition(kind).message
    assert says(reports(here), kind) == ("True", "StepsReported", "rank 0 reports progress: see status.progress")


def test_a_run_that_stands_has_no_straggler() -> None:
    here = reports(trains(), stood=900, stragglers=(SLOW,)).settle()
    assert here.condition(ConditionType.PROGRESSING).reason == "NoProgress"


def test_what_another_member_reports_while_rank_0_is_silent_is_told_as_its_own() -> None:
    kind, here = ConditionType.PROGRESSING, trains()
    assert says(reports(here, rank=1), kind) == (
        "True",
        "StepsReported",
        "rank 1 reports progress, and rank 0 is silent: see status.progress",
    )
    found = says(reports(here, rank=1, stood=300), kind)
    began = f"{here.snapshot.now - timedelta(seconds=300):%H:%M:%SZ}"
    words = f"rank 1 reports no new step since {began}, and rank 0 is silent: it is at step 20, in phase Training"
    assert found == ("False", "NoProgress", words)


def test_silence_proves_nothing() -> None:
    here = reports(trains(), saved=10).settle()
    last = here.snapshot.now
    here = here.after(SILENT.total_seconds()).settle()
    for kind in REPORTED:
        assert says(here, kind) == ("Unknown", "NotHeard", f"no member has reported since {last:%H:%M:%SZ}")
    assert here.condition(ConditionType.RUNNING).reason == Reason.ASSIGNED


def test_saves_that_fail_are_told_with_the_stores_words_until_one_succeeds() -> None:
    kind = ConditionType.STORAGE_REACHABLE
    here = trains()
    assert says(reports(here), kind) is None
    assert says(reports(here, saved=30), kind) == (
        "True",
        "SavesSucceed",
        "the newest save that is reported succeeded",
    )
    since = here.snapshot.now - timedelta(seconds=20)
    failing = reports(here, saved=30, storage_failing_since=since, storage_why="503 Slow Down")
    words = f"saves fail since {since:%H:%M:%SZ}, and the members train on: 503 Slow Down"
    assert says(failing, kind) == ("False", "SavesFail", words)
    assert warnings(failing, Reason.SAVES_FAIL) == [words]
    assert says(reports(failing.settle(), saved=3), kind) == (
        "True",
        "SavesSucceed",
        "the newest save that is reported succeeded",
    )


@pytest.mark.parametrize(
    ("checkpoint", "limit"), [({"every_seconds": 60}, 600), ({"every_seconds": 600}, 1800), ({}, 900)], ids=str
)
def test_a_commit_is_recent_for_three_periods_and_ten_minutes(checkpoint: dict[str, int], limit: int) -> None:
    def status(saved: float | None, began: float) -> str:
        here = trains(9000, **checkpoint)
        began_time = here.snapshot.now - timedelta(seconds=began)
        found = says(reports(here, saved=saved, began_time=began_time), ConditionType.CHECKPOINT_FRESH)
        assert found
        return found[0]

    assert [status(age, 9000) for age in (limit - 1, limit)] == ["True", "False"]
    assert [status(None, age) for age in (limit - 1, limit)] == ["True", "False"], "it began by a commit"
    assert status(9000, 60) == "True"


@pytest.mark.parametrize(("step", "fresh"), [(45, "True"), (46, "False")])
def test_where_checkpoints_are_made_by_steps_a_recent_one_is_less_than_three_periods_behind(
    step: int, fresh: str
) -> None:
    found = says(reports(trains(9000, every_steps=10), saved=9000, step=step), ConditionType.CHECKPOINT_FRESH)
    assert found
    assert found[0] == fresh


@pytest.mark.parametrize(("saved", "fresh"), [(599, "True"), (600, "False")])
def test_where_steps_are_short_a_commit_of_the_last_ten_minutes_is_recent_however_many_steps_it_is_behind(
    saved: float, fresh: str
) -> None:
    """Each upload takes longer than three periods of so few steps."""
    found = says(reports(trains(9000, every_steps=10), saved=saved, step=160), ConditionType.CHECKPOINT_FRESH)
    assert found
    assert found[0] == fresh


@pytest.mark.parametrize("every", [{"every_seconds": 60}, {"every_steps": 1}], ids=str)
def test_a_commit_does_not_grow_old_while_no_step_is_made(every: dict[str, int]) -> None:
    def status(saved: float, **fields: Any) -> str:
        found = says(reports(trains(9000, **every), saved=saved, **fields), ConditionType.CHECKPOINT_FRESH)
        assert found
        return found[0]

    assert status(1700, stood=1101, phase="Evaluating") == "True"
    assert status(1700, stood=1100, phase="Evaluating") == "False"
    assert status(1700, stood=5, paused_seconds=1101) == "True"
    assert status(1700, stood=5, paused_seconds=1100) == "False"
    assert status(1700, stood=1101, seconds_per_step=400.0) == "False", "a step takes as long"
    assert status(630, stood=59) == "False"
    assert status(1200, stood=1300, paused_seconds=100) == "True", "made while it evaluates"


def test_a_commit_of_the_present_step_is_recent_however_old_it_is() -> None:
    found = says(reports(trains(9000), saved=9000, step=16), ConditionType.CHECKPOINT_FRESH)
    assert found
    assert found[0] == "True"


def test_nobody_knows_when_a_commit_is_late_that_is_made_once_an_epoch() -> None:
    assert says(reports(trains(9000, every_epochs=1), saved=9000), ConditionType.CHECKPOINT_FRESH) is None


def test_a_stale_commit_is_named_with_its_step() -> None:
    here = reports(trains(9000), saved=4000)
    at = here.snapshot.now - timedelta(seconds=4000)
    words = f"the newest commit is of step 16, of {at:%H:%M:%SZ}"
    assert says(here, ConditionType.CHECKPOINT_FRESH) == ("False", "StaleCheckpoint", words)


def test_a_run_is_not_said_to_advance_before_its_second_step() -> None:
    here = trains()
    first = reports(here, began_time=here.snapshot.now)
    assert says(first, ConditionType.PROGRESSING) is None
    assert first.settle().condition(ConditionType.RUNNING).reason == Reason.ASSIGNED


def test_a_step_after_an_evaluation_or_a_save_has_its_whole_time() -> None:
    here = trains()
    phase_time = here.snapshot.now - timedelta(seconds=299)
    found = says(reports(here, stood=3000, phase_time=phase_time), ConditionType.PROGRESSING)
    assert found
    assert found[0] == "True"


def test_a_run_that_leaves_is_ended_by_its_own_limit() -> None:
    found = says(reports(trains(), stood=90_000, phase="Leaving"), ConditionType.PROGRESSING)
    assert found
    assert found[0] == "True"


@pytest.mark.parametrize("every", [{"every_seconds": 10**14}, {"every_steps": 10**14}], ids=str)
def test_no_number_of_a_person_or_of_a_pod_ends_a_round(every: dict[str, int]) -> None:
    here = reports(trains(**every), saved=30, seconds_per_step=1e16).settle()
    assert here.condition(ConditionType.PROGRESSING).status == "True"


def test_what_an_earlier_run_reported_says_nothing_of_this_one() -> None:
    here = reports(trains(), saved=10, run=0).settle()
    assert [kind for kind in REPORTED if here.now.find(kind)] == []


def test_the_conditions_go_with_the_run() -> None:
    here = reports(trains(), saved=10).settle()
    ended = here.all_ended(ExitKind.COMPLETED, step=30, commit=(4, 30)).settle()
    assert [kind for kind in REPORTED if ended.now.find(kind)] == []


def test_a_status_of_an_older_operator_has_no_time_of_its_step() -> None:
    here = trains()
    progress = TrainingProgress(run=1, step=20, observed_at=here.snapshot.now)
    found = health(here.status(progress=progress).snapshot.status, here.snapshot.spec.checkpoint)
    assert found
    assert found.advances


def test_a_phase_of_a_newer_operator_is_read_as_training() -> None:
    assert TrainingPhase("Dreaming") is TrainingPhase.TRAINING


def heard(here: Job) -> Job:
    """As `loop.progress` writes it."""
    now = here.snapshot.now
    progress, save = TrainingProgress(run=1, step=20, observed_at=now), LastSave(step=16, time=now, observed_at=now)
    return here.status(progress=progress, last_save=save)


def words(here: Job) -> str:
    return here.settle().condition(ConditionType.RUNNING).message


def test_members_that_report_are_not_said_to_be_silent_until_they_end() -> None:
    assert words(heard(job().running(world=2))) == (
        "run 1: 2 members have their ranks, 2 processes in all; members report their progress: see status.progress"
    )


def test_once_nothing_was_heard_for_long_status_says_since_when_and_no_more() -> None:
    here = heard(job().running(world=2))
    assert "see status.progress" in words(here.after(MINUTES - 1))
    assert words(here.after(MINUTES)).endswith(
        f"; no report since {here.snapshot.now:%H:%M:%SZ}: whether they train is not known until they end: see kubectl "
        "logs digits-ab12-0; no commit is known yet"
    )


def rated(here: Job, run: int = 1) -> Job:
    progress = TrainingProgress(
        run=run,
        step=20,
        samples_per_second=96.0,
        remaining_seconds=60,
        percent=4,
        death_costs="no finished step",
        hang_time=here.snapshot.now,
        may_be_work=True,
        suspects=(Suspect(name="digits-1", node="n2", rank=1, does=SuspectDoes.STANDS),),
        stragglers=(SLOW,),
        observed_at=here.snapshot.now,
    )
    return here.status(progress=progress)


def test_rates_that_nobody_reports_any_more_are_dropped_and_the_step_stays() -> None:
    here = rated(job().running(world=2))
    assert here.after(MINUTES - 1).settle().now.progress == here.now.progress
    left = here.after(MINUTES).settle().now.progress
    assert left is not None
    assert (left.step, left.samples_per_second, left.remaining_seconds, left.death_costs) == (20, None, None, "")
    assert (left.hang_time, left.may_be_work, left.suspects, left.stragglers) == (None, False, (), ())
    assert left.observed_at == here.snapshot.now


def test_rates_of_a_run_that_is_not_trained_any_more_are_dropped() -> None:
    left = rated(job().running(world=2), run=0).settle().now.progress
    assert left is not None
    assert (left.step, left.samples_per_second, left.death_costs) == (20, None, "")


def test_of_an_old_reports_step_and_a_later_commits_the_later_one_is_left() -> None:
    here = rated(job().running(world=2)).status(step=24)
    assert here.settle().now.progress == here.now.progress, "it trains from an older state on"
    assert here.after(MINUTES).settle().now.progress is None


def test_status_says_why_new_members_cannot_report() -> None:
    here = job().running(world=2)
    refused = replace(here, snapshot=here.snapshot.model_copy(update={"channel_refused": "no tokens here"}))
    assert "; new members cannot report, and train without: no tokens here; whether they" in words(refused)


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
