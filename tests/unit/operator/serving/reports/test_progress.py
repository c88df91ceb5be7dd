"""What status shows of reports: numbers once a minute, and at once what changes its words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire.account import RunAccount
from perdure.wire.phase_limits import UNKNOWN_SECONDS, WORK_SECONDS
from perdure.wire.report import DeathCost, HandoverAct, Standing, TrainerPhase
from perdure.wire.scaling import ScalingHints
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.api.status import (
    LastSave,
    MoveAct,
    SecondsSpent,
    SuspectDoes,
    TimeAccount,
    TimeGoesTo,
    TrainingJobStatus,
    TrainingPhase,
    TrainingProgress,
)
from perdure_operator.decide.health import SILENT
from perdure_operator.decide.suspects import PATIENCE
from perdure_operator.serving.reports import progress
from perdure_operator.serving.reports.heard import Received
from perdure_operator.serving.reports.progress import EVERY, Shown
from tests.support.hints import HINTS
from tests.support.raw import NOW
from tests.support.reporting import job_of, report, sender, trains, trains_as

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
        found = progress.shown(known, POLICY, waiting, lambda: [waiting, says(1, after - SILENT.total_seconds())])
        assert found is not None
        assert found.status.progress is not None
        return [one.does for one in found.status.progress.suspects]

    assert named(PATIENCE.total_seconds() - 1) == []
    assert named(PATIENCE.total_seconds()) == [SuspectDoes.NOT_HEARD]


def test_a_member_whose_reports_have_stopped_is_not_said_to_do_what_it_did_then() -> None:
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))
    hang = {"hangs_since": NOW.timestamp(), "hangs_in": Standing.WAITS_FOR_RANKS}

    def named(silent: float, **fields: Any) -> list[tuple[int, SuspectDoes]]:
        said = [replace(says(0, 4000, **hang), hangs_at=NOW), says(1, 4000 - silent, **fields)]
        found = progress.shown(known, POLICY, said[0], lambda: said)
        assert found is not None
        assert found.status.progress is not None
        assert not found.status.progress.may_be_work
        return [(one.rank, one.does) for one in found.status.progress.suspects]

    late = SILENT.total_seconds()
    assert named(late - 1) == [(1, SuspectDoes.SAYS_NOTHING)]
    assert named(late) == [(1, SuspectDoes.NOT_HEARD)]
    assert named(late, hangs_since=1.0, hangs_in=Standing.STANDS) == [(1, SuspectDoes.NOT_HEARD)]
    assert named(late, hangs_since=1.0, hangs_in=Standing.RUNS, hang_may_be_work=True) == [(1, SuspectDoes.NOT_HEARD)]
    assert named(late, **hang) == [(1, SuspectDoes.NOT_HEARD)], "it waited then"


def test_a_healthy_rank_that_evaluates_for_long_while_another_waits_for_it_is_not_named() -> None:
    """As with the Hugging Face Trainer and shards of unlike sizes; and when rank 0 evaluates alone."""
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))
    waits = {"hangs_since": NOW.timestamp(), "hangs_in": Standing.WAITS_FOR_RANKS, "hang_may_be_work": False}
    works = {"hangs_since": NOW.timestamp(), "hangs_in": Standing.RUNS}

    def found(first: dict[str, Any], second: dict[str, Any]) -> tuple[bool, list[int]]:
        said = [replace(says(0, 400, **first), hangs_at=NOW), replace(says(1, 400, **second), hangs_at=NOW)]
        shown = progress.shown(known, POLICY, said[0], lambda: said)
        assert shown is not None
        assert shown.status.progress is not None
        return shown.status.progress.may_be_work, [one.rank for one in shown.status.progress.suspects]

    long_work = works | {"hang_may_be_work": True}
    assert found(waits, long_work) == (True, [])
    assert found(long_work, waits) == (True, [])
    assert found(waits, works | {"hang_may_be_work": False}) == (False, [1]), "for longer than any work"
    assert found(waits, works) == (False, [1]), "of an older runtime"


def test_a_rank_0_that_waits_is_no_alarm_before_all_have_said_what_they_do_or_had_time_for_it() -> None:
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))

    def unsure(after: float, *others: Received) -> bool:
        waiting = replace(says(0, after, hangs_since=1.0, hangs_in=Standing.WAITS_FOR_RANKS), hangs_at=NOW)
        shown = progress.shown(known, POLICY, waiting, lambda: [waiting, *others])
        assert shown is not None
        assert shown.status.progress is not None
        return shown.status.progress.may_be_work

    assert unsure(PATIENCE.total_seconds() - 1)
    assert unsure(PATIENCE.total_seconds() - 1, says(1, 9))
    assert not unsure(PATIENCE.total_seconds() - 1, says(1, 9, hangs_since=1.0, hangs_in=Standing.STANDS))
    assert not unsure(PATIENCE.total_seconds(), says(1, 9))
    assert not unsure(PATIENCE.total_seconds(), says(1, -SILENT.total_seconds())), "heard in this run, and then frozen"


def may_be_work(known: TrainingJobStatus, *said: Received) -> bool:
    """What is shown by these reports, of which the first counts."""
    shown = progress.shown(known, POLICY, said[0], lambda: said)
    assert shown is not None
    assert shown.status.progress is not None
    return shown.status.progress.may_be_work


def says_it_waits(after: float, rank: int = 0, **fields: Any) -> Received:
    """It says since NOW that it waits for other ranks."""
    hang = {"hangs_since": 1.0, "hangs_in": Standing.WAITS_FOR_RANKS}
    return replace(says(rank, after, **hang | fields), hangs_at=NOW)


def test_a_member_that_has_never_reported_in_the_run_may_be_at_work_for_as_long_as_anything_unknown() -> None:
    """Its pod may be older than reports, or have no token: rank 0 evaluates alone, and rank 1 stands in for it."""
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))
    assert may_be_work(known, says_it_waits(UNKNOWN_SECONDS - 1, rank=1))
    assert not may_be_work(known, says_it_waits(UNKNOWN_SECONDS, rank=1))


def test_a_member_that_sees_progress_of_its_own_may_be_at_work_for_an_hour_while_others_wait() -> None:
    """It evaluates or saves, which may take longer than training, or its own limit is longer. One that polls for ever
    is named at last."""
    known = status(TrainingProgress(run=1, step=10, observed_at=NOW, began_time=NOW, step_time=NOW))
    hour = WORK_SECONDS[Standing.RUNS]
    for after, expected in ((PATIENCE.total_seconds(), True), (hour - 1, True), (hour, False)):
        assert may_be_work(known, says_it_waits(after), says(1, after, watched=True)) is expected
        assert may_be_work(known, says_it_waits(after, rank=1), says(0, after, watched=True)) is expected
    late = PATIENCE.total_seconds()
    assert not may_be_work(known, says_it_waits(late), says(1, late, watched=False)), (
        "an extension holds its interpreter"
    )
    assert not may_be_work(known, says_it_waits(late), says(1, late - SILENT.total_seconds(), watched=True))
    assert not may_be_work(known, says_it_waits(late), says_it_waits(late, rank=1, watched=True)), "all wait"
    stands = says_it_waits(late, hangs_in=Standing.STANDS, watched=True)
    assert not may_be_work(known, stands, says(1, late, watched=True)), "it waits for nobody"


def test_a_new_leader_knows_from_status_of_a_hang_and_ends_no_alarm() -> None:
    def unsure(**fields: Any) -> bool:
        old = {"run": 1, "step": 10, "observed_at": NOW, "began_time": NOW, "step_time": NOW} | fields
        known = status(TrainingProgress.model_validate(old))
        return may_be_work(known, replace(says_it_waits(MINUTE), hangs_at=None), says(1, MINUTE))

    assert not unsure(hang_time=NOW)
    assert unsure(hang_time=NOW, may_be_work=True)
    assert unsure(hang_time=NOW, run=0)
    assert unsure()


def test_a_process_that_looks_at_itself_is_known_from_the_report_and_for_its_run() -> None:
    def watched(known: TrainingJobStatus, received: Received) -> float | None:
        found = shown(known, received)
        assert found
        assert found.progress
        time = found.progress.watched_time
        return None if time is None else (time - NOW).total_seconds()

    old = TrainingProgress(run=1, step=9, watched_time=NOW, observed_at=NOW)
    assert watched(status(), heard(MINUTE, watched=True)) == MINUTE
    assert watched(status(old), heard(MINUTE, watched=False)) == 0
    assert watched(status(old), heard(MINUTE)) == 0
    assert watched(status(old.model_copy(update={"run": 0})), heard(MINUTE)) is None


def test_who_stands_in_for_a_silent_rank_0_is_known_from_the_plan_and_changes_words() -> None:
    old = TrainingProgress(run=1, step=10, observed_at=NOW)
    other = replace(says(1, MINUTE), report=report(rank=0))
    found = progress.shown(status(old), POLICY, other)
    assert found
    assert found.status.progress
    assert (found.status.progress.rank, found.changes_words) == (1, True)
    back = progress.shown(found.status, POLICY, says(0, 2 * MINUTE))
    assert back
    assert back.status.progress
    assert (back.status.progress.rank, back.changes_words) == (0, True)
    left = replace(other, sender=replace(other.sender, uid="of a pod that has left"))
    assert progress.shown(status(old), POLICY, left) is None


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


TRIO = trains_as(3)


def of_three(after: float, *own: float | None, silent: float = 0.0, **fields: Any) -> list[Received]:
    """What three members have said by then; rank 2 was silent for so long."""
    at = NOW + timedelta(seconds=after)
    return [
        Received(
            sender(TRIO, rank),
            report(rank=rank, own_share=share, **fields),
            rank == 0,
            at - timedelta(seconds=silent if rank == 2 else 0.0),
        )
        for rank, share in enumerate(own)
    ]


def looked(known: TrainingJobStatus, said: list[Received]) -> Shown | None:
    return progress.shown(known, POLICY, said[0], lambda: said)


def training_trio(**fields: Any) -> TrainingJobStatus:
    known = job_of(TRIO).status
    assert known is not None
    trained = {"began_time": NOW - timedelta(hours=1), "step_time": NOW, "observed_at": NOW}
    made = TrainingProgress.model_validate({"run": 1, "step": 9, **trained, **fields})
    return known.model_copy(update={"progress": made})


def slow(found: Shown | None) -> list[tuple[int, bool]]:
    assert found is not None
    assert found.status.progress is not None
    return [(one.rank, one.named) for one in found.status.progress.stragglers]


def test_a_slow_member_is_shown_at_once_named_after_a_minute_and_forgotten_at_once() -> None:
    known = training_trio()
    first = looked(known, of_three(12, 0.3, 0.9, 0.3))
    assert first is not None
    assert (slow(first), first.changes_words) == ([(1, False)], False)
    waits = looked(known, of_three(12, 0.3, 0.9, 0.3, data_share=0.6))
    assert waits
    assert waits.status.progress
    assert [one.data_percent for one in waits.status.progress.stragglers] == [60]
    assert looked(first.status, of_three(12 + 59, 0.3, 0.9, 0.3)) is None
    second = looked(first.status, of_three(12 + 60, 0.3, 0.9, 0.3))
    assert second is not None
    assert (slow(second), second.changes_words) == ([(1, True)], True)
    assert looked(second.status, of_three(12 + 90, 0.3, 0.85, 0.3)) is None, "numbers alone wait for their minute"
    third = looked(second.status, of_three(12 + 90, 0.3, 0.3, 0.3))
    assert third is not None
    assert (slow(third), third.changes_words) == ([], True)


def test_a_slow_member_stays_named_in_a_cluster_so_large_that_members_report_every_five_minutes() -> None:
    known = training_trio()
    for after in range(12, 1200, 60):
        at = [after if rank == 0 else after - (after - 100 * rank) % 300 for rank in range(3)]
        said = [
            replace(one, at=NOW + timedelta(seconds=at[number]), period=300.0 if number else 60.0)
            for number, one in enumerate(of_three(after, 0.3, 0.9, 0.3))
        ]
        found = looked(known, said)
        known = found.status if found else known
        assert known.progress
        assert [(one.rank, one.named) for one in known.progress.stragglers] == [(1, after >= 72)]


def test_a_new_leader_knows_from_status_since_when_a_member_is_slow() -> None:
    first = looked(training_trio(), of_three(12, 0.3, 0.9, 0.3))
    assert first is not None
    stored = TrainingJobStatus.model_validate_json(first.status.model_dump_json(by_alias=True))
    assert slow(looked(stored, of_three(72, 0.3, 0.9, 0.3))) == [(1, True)]


def test_what_was_said_of_another_run_or_by_a_silent_member_names_nobody() -> None:
    first = looked(training_trio(), of_three(12, 0.3, 0.9, 0.3))
    assert first is not None
    assert slow(looked(first.status, of_three(72, 0.3, 0.9, 0.3, silent=SILENT.total_seconds()))) == []
    assert slow(looked(first.status, of_three(72, 0.3, 0.9, 0.3, silent=SILENT.total_seconds() - 1))) == [(1, True)]
    late = SILENT.total_seconds()
    assert slow(looked(first.status, of_three(12 + late, 0.3, 0.9, 0.3))) == [(1, False)], "for long nobody looked"
    earlier = training_trio(run=0, stragglers=first.status.progress and first.status.progress.stragglers)
    assert slow(looked(earlier, of_three(72, 0.3, 0.9, 0.3))) == [(1, False)]


def test_members_whose_runtime_is_older_say_nothing_of_their_own_time() -> None:
    assert slow(looked(training_trio(), of_three(60, None, 0.9, 0.3))) == []


def test_a_run_that_makes_no_progress_has_suspects_and_no_stragglers() -> None:
    first = looked(training_trio(), of_three(12, 0.3, 0.9, 0.3))
    assert first is not None
    hanging = of_three(72, 0.3, 0.9, 0.3, hangs_since=NOW.timestamp(), hangs_in=Standing.WAITS_FOR_RANKS)
    assert slow(looked(first.status, hanging)) == []


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


def test_pauses_between_steps_add_up_until_a_commit() -> None:
    def paused(known: TrainingJobStatus, received: Received) -> int | None:
        found = shown(known, received)
        assert found
        assert found.progress
        return found.progress.paused_seconds

    saved = LastSave(step=8, time=NOW, observed_at=NOW)
    times = {"step_time": NOW + timedelta(seconds=100), "observed_at": NOW + timedelta(seconds=1300)}
    evaluates = TrainingProgress.model_validate({"run": 1, "step": 9, "paused_seconds": 70, **times})
    assert paused(status(evaluates, last_save=saved), heard(1360, step=9)) == 70, "that goes on"
    assert paused(status(evaluates, last_save=saved), heard(1360)) == 1270
    later = saved.model_copy(update={"time": NOW + timedelta(seconds=200)})
    assert paused(status(evaluates, last_save=later), heard(1360)) == 1170
    commit = {"commit_step": 9, "commit_at": NOW.timestamp() + 1350}
    assert paused(status(evaluates, last_save=saved), heard(1360, **commit)) is None
    trains = evaluates.model_copy(update={"paused_seconds": None, "observed_at": NOW + timedelta(seconds=159)})
    assert paused(status(trains, last_save=saved), heard(1360)) is None


def test_the_beginning_stays_known_while_runs_follow_one_another_and_the_pace_does_not() -> None:
    """A new rank may compile its first step, and the others wait."""
    old = TrainingProgress(run=0, step=9, began_time=NOW, seconds_per_step=2.0, observed_at=NOW)
    found = shown(status(old), heard(MINUTE))
    assert found
    assert found.progress
    assert (found.progress.began_time, found.progress.seconds_per_step) == (NOW, None)
    again = shown(status(old.model_copy(update={"run": 1})), heard(MINUTE))
    assert again
    assert again.progress
    assert again.progress.seconds_per_step == 2.0


@pytest.mark.parametrize("seconds", [1e13, 9e15])
def test_no_pace_that_a_pod_reports_is_too_large_for_a_status(seconds: float) -> None:
    assert shown(status(), heard(step_seconds=seconds)) is not None


@pytest.mark.parametrize(
    ("fields", "live", "why", "grace"),
    [
        ({}, None, "", None),
        ({"live": True, "live_why": "of a run before", "required_grace_seconds": 0.0}, True, "", 0),
        ({"live": False, "live_why": "PERDURE_LIVE=no", "required_grace_seconds": 12.1}, False, "PERDURE_LIVE=no", 13),
    ],
    ids=["unknown", "it can", "it cannot"],
)
def test_whether_members_can_change_live_is_shown_and_the_grace_that_a_save_needs(
    fields: dict[str, Any], live: bool | None, why: str, grace: int | None
) -> None:
    found = shown(status(), heard(**fields))
    assert found
    assert found.progress
    assert (found.progress.live, found.progress.live_why, found.progress.required_grace_seconds) == (live, why, grace)


def test_the_scripts_values_and_the_stall_of_the_newest_save_are_shown_with_the_other_numbers() -> None:
    found = shown(status(), heard(values={"loss": 0.25}, save_stall_seconds=0.41234))
    assert found
    assert found.progress
    assert (found.progress.values, found.progress.save_stall_seconds) == ({"loss": 0.25}, 0.412)


def test_what_the_newest_save_took_is_shown_also_to_less_than_a_second() -> None:
    found = shown(status(), heard(required_grace_seconds=1.23456))
    assert found
    assert found.progress
    assert (found.progress.save_seconds, found.progress.required_grace_seconds) == (1.23, 2)


@pytest.mark.parametrize(
    ("batch", "hints", "percent"),
    [
        (256, HINTS, 100),
        (512, HINTS, 89),
        (4096, HINTS, 35),
        (512, None, None),
        (None, HINTS, None),
        (128, HINTS, None),
        (1024, replace(HINTS, noise=0.0), 25),
        (1024, replace(HINTS, noise=2.0**53), 100),
    ],
)
def test_the_batch_in_use_is_shown_with_what_its_samples_win(
    batch: int | None, hints: ScalingHints | None, percent: int | None
) -> None:
    found = shown(status(), heard(batch=batch, scaling=hints))
    assert found
    assert found.progress
    assert (found.progress.batch, found.progress.efficiency_percent) == (batch, percent)


def test_how_long_rank_0_waits_for_data_is_shown() -> None:
    found = shown(status(), heard(data_share=0.126))
    assert found
    assert found.progress
    assert found.progress.data_wait_percent == 13


def test_how_much_rank_0_works_itself_is_shown() -> None:
    found, nothing = shown(status(), heard(own_share=0.454)), shown(status(), heard())
    assert found
    assert found.progress
    assert found.progress.own_percent == 45
    assert nothing
    assert nothing.progress
    assert nothing.progress.own_percent is None


def test_a_new_act_of_a_hand_over_is_shown_at_once_and_is_no_change_of_words() -> None:
    old = TrainingProgress(run=1, step=9, step_time=NOW, phase=TrainingPhase.TRAINING, observed_at=NOW)
    assert due(status(old), heard(11.0, step=9)) is None
    found = due(status(old), heard(11.0, step=9, handover_act=HandoverAct.CONNECTING))
    assert found
    assert not found.changes_words
    assert found.status.progress
    assert found.status.progress.handover_act is MoveAct.CONNECTING


def test_accounts_of_time_are_counted_up_to_the_report_and_no_word_changes() -> None:
    told = RunAccount(1, 0, 10, productive=40.0, start=15.0, unfinished=3.0)
    known = status(time_account=TimeAccount(goes_to=TimeGoesTo.RUN, since=NOW))
    found = shown(known, heard(60, accounts=(told,)))
    assert found is not None
    assert found.time_account is not None
    assert found.time_account.spent == SecondsSpent(productive=40.0, start=15.0, unreported=2.0)
    assert (found.time_account.goes_to, found.time_account.since) == (TimeGoesTo.RUN, NOW)
    again = due(found, heard(60 + MINUTE, sequence=2, step=20, accounts=(replace(told, productive=102.0),)))
    assert again is not None
    assert again.status.time_account is not None
    assert again.status.time_account.spent == SecondsSpent(productive=102.0, start=15.0, unreported=2.0)


@pytest.mark.parametrize("accounts", [(), (RunAccount(7, 0, 10, productive=40.0),)], ids=["older-agent", "other-run"])
def test_without_an_account_of_its_run_a_report_says_nothing_of_time(accounts: tuple[RunAccount, ...]) -> None:
    known = status(time_account=TimeAccount(goes_to=TimeGoesTo.RUN, since=NOW))
    found = shown(known, heard(60, accounts=accounts))
    assert found is not None
    assert found.time_account == known.time_account
