"""The figures that a trainer tells its agent, over a real pipe, with the clock in the test's hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perdure.loop.telemetry.events import (
    Event,
    GoalReached,
    HandoverStop,
    Leaving,
    PhaseBegan,
    Reported,
    Resumed,
    SaveWaited,
    Stepped,
)
from perdure.loop.telemetry.figures import FiguresToAgent
from perdure.loop.telemetry.own_time import WINDOW_SECONDS, OwnTime, Scheduled
from perdure.wire import CommitRef, ExitKind
from perdure.wire.account import RunAccount
from perdure.wire.channel import CommitDone, Exiting, Figures, SessionOpened, TookOver, TrainerReport, read_report
from perdure.wire.report import VALUES_KEPT, DeathCost, TrainerPhase
from perdure.wire.scaling import ScalingHints
from tests.support.hints import HINTS

TRAINING, SAVING, EVALUATING = TrainerPhase.TRAINING, TrainerPhase.SAVING, TrainerPhase.EVALUATING


class Trainer:
    """Its sink, and what its agent reads."""

    def __init__(self, reader: int, writer: int) -> None:
        self.now = 1000.0
        self.done: float | None = None
        self.save_seconds: float | None = None
        self.cost: tuple[DeathCost | None, int | None] = (None, None)
        self.steps = 0
        self._reader = reader
        self.ran = 0.0
        own_time = OwnTime(now=lambda: self.now, ran=lambda: self.ran, counted=lambda _: Scheduled(self.ran, 0.0))
        self.sink = FiguresToAgent(
            writer,
            4,
            lambda: self.done,
            lambda: self.save_seconds,
            lambda: self.cost,
            now=lambda: self.now,
            own_time=own_time,
        )

    def trains(self, steps: int, seconds: float) -> None:
        """So many steps with 8 samples on each rank, one after every `seconds`."""
        for _ in range(steps):
            self.now += seconds
            self.steps += 1
            self.sink.take(Stepped(self.steps, 0, range(8)))

    def spends(self, phase: TrainerPhase, seconds: float) -> None:
        self.sink.take(PhaseBegan(phase))
        self.now += seconds
        self.ran += seconds
        self.sink.take(SaveWaited(seconds) if phase is SAVING else PhaseBegan(TRAINING))

    def told(self) -> list[TrainerReport | None]:
        try:
            return [read_report(line) for line in os.read(self._reader, 1 << 16).splitlines()]
        except BlockingIOError:
            return []


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    yield Trainer(reader, writer)
    os.close(reader)
    os.close(writer)


def test_rates_of_all_ranks_are_told_every_three_seconds_and_not_before(trainer: Trainer) -> None:
    trainer.trains(12, 0.25)
    assert trainer.told() == []
    trainer.trains(1, 0.25)
    assert trainer.told() == [Figures(samples_per_second=4 * 8 / 0.25, step_seconds=0.25)]
    trainer.trains(23, 0.5)
    assert [one for one in trainer.told() if one != Figures(samples_per_second=64.0, step_seconds=0.5)] == []


def test_a_step_longer_than_that_is_told_at_its_end(trainer: Trainer) -> None:
    trainer.trains(2, 20.0)
    assert trainer.told() == [Figures(samples_per_second=1.6, step_seconds=20.0)]


@pytest.mark.parametrize("phase", [SAVING, EVALUATING])
def test_saves_and_evaluations_are_told_at_once_and_no_part_of_a_step(trainer: Trainer, phase: TrainerPhase) -> None:
    trainer.trains(2, 1.0)
    trainer.spends(phase, 100.0)
    begun, ended = trainer.told()
    stall = 100.0 if phase is SAVING else None
    assert (begun, ended) == (Figures(phase), Figures(save_stall_seconds=stall))
    trainer.trains(2, 1.0)
    assert trainer.told() == [Figures(samples_per_second=32.0, step_seconds=1.0, save_stall_seconds=stall)]


def test_after_a_save_within_an_evaluation_the_script_still_evaluates(trainer: Trainer) -> None:
    trainer.sink.take(PhaseBegan(EVALUATING))
    trainer.spends(SAVING, 1.0)
    assert [one.phase for one in trainer.told() if isinstance(one, Figures)] == [EVALUATING, SAVING, EVALUATING]


def test_an_evaluation_that_the_script_leaves_without_its_end_is_over_at_the_next_step(trainer: Trainer) -> None:
    trainer.sink.take(PhaseBegan(EVALUATING))
    trainer.trains(1, 1.0)
    assert [one.phase for one in trainer.told() if isinstance(one, Figures)] == [EVALUATING, TRAINING]


def test_the_time_that_is_left_follows_from_the_progress_of_this_process(trainer: Trainer) -> None:
    trainer.done, trainer.save_seconds = 0.5, 2.0  # it has resumed there
    trainer.spends(SAVING, 10.0)
    trainer.done = 0.75
    trainer.spends(SAVING, 10.0)
    first, second, third, fourth = trainer.told()
    assert first == Figures(SAVING, required_grace_seconds=2.0, progress=0.5)
    assert isinstance(second, Figures)
    assert second.remaining_seconds is None
    assert isinstance(third, Figures)
    assert isinstance(fourth, Figures)
    assert (third.remaining_seconds, fourth.remaining_seconds) == (10.0, 20.0)


def test_a_loop_that_ends_only_when_somebody_stops_it_has_no_time_left(trainer: Trainer) -> None:
    trainer.done = 0.0
    trainer.trains(2, 10.0)
    trainer.done = 20 / sys.maxsize
    trainer.trains(1, 10.0)
    *_, last = trainer.told()
    assert isinstance(last, Figures)
    assert (last.progress, last.remaining_seconds) == (trainer.done, None)


def test_after_a_live_move_the_new_number_of_ranks_counts(trainer: Trainer) -> None:
    trainer.trains(2, 1.0)
    trainer.trains(3, 1.0)
    trainer.told()
    trainer.sink.take(TookOver(2, 0, 2, 2))
    (moved,) = trainer.told()
    assert isinstance(moved, Figures)
    assert moved.step_seconds is None, "a new rank may compile its first step"
    trainer.trains(1, 60.0)
    assert trainer.told() == []
    trainer.trains(3, 1.0)
    (told,) = trainer.told()
    assert isinstance(told, Figures)
    assert (told.samples_per_second, told.step_seconds) == (16.0, 1.0)


def test_what_a_death_costs_is_told_with_the_figures_and_anew_once_members_have_changed(trainer: Trainer) -> None:
    trainer.cost = (DeathCost.STEPS, 3)
    trainer.trains(4, 1.0)
    trainer.cost = (DeathCost.UNTIL_MIRRORED, None)
    trainer.sink.take(TookOver(2, 0, 2, 4))
    trainer.trains(4, 1.0)
    told = [(one.death_cost, one.death_steps) for one in trainer.told() if isinstance(one, Figures)]
    assert told == [(DeathCost.STEPS, 3), (None, None), (DeathCost.UNTIL_MIRRORED, None)]


def test_where_a_run_begins_it_is_not_known_yet_what_a_death_costs(trainer: Trainer) -> None:
    """Its mirror, and its images, hold nothing yet."""
    trainer.cost = (DeathCost.SINCE_COMMIT, None)
    trainer.sink.take(SessionOpened(1))
    trainer.sink.take(Resumed(0))
    trainer.cost = (DeathCost.STEPS, 3)
    trainer.trains(4, 1.0)
    told = [(one.death_cost, one.death_steps) for one in trainer.told() if isinstance(one, Figures)]
    assert told == [(None, None), (DeathCost.STEPS, 3)]


def test_what_part_of_its_time_is_its_own_is_told_without_saves_and_evaluations(trainer: Trainer) -> None:
    def trains(seconds: float) -> None:
        for _ in range(round(seconds)):
            trainer.ran += 0.75
            trainer.trains(1, 1.0)

    def told() -> set[float | None]:
        return {one.own_share for one in trainer.told() if isinstance(one, Figures)}

    trains(1 + WINDOW_SECONDS / 2)
    for phase in (SAVING, EVALUATING):
        trainer.spends(phase, 100.0)
    assert told() == {None}
    trains(WINDOW_SECONDS / 2)
    trainer.spends(SAVING, 1.0)
    assert told() == {None, 0.75}
    trainer.sink.take(TookOver(2, 0, 2, 4))
    assert told() == {None}


@pytest.mark.parametrize("fd", [None, -1], ids=["alone", "below an agent that is gone"])
def test_the_phase_is_known_with_and_without_an_agent(fd: int | None) -> None:
    sink, phases = (
        FiguresToAgent(fd, 1, lambda: None, lambda: None, lambda: (None, None)),
        list[TrainerPhase](),
    )
    events: list[Event] = [PhaseBegan(EVALUATING), PhaseBegan(SAVING), SaveWaited(1.0), Stepped(4, 0)]
    events += [PhaseBegan(SAVING), SaveWaited(1.0), CommitDone(CommitRef(2, 4)), CommitDone(CommitRef(3, 4), goal=True)]
    for event in events:
        sink.take(event)
        phases.append(sink.phase(4))
    leaving = TrainerPhase.LEAVING
    assert phases == [EVALUATING, SAVING, EVALUATING, TRAINING, SAVING, TRAINING, TRAINING, leaving]


@pytest.mark.parametrize("event", [Leaving(4, "a drain"), GoalReached(4), Exiting(ExitKind.FAILED, 4)])
def test_a_process_leaves_until_it_makes_another_step(event: Event) -> None:
    sink = FiguresToAgent(None, 1, lambda: None, lambda: None, lambda: (None, None))
    sink.take(event)
    assert (sink.phase(4), sink.phase(5)) == (TrainerPhase.LEAVING, TRAINING)


def test_after_the_ending_nothing_is_told(trainer: Trainer) -> None:
    trainer.sink.take(Exiting(ExitKind.CHECKPOINTED, 1))
    trainer.trains(9, 1.0)
    trainer.spends(SAVING, 1.0)
    assert trainer.told() == []


def values(trainer: Trainer) -> list[tuple[str, float]]:
    """In the newest figures, in their order."""
    trainer.spends(SAVING, 0.0)
    newest = trainer.told()[-1]
    assert isinstance(newest, Figures)
    return list(newest.values.items())


def test_the_scripts_newest_values_are_told_and_those_of_a_name_replaced(trainer: Trainer) -> None:
    trainer.sink.take(Reported(1, 0, {"loss": 0.5, "note": "warm", "epoch": 1}))
    trainer.sink.take(Reported(2, 0, {"accuracy": 0.75}))
    trainer.sink.take(Reported(3, 0, {"loss": 0.25}))
    assert values(trainer) == [("loss", 0.25), ("accuracy", 0.75), ("epoch", 1.0)]


def test_a_value_that_is_no_number_any_more_is_not_told_as_what_it_was(trainer: Trainer) -> None:
    trainer.sink.take(Reported(1, 0, {"loss": 0.5, "norm": 1.0}))
    trainer.sink.take(Reported(2, 0, {"loss": float("nan"), "norm": None}))
    assert values(trainer) == []


def test_of_many_values_those_reported_last_are_told_and_of_one_call_the_first(trainer: Trainer) -> None:
    for number in range(VALUES_KEPT):
        trainer.sink.take(Reported(number, 0, {f"before_{number}": 1.0}))
    trainer.sink.take(Reported(9, 0, {f"now_{number}": 2.0 for number in range(2 * VALUES_KEPT)}))
    assert values(trainer) == [(f"now_{number}", 2.0) for number in range(VALUES_KEPT)]


def test_a_script_whose_batch_is_chosen_tells_with_all_figures_what_is_in_use_and_measured(trainer: Trainer) -> None:
    batch, scaling = 256, list[ScalingHints]()
    trainer.sink.tell_scaling(lambda: batch, lambda: scaling[-1] if scaling else None)
    told = []
    for chosen in (256, 512):
        batch = chosen
        trainer.trains(5, 1.0)
        told += [(one.batch, one.scaling) for one in trainer.told() if isinstance(one, Figures)]
        scaling.append(HINTS)
    assert told == [(256, None), (512, HINTS), (512, HINTS)]


def stands(trainer: Trainer) -> list[bool]:
    return [one.stands for one in trainer.told() if isinstance(one, Figures)]


def test_ranks_that_stand_for_a_hand_over_are_told_until_they_train_on(trainer: Trainer) -> None:
    trainer.sink.take(HandoverStop(True))
    trainer.sink.take(HandoverStop(False))
    trainer.spends(SAVING, 0.0)
    assert stands(trainer) == [True, False, False, False]


def test_what_a_death_costs_is_not_told_at_once_after_members_have_changed(trainer: Trainer) -> None:
    trainer.cost = (DeathCost.NO_STEP, None)
    for event in (HandoverStop(True), TookOver(2, 0, 2, 5), HandoverStop(False)):
        trainer.sink.take(event)
    told = [(one.stands, one.death_cost) for one in trainer.told() if isinstance(one, Figures)]
    assert told == [(True, DeathCost.NO_STEP), (False, None)]


def accounts(trainer: Trainer) -> tuple[RunAccount, ...]:
    return [one for one in trainer.told() if isinstance(one, Figures)][-1].accounts


def test_what_a_run_did_with_its_time_is_told_with_the_figures(trainer: Trainer) -> None:
    trainer.sink.take(SessionOpened(1))
    trainer.sink.take(Resumed(0, {"restore": 0.5, "import": 9.0}))
    assert accounts(trainer) == (RunAccount(1, 0, 0, restore=0.5),)
    trainer.sink.begin_draw()
    trainer.now += 0.25
    trainer.sink.end_draw()
    trainer.trains(4, 0.5)
    trainer.spends(SAVING, 1.5)
    trainer.spends(EVALUATING, 2.0)
    trainer.sink.take(CommitDone(CommitRef(1, 4)))
    trainer.trains(8, 0.5)
    done = RunAccount(1, 0, 12, productive=6.0, restore=0.5, data=0.25, save=1.5, evaluation=2.0)
    trainer.sink.take(TookOver(2, 0, 4, 12))
    closed, new = accounts(trainer)
    assert closed == replace(done, unsaved=4.0, unsaved_steps=8)
    assert new == RunAccount(2, 12, 12, live=True, unsaved=4.0, unsaved_steps=8)


def test_the_last_save_and_what_follows_the_goal_have_their_own_time(trainer: Trainer) -> None:
    trainer.sink.take(SessionOpened(1))
    trainer.sink.take(Resumed(0))
    trainer.trains(1, 1.0)
    trainer.sink.ledger.does("save")
    trainer.now += 2.0
    trainer.sink.take(CommitDone(CommitRef(1, 1), goal=True))
    trainer.now += 30.0
    trainer.sink.take(GoalReached(1))
    trainer.now += 0.5
    (last,) = trainer.sink.ledger.accounts
    assert last == RunAccount(1, 0, 1, productive=1.0, save=2.5, evaluation=30.0)


def test_a_newcomer_gives_account_of_what_it_trains_alone(trainer: Trainer) -> None:
    trainer.sink.take(Resumed(40, {"restore": 0.5}))
    trainer.now += 20.0
    trainer.spends(SAVING, 0.0)
    assert accounts(trainer) == ()
    trainer.sink.take(TookOver(2, 1, 4, 40))
    assert accounts(trainer) == (RunAccount(2, 40, 40, live=True, joined=True),)
