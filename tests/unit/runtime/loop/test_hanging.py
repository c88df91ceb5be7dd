"""When a process hangs, with the clock in the test's hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from perdure.loop.hanging import AGAIN_SECONDS, LATE_LOOKS, LOOK_SECONDS, Hang, HangDetector, HangOver, HowFar
from perdure.wire.phase_limits import PHASE_SECONDS, STEP_TIMES, UNKNOWN_SECONDS, may_be_work
from perdure.wire.report import Standing, TrainerPhase

TRAINING, SAVING, EVALUATING = TrainerPhase.TRAINING, TrainerPhase.SAVING, TrainerPhase.EVALUATING
DAY = 86400.0


class Process:
    """One that is looked at as often as the detector wants it."""

    def __init__(self, given: float | None = None, training: float | None = None) -> None:
        self.now = 1000.0
        self.detector = HangDetector(given, training)
        self.mark = HowFar(TRAINING, 0)
        self.news: list[Hang | HangOver] = []

    def look(self) -> None:
        if found := self.detector.look(self.mark, self.now):
            self.news.append(found)

    def stands(self, seconds: float) -> None:
        """Without progress, and awake."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.detector.interval)
            self.look()

    def trains(self, steps: int, seconds: float) -> None:
        """So many steps, one after every `seconds`."""
        for _ in range(steps):
            self.stands(seconds)
            self.mark = replace(self.mark, step=self.mark.step + 1)
        self.look()

    def enters(self, phase: TrainerPhase) -> None:
        self.mark = replace(self.mark, phase=phase)
        self.look()


def training(given: float | None = None, step_seconds: float = 1.0) -> Process:
    process = Process(given)
    process.trains(20, step_seconds)
    assert not process.news
    return process


@pytest.mark.parametrize("phase", TrainerPhase)
def test_a_process_hangs_when_its_phase_has_lasted_for_its_limit_and_not_before(phase: TrainerPhase) -> None:
    process = training()
    process.enters(phase)
    limit = PHASE_SECONDS[phase]
    process.stands(min(limit, DAY) - LOOK_SECONDS)
    assert not process.news
    process.stands(2 * LOOK_SECONDS)
    assert [type(one) for one in process.news] == ([Hang] if limit < DAY else [])
    for hang in process.news:
        assert isinstance(hang, Hang)
        assert (hang.allowed, hang.mark) == (limit, process.mark)
        assert limit <= hang.seconds <= limit + LOOK_SECONDS


@pytest.mark.parametrize("step_seconds", [0.2, 7.0, 29.0, 31.0, 100.0])
def test_training_may_stand_for_five_minutes_or_for_ten_of_its_steps(step_seconds: float) -> None:
    process = training(step_seconds=step_seconds)
    limit = max(300.0, STEP_TIMES * step_seconds)
    process.stands(0.9 * limit)
    assert not process.news
    process.stands(0.2 * limit + LOOK_SECONDS)
    (hang,) = process.news
    assert isinstance(hang, Hang)
    assert hang.allowed == pytest.approx(limit, rel=0.1)


def test_the_first_step_may_compile() -> None:
    process = Process()
    process.look()
    process.stands(UNKNOWN_SECONDS - LOOK_SECONDS)
    assert not process.news
    process.stands(2 * LOOK_SECONDS)
    assert process.news


def test_the_time_of_a_save_is_no_part_of_a_step() -> None:
    process = training()
    process.enters(SAVING)
    process.stands(800)
    process.enters(TRAINING)
    process.trains(1, 1.0)
    process.stands(300 + LOOK_SECONDS)
    assert process.news


@pytest.mark.parametrize(
    ("place", "limit"),
    [(Standing.RUNS, 3600.0), (Standing.STANDS, 1800.0), (Standing.WAITS_FOR_RANKS, 0.0), (None, 0.0)],
)
def test_a_script_that_waits_for_no_rank_may_work_for_long_between_two_steps(
    place: Standing | None, limit: float
) -> None:
    seconds = (300.0, 1799.0, 1800.0, 3599.0, 3600.0)
    assert [one for one in seconds if may_be_work(TRAINING, place, one)] == [one for one in seconds if one < limit]
    assert [may_be_work(TRAINING, place, seconds, training=7200.0) for seconds in (7199.0, 7200.0)] == [True, False]
    assert not may_be_work(TRAINING, place, 20.0, given=20.0)
    assert not any(may_be_work(phase, place, 900.0) for phase in TrainerPhase if phase is not TRAINING)


def test_a_hang_is_news_again_after_as_long_as_is_given() -> None:
    process = Process()
    process.detector = HangDetector(again=AGAIN_SECONDS)
    process.trains(20, 1.0)
    process.stands(300 + 3 * AGAIN_SECONDS + LOOK_SECONDS)
    hangs = [one for one in process.news if isinstance(one, Hang)]
    assert [round(later.seconds - sooner.seconds) for sooner, later in pairwise(hangs)] == [60, 60, 60]
    process.trains(20, 1.0)
    assert [type(one) for one in process.news[len(hangs) :]] == [HangOver]
    process.stands(300 - LOOK_SECONDS)
    assert len(process.news) == len(hangs) + 1


def test_a_hang_goes_on_while_the_process_is_stopped() -> None:
    process = Process()
    process.detector = HangDetector(again=AGAIN_SECONDS)
    process.trains(20, 1.0)
    process.stands(300 + LOOK_SECONDS)
    process.now += DAY
    process.look()
    assert [type(one) for one in process.news] == [Hang, Hang]
    assert process.news[-1].seconds >= DAY + 300


def test_a_hang_is_news_once_and_so_is_its_end() -> None:
    process = training()
    process.stands(3000)
    process.trains(30, 1.0)
    process.stands(3000)
    first, over, second = process.news
    assert isinstance(first, Hang)
    assert isinstance(over, HangOver)
    assert isinstance(second, Hang)
    assert 2990 <= over.seconds <= 3010


def test_batches_are_progress_without_steps() -> None:
    process = training()
    process.enters(EVALUATING)
    for _ in range(10):
        process.stands(3000)
        process.mark = replace(process.mark, others=process.mark.others + 1)
        process.look()
    assert not process.news


@pytest.mark.parametrize("before", [0.0, 150.0, 299.0])
def test_a_process_that_was_stopped_gets_its_time_again(before: float) -> None:
    process = training()
    process.stands(before)
    process.now += DAY
    process.look()
    process.stands(300 - LOOK_SECONDS)
    assert not process.news
    process.stands(2 * LOOK_SECONDS)
    assert process.news


def test_looks_that_are_late_by_little_hide_no_hang() -> None:
    process = training()
    for _ in range(40):
        process.now += (LATE_LOOKS - 1) * LOOK_SECONDS
        process.look()
    assert process.news


def test_a_given_limit_counts_in_all_phases_that_have_one() -> None:
    for phase in TrainerPhase:
        process = training(given=20.0)
        process.enters(phase)
        process.stands(30.0)
        assert bool(process.news) == (PHASE_SECONDS[phase] < DAY)


def test_a_short_limit_is_looked_at_more_often() -> None:
    intervals = [HangDetector(given).interval for given in (1.0, 10.0, 1000.0, None)]
    assert all(shorter <= longer for shorter, longer in pairwise(intervals))
    assert intervals[0] < 0.1
    assert HangDetector(1e-9).interval > 0.01


def test_a_limit_for_training_is_for_training_alone_and_not_for_a_first_step() -> None:
    process = Process(training=60.0)
    process.stands(UNKNOWN_SECONDS - 1)
    assert not process.news
    process.mark = replace(process.mark, step=1)
    process.trains(20, 1.0)
    process.enters(SAVING)
    process.stands(PHASE_SECONDS[SAVING] - 5)
    process.enters(TRAINING)
    process.trains(20, 1.0)
    assert not process.news
    process.stands(61.0)
    assert [type(one) for one in process.news] == [Hang]


def test_steps_that_take_longer_than_the_limit_for_training_are_no_hang() -> None:
    process = Process(training=60.0)
    process.trains(5, 50.0)
    process.stands(STEP_TIMES * 40.0)
    assert not process.news


def test_after_a_live_hand_over_the_first_step_may_take_as_long_as_that_of_a_new_run() -> None:
    """A new rank compiles it, and the others wait."""
    process = Process(training=60.0)
    process.trains(20, 1.0)
    process.mark = replace(process.mark, run=1)
    process.look()
    process.stands(UNKNOWN_SECONDS - 5)
    assert not process.news


@pytest.mark.parametrize("phase", [TrainerPhase.RESTORING, SAVING, TRAINING])
def test_no_phase_has_less_than_a_long_limit_for_training(phase: TrainerPhase) -> None:
    process = Process(training=7200.0)
    process.enters(phase)
    process.stands(7190.0)
    assert not process.news
