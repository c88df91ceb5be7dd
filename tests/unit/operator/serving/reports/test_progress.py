"""What status shows of reports: numbers once a minute, and at once what changes its words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire.report import DeathCost, Standing, TrainerPhase
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import LastSave, SuspectDoes, TrainingJobStatus, TrainingPhase, TrainingProgress
from perdure_operator.decide.health import SILENT
from perdure_operator.decide.suspects import PATIENCE
from perdure_operator.serving.reports import progress
from perdure_operator.serving.reports.heard import Received
from perdure_operator.serving.reports.progress import EVERY, Shown
from tests.support.raw import NOW
from tests.support.reporting import job_of, report, sender, trains

STAGE = trains()
MINUTE = EVERY.total_seconds()
POLICY = CheckpointPolicy(uri="s3://bucket/digits", every_seconds=60)


def heard(after: float = 0.0, **fields: Any) -> Received:
    return Received(sender(STAGE), report(**fields), True, NOW + timedelta(seconds=after))


def due(known: TrainingJobStatus, received: Received) -> Shown | None:
    return progress.shown(known, POLICY, received)


def shown(known: TrainingJobStatus, received: Received) -> TrainingJobStatus | None:
    found = due(known, received)
    return found.status if found else None


def status(progress: TrainingProgress | None = None, **fields: Any) -> TrainingJobStatus:
    known = job_of(STAGE).status
    assert known is not None
    return known.model_copy(update={"progress": progress, **fields})


def test_all_that_is_known_is_shown_with_its_time() -> None:
    numbers = {"epoch": 3, "samples_per_second": 1234.567, "progress": 0.129, "remaining_seconds": 41.6}
    found = shown(status(), heard(commit_step=8, commit_at=NOW.timestamp() - 30, **numbers))
    assert found is not None
    assert found.progress == TrainingProgress(
        run=1,
        step=10,
        epoch=3,
        step_time=NOW,
        phase=TrainingPhase.TRAINING,
        phase_time=NOW,
        began_time=NOW,
        samples_per_second=1230.0,
        percent=12,
        remaining_seconds=42,
        observed_at=NOW,
    )
    assert found.last_save == LastSave(step=8, time=NOW - timedelta(seconds=30), observed_at=NOW)
    assert found.model_copy(update={"progress": None, "last_save": None}) == status()


@pytest.mark.parametrize(
    ("cost", "steps", "words"),
    [
        (None, None, ""),
        (DeathCost.NO_STEP, None, "no finished step"),
        (DeathCost.STEPS, 1, "at most 1 finished step"),
        (DeathCost.STEPS, 3, "at most 3 finished steps"),
        (DeathCost.STEPS, None, ""),
        (DeathCost.SINCE_COMMIT, None, "all steps since the newest checkpoint"),
        (DeathCost.UNTIL_MIRRORED, None, "all steps since the newest checkpoint, until the mirror is whole"),
    ],
)
def test_what_a_death_costs_is_said_in_words(cost: DeathCost | None, steps: int | None, words: str) -> None:
    found = shown(status(), heard(death_cost=cost, death_steps=steps))
    assert found
    assert found.progress
    assert found.progress.death_costs == words


def test_another_cost_of_a_death_is_shown_soon_and_changes_no_condition() -> None:
    known = status(TrainingProgress(run=1, step=9, death_costs="no finished step", observed_at=NOW))
    assert due(known, heard(11.0, death_cost=DeathCost.NO_STEP)) is None
    assert due(known, heard(9.0, death_cost=DeathCost.SINCE_COMMIT)) is None
    found = due(known, heard(11.0, death_cost=DeathCost.SINCE_COMMIT))
    assert found
    assert not found.changes_words


def test_what_is_not_known_is_absent_and_the_save_before_stays() -> None:
    before = LastSave(step=8, time=NOW, observed_at=NOW)
    found = shown(status(last_save=before), heard())
    assert found is not None
    assert found.progress == TrainingProgress(
        run=1,
        step=10,
        step_time=NOW,
        phase=TrainingPhase.TRAINING,
        phase_time=NOW,
        began_time=NOW,
        observed_at=NOW,
    )
    assert found.last_save == before


@pytest.mark.parametrize("at", [NOW.timestamp() + 3600, 1e15], ids=["an hour", "beyond all calendars"])
def test_a_clock_that_is_ahead_saves_nothing_in_the_future(at: float) -> None:
    found = shown(status(), heard(commit_step=8, commit_at=at))
    assert found is not None
    assert found.last_save == LastSave(step=8, time=NOW, observed_at=NOW)


@pytest.mark.parametrize(
    ("after", "due"), [(0.0, False), (MINUTE - 1, False), (MINUTE, True), (SILENT.total_seconds(), True)]
)
def test_numbers_are_shown_once_a_minute(after: float, due: bool) -> None:
    known = status(TrainingProgress(run=1, step=9, observed_at=NOW))
    assert (shown(known, heard(after)) is not None) is due


def test_another_run_is_shown_soon_and_two_that_take_turns_are_no_write_each() -> None:
    known = status(TrainingProgress(run=0, step=9, observed_at=NOW))
    assert shown(known, heard(9.0)) is None
    assert shown(known, heard(10.0)) is not None


def says(rank: int, after: float, **fields: Any) -> Received:
    at = NOW + timedelta(seconds=after)
    return Received(sender(STAGE, rank), report(rank=rank, **fields), rank == 0, at)


def test_a_rank_0_that_hangs_is_shown_at_once_with_the_member_that_does_not_wait() -> None:
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))
    waiting = says(0, 12, hangs_since=NOW.timestamp(), hangs_in=Standing.WAITS_FOR_RANKS)
    standing = says(1, 9, hangs_since=NOW.timestamp(), hangs_in=Standing.STANDS)
    found = progress.shown(known, POLICY, waiting, lambda: [waiting, standing])
    assert found is not None
    assert found.changes_words
    assert found.status.progress is not None
    assert found.status.progress.hang_time == NOW
    (suspect,) = found.status.progress.suspects
    assert (suspect.name, suspect.rank, suspect.does) == (standing.sender.name, 1, SuspectDoes.STANDS)
    later = progress.shown(found.status, POLICY, says(0, 30), lambda: [says(0, 30), standing])
    assert later is not None
    assert later.changes_words
    assert later.status.progress is not None
    assert (later.status.progress.hang_time, later.status.progress.suspects) == (None, ())


def test_a_member_that_says_nothing_is_named_once_the_others_have_waited_for_long() -> None:
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))

    def named(after: float) -> list[SuspectDoes]:
        waiting = replace(says(0, after, hangs_since=1.0, hangs_in=Standing.WAITS_FOR_RANKS), hangs_at=NOW)
        found = progress.shown(known, POLICY, waiting, lambda: [waiting])
        assert found is not None
        assert found.status.progress is not None
        return [one.does for one in found.status.progress.suspects]

    assert named(PATIENCE.total_seconds() - 1) == []
    assert named(PATIENCE.total_seconds()) == [SuspectDoes.NOT_HEARD]


def test_a_rank_0_that_says_nothing_itself_is_named_once_it_makes_no_step_for_long() -> None:
    trained = {"phase": TrainingPhase.TRAINING, "phase_time": NOW, "step_time": NOW, "began_time": NOW}
    known = status(TrainingProgress.model_validate({"run": 1, "step": 10, "observed_at": NOW, **trained}))

    def named(after: float) -> list[tuple[int, SuspectDoes]]:
        silent = says(0, after, step_seconds=1.0)
        waiting = replace(says(1, after, hangs_since=1.0, hangs_in=Standing.WAITS_FOR_RANKS), hangs_at=NOW)
        found = progress.shown(known, POLICY, silent, lambda: [silent, waiting])
        assert found is not None
        assert found.status.progress is not None
        return [(one.rank, one.does) for one in found.status.progress.suspects]

    assert named(299) == []
    assert named(300) == [(0, SuspectDoes.SAYS_NOTHING)]


@pytest.mark.parametrize("fields", [{"run": None}, {"step": None}, {"run": 2}], ids=repr)
def test_a_report_without_a_step_or_of_a_run_that_is_over_shows_nothing(fields: dict[str, Any]) -> None:
    assert shown(status(), heard(**fields)) is None


def test_nothing_is_shown_of_a_job_without_a_run() -> None:
    assert shown(status(current=None), heard()) is None


def changes_words(known: TrainingJobStatus, received: Received) -> bool | None:
    found = due(known, received)
    return found.changes_words if found else None


def test_words_change_when_a_job_is_heard_first_or_again_or_of_another_run() -> None:
    old = TrainingProgress(run=1, step=9, observed_at=NOW)
    assert changes_words(status(), heard())
    assert changes_words(status(old), heard(MINUTE)) is False
    assert changes_words(status(old), heard(SILENT.total_seconds()))
    assert changes_words(status(old.model_copy(update={"run": 7})), heard(MINUTE))


def stands(after: float, since: float = 0.0, **fields: Any) -> Received:
    """A report of a step that was first reported at `since`."""
    received = heard(after, **fields)
    return Received(received.sender, received.report, True, received.at, NOW + timedelta(seconds=since))


def rates(received: Received, old: TrainingProgress | None = None) -> tuple[float | None, int | None, int | None]:
    found = shown(status(old), received)
    assert found
    assert found.progress
    return found.progress.samples_per_second, found.progress.remaining_seconds, found.progress.percent


NUMBERS = {"samples_per_second": 96.0, "remaining_seconds": 60.0, "progress": 0.5}


def test_rates_are_dropped_once_no_step_was_made_for_as_long_as_three_take() -> None:
    assert rates(stands(10.0, **NUMBERS)) == (96.0, 60, 50)
    assert rates(stands(11.0, **NUMBERS)) == (None, None, 50)
    assert rates(stands(60.0, step_seconds=20.0, **NUMBERS)) == (96.0, 60, 50)
    assert rates(stands(61.0, step_seconds=20.0, **NUMBERS)) == (None, None, 50)


@pytest.mark.parametrize("phase", [*TrainerPhase, None])
def test_rates_are_of_phases_in_which_steps_are_made(phase: TrainerPhase | None) -> None:
    trains = phase in (TrainerPhase.TRAINING, TrainerPhase.SAVING)
    assert rates(heard(phase=phase, **NUMBERS)) == ((96.0, 60, 50) if trains else (None, None, 50))


def test_a_new_leader_knows_from_status_since_when_a_step_stands() -> None:
    old = TrainingProgress(run=1, step=10, step_time=NOW, observed_at=NOW)
    assert rates(heard(MINUTE, **NUMBERS), old) == (None, None, 50)
    found = shown(status(old), heard(MINUTE))
    assert found
    assert found.progress
    assert found.progress.step_time == NOW


def test_a_training_that_stops_to_make_steps_changes_words_and_so_does_its_next_step() -> None:
    old = TrainingProgress(
        run=1,
        step=10,
        step_time=NOW,
        phase=TrainingPhase.TRAINING,
        phase_time=NOW,
        began_time=NOW - timedelta(hours=1),
        seconds_per_step=1.0,
        observed_at=NOW,
    )
    late = old.model_copy(update={"observed_at": NOW + timedelta(seconds=290)})
    assert due(status(late), stands(299.0)) is None
    assert changes_words(status(late), stands(300.0))
    stuck = late.model_copy(update={"observed_at": NOW + timedelta(seconds=300)})
    assert due(status(stuck), stands(330.0)) is None
    assert changes_words(status(stuck), heard(330.0, step=11))


def test_a_store_that_fails_changes_words_at_once_and_so_does_its_return() -> None:
    saved = LastSave(step=8, time=NOW, observed_at=NOW)
    old = TrainingProgress(run=1, step=9, step_time=NOW, observed_at=NOW)
    failing = {"store_failing_since": NOW.timestamp() + 3, "store_why": "503 from the store"}
    found = due(status(old, last_save=saved), heard(11.0, **failing))
    assert found
    assert found.changes_words
    assert found.status.progress
    assert found.status.progress.storage_failing_since == NOW + timedelta(seconds=3)
    assert found.status.progress.storage_why == "503 from the store"
    assert changes_words(found.status, heard(25.0)) is None, "it has saved nothing since"
    assert changes_words(found.status, heard(25.0, commit_step=10, commit_at=NOW.timestamp() + 24))


def test_another_pod_that_has_not_tried_to_save_does_not_end_what_is_said_of_the_store() -> None:
    """Rank 0 has moved while the store was down."""
    saved = LastSave(step=8, time=NOW, observed_at=NOW)
    old = TrainingProgress(
        run=1, step=9, step_time=NOW, storage_failing_since=NOW, storage_why="503 from the store", observed_at=NOW
    )
    moved = shown(status(old, last_save=saved), heard(MINUTE, commit_step=8, commit_at=NOW.timestamp() + 50))
    assert moved
    assert moved.progress
    assert (moved.progress.storage_failing_since, moved.progress.storage_why) == (NOW, "503 from the store")
    saves = shown(status(old, last_save=saved), heard(MINUTE, commit_step=10, commit_at=NOW.timestamp() + 50))
    assert saves
    assert saves.progress
    assert saves.progress.storage_failing_since is None


def test_times_by_a_pods_clock_are_kept_as_they_were_first_shown() -> None:
    saved = LastSave(step=8, time=NOW, observed_at=NOW)
    old = TrainingProgress(run=1, step=9, storage_failing_since=NOW, observed_at=NOW)
    ahead = NOW.timestamp() + 3600
    found = shown(
        status(old, last_save=saved), heard(MINUTE, commit_step=8, commit_at=ahead, store_failing_since=ahead)
    )
    assert found
    assert found.progress
    assert found.last_save
    assert (found.last_save.time, found.progress.storage_failing_since) == (NOW, NOW)


def test_the_pace_and_the_beginning_stay_known_while_runs_follow_one_another() -> None:
    old = TrainingProgress(run=0, step=9, began_time=NOW, seconds_per_step=2.0, observed_at=NOW)
    found = shown(status(old), heard(MINUTE))
    assert found
    assert found.progress
    assert (found.progress.began_time, found.progress.seconds_per_step) == (NOW, 2.0)


@pytest.mark.parametrize("seconds", [1e13, 9e15])
def test_no_pace_that_a_pod_reports_is_too_large_for_a_status(seconds: float) -> None:
    assert shown(status(), heard(step_seconds=seconds)) is not None
