"""When a process hangs, with the clock in the test's hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from perdure.loop.hanging import LATE_LOOKS, LOOK_SECONDS, Hang, HangDetector, HangOver, HowFar
from perdure.wire.phase_limits import PHASE_SECONDS, STEP_TIMES, UNKNOWN_SECONDS
from perdure.wire.report import TrainerPhase

TRAINING, SAVING, EVALUATING = TrainerPhase.TRAINING, TrainerPhase.SAVING, TrainerPhase.EVALUATING
DAY = 86400.0


class Process:
    """One that is looked at as often as the detector wants it."""

    def __init__(self, given: float | None = None) -> None:
        self.now = 1000.0
        self.detector = HangDetector(given)
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
