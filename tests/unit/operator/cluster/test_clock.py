"""The API server's time by its answers: near it, never backwards, never in a jump because of a single wrong clock."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from perdure_operator.cluster.clock import ServerClock
from perdure_operator.cluster.protocol import Unavailable

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Scene:
    """A server, the line to it, and a machine whose own clock is `skew` off."""

    def __init__(self, skew: timedelta = timedelta(), phase: float = 0.3) -> None:
        self.elapsed = 0.0
        self.phase = phase
        self.skew = skew
        self.shift = timedelta()
        """How far the clock of the server that answers next is set wrong."""
        self.paused = 0.0
        """How long the machine stood still, which its monotonic clock does not count."""
        self.clock = ServerClock(monotonic=lambda: 5000.0 + self.elapsed - self.paused, fallback=self._own_clock)

    @property
    def true(self) -> datetime:
        return START + timedelta(seconds=self.elapsed + self.phase)

    def answer(self, *, there: float = 0.01, back: float = 0.01) -> None:
        sent = self.clock.monotonic()
        self.elapsed += there
        date = format_datetime((self.true + self.shift).replace(microsecond=0), usegmt=True)
        self.elapsed += back
        self.clock.heard(date, sent=sent)

    def answers(self, seconds: float, *, shift: timedelta) -> None:
        """One each second, from a server that is so far off."""
        self.shift, until = shift, self.elapsed + seconds
        while self.elapsed < until:
            self.answer(there=0.4, back=0.4)
            self.elapsed += 0.2
            with suppress(Unavailable):
                self.clock.now()

    def pause(self, seconds: float) -> None:
        """The machine stands still, and its own clock is not right again."""
        self.elapsed += seconds
        self.paused += seconds
        self.skew -= timedelta(seconds=seconds)

    def off(self) -> float:
        """From the server that answers."""
        return (self.clock.now() - self.true - self.shift).total_seconds()

    def astray(self) -> float:
        """From a clock that is right."""
        return (self.clock.now() - self.true).total_seconds()

    def _own_clock(self) -> datetime:
        return self.true + self.skew


@pytest.mark.parametrize("seconds", [-55, 55, 660])
def test_a_machine_whose_own_clock_is_near_or_ahead_begins_at_the_first_answer(seconds: int) -> None:
    scene = Scene(timedelta(seconds=seconds))
    assert scene.off() == pytest.approx(seconds)  # no answer yet
    scene.answer()
    assert abs(scene.off()) <= 0.53


def test_a_machine_whose_own_clock_is_minutes_behind_begins_there_and_follows_the_server_without_a_jump() -> None:
    scene = Scene(timedelta(minutes=-11))
    scene.answer()
    assert scene.off() == pytest.approx(-660, abs=1)
    scene.answers(60, shift=timedelta())
    assert scene.off() == pytest.approx(-630, abs=1)
    scene.answers(1280, shift=timedelta())
    assert abs(scene.off()) < 0.6


@pytest.mark.parametrize("hours", [-8, 8])
def test_a_machine_whose_own_clock_is_hours_off_has_no_time_until_answers_have_agreed_for_a_minute(hours: int) -> None:
    scene = Scene(timedelta(hours=hours))
    scene.answers(55, shift=timedelta())
    with pytest.raises(Unavailable):
        scene.clock.now()
    scene.answers(7, shift=timedelta())
    assert abs(scene.off()) < 0.6


@pytest.mark.parametrize("hours", [-8, 8])
def test_a_first_answer_that_is_hours_off_is_no_time_and_the_next_that_is_right_is(hours: int) -> None:
    scene = Scene()
    scene.answers(20, shift=timedelta(hours=hours))
    with pytest.raises(Unavailable):
        scene.clock.now()
    scene.answers(1, shift=timedelta())
    assert abs(scene.off()) < 0.6


@pytest.mark.parametrize("phase", [0.0, 0.2, 0.5, 0.99])
def test_one_answer_is_right_to_half_a_second_and_a_few_dozen_to_a_tenth(phase: float) -> None:
    scene = Scene(phase=phase)
    for _ in range(40):
        scene.answer(there=0.004, back=0.016)
        assert abs(scene.off()) <= 0.52
        scene.elapsed += 2.143
    assert abs(scene.off()) < 0.1


def test_time_never_runs_backwards_and_never_stands_still() -> None:
    scene = Scene(phase=0.9)
    told = []
    for number in range(200):
        scene.answer(there=0.3 * (number % 3), back=0.4 * (number % 2))
        scene.elapsed += 0.37
        told.append(scene.clock.now())
    assert all(before < after for before, after in itertools.pairwise(told))


def test_a_server_that_is_set_back_is_followed_slowly() -> None:
    scene = Scene()
    scene.answer()
    before = scene.clock.now()
    scene.shift = timedelta(seconds=-10)
    scene.answer()
    scene.elapsed += 4
    assert scene.clock.now() - before == pytest.approx(timedelta(seconds=2), abs=timedelta(seconds=0.1))
    scene.elapsed += 20
    assert abs(scene.off()) < 0.6


def test_a_server_that_is_set_forward_is_followed_without_a_jump() -> None:
    """What has 30 s left has 20 s left then, and is not over at once."""
    scene = Scene()
    scene.answer()
    before = scene.clock.now()
    scene.shift = timedelta(minutes=11)
    scene.answer()
    scene.elapsed += 20
    assert scene.clock.now() - before == pytest.approx(timedelta(seconds=30), abs=timedelta(seconds=0.1))
    scene.answers(1320, shift=timedelta(minutes=11))
    assert abs(scene.off()) < 0.6


@pytest.mark.parametrize("first", [0, 1, 20])
@pytest.mark.parametrize("hours", [-30, -1, -0.1, 0.01, 0.3, 1, 30])
def test_one_server_of_three_may_be_wrong_and_may_be_the_first_to_answer(hours: float, first: int) -> None:
    draw, scene, wrong = random.Random(0), Scene(), timedelta(hours=hours)  # noqa: S311 - any order
    for _ in range(first):
        scene.answers(1, shift=wrong)
        with suppress(Unavailable):
            assert scene.astray() < 37
    scene.answers(1, shift=timedelta())
    for _ in range(2000):
        assert abs(scene.astray()) < 37
        scene.answers(1, shift=wrong if draw.random() < 1 / 3 else timedelta())


@pytest.mark.parametrize("alone", [0, 62])
def test_a_clock_that_is_hours_behind_heals_although_one_server_of_three_is_wrong(alone: int) -> None:
    draw, wrong = random.Random(0), timedelta(hours=-30)  # noqa: S311 - any order
    scene = Scene(timedelta() if alone else timedelta(hours=-8))
    scene.answer()
    scene.answers(alone, shift=wrong)
    for _ in range(400):
        scene.answers(1, shift=wrong if draw.random() < 1 / 3 else timedelta())
    assert abs(scene.astray()) < 30


def test_a_server_that_is_wrong_and_alone_answers_for_a_while_makes_no_deadline_end_at_once() -> None:
    scene = Scene()
    scene.answers(60, shift=timedelta())
    scene.answers(40, shift=timedelta(hours=1))
    assert scene.astray() < 25
    scene.answers(60, shift=timedelta())
    assert abs(scene.astray()) < 1


@pytest.mark.parametrize("answered_first", [False, True])
@pytest.mark.parametrize("seconds", [20, 600, 40_000])
def test_a_pause_of_the_machine_is_a_real_jump_once_its_own_clock_shows_it_too(
    seconds: float, answered_first: bool
) -> None:
    scene = Scene(timedelta(seconds=3))
    scene.answers(60, shift=timedelta())
    scene.pause(seconds)
    if answered_first:
        scene.answers(1, shift=timedelta())
        assert scene.astray() < -15
    scene.skew = timedelta(seconds=3)
    scene.clock.now()
    scene.answers(1 if seconds < 3600 else 62, shift=timedelta())
    assert abs(scene.astray()) < 1


def test_a_pause_of_the_machine_is_caught_up_with_if_its_own_clock_does_not_show_it() -> None:
    scene = Scene()
    scene.answers(60, shift=timedelta())
    scene.pause(20)
    scene.answers(20, shift=timedelta())
    assert -11 < scene.astray() < -8
    scene.answers(25, shift=timedelta())
    assert abs(scene.astray()) < 1


def test_a_machine_whose_clock_is_put_right_does_not_help_a_wrong_server() -> None:
    scene = Scene(timedelta(minutes=-11))
    scene.answers(60, shift=timedelta())
    scene.skew = timedelta()
    scene.answers(10, shift=timedelta())
    scene.answers(10, shift=timedelta(hours=1))
    assert scene.astray() < 10


def test_a_machine_whose_clock_is_put_right_beside_a_wrong_server_moves_time_once_by_so_much() -> None:
    scene = Scene(timedelta(seconds=-7))
    scene.answers(60, shift=timedelta())
    scene.answers(10, shift=timedelta(hours=1))
    scene.skew = timedelta()
    scene.answers(10, shift=timedelta(hours=1))
    assert 15 < scene.astray() < 18


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_an_answer_without_a_date_teaches_nothing(date: str | None) -> None:
    scene = Scene()
    scene.answer()
    scene.clock.heard(date, sent=5000.0)
    assert abs(scene.off()) < 0.6


def test_one_answer_with_an_absurd_date_does_not_move_the_clock_for_good() -> None:
    scene = Scene()
    for _ in range(5):
        scene.answer()
        scene.elapsed += 1
    scene.shift = timedelta(days=365)
    scene.answer()
    scene.clock.now()
    scene.shift = timedelta()
    for _ in range(5):
        scene.answer()
        scene.elapsed += 1
    assert abs(scene.off()) < 5


def test_a_server_that_is_set_far_forward_is_believed_once_no_other_has_answered_for_a_minute() -> None:
    scene, far = Scene(), timedelta(days=365)
    scene.answer()
    scene.answers(50, shift=far)
    scene.answers(1, shift=timedelta())
    scene.answers(50, shift=far)
    assert abs(scene.astray()) < 1
    scene.answers(15, shift=far)
    assert abs(scene.off()) < 0.6


def test_a_server_that_is_set_far_back_does_not_turn_time_back() -> None:
    scene = Scene()
    scene.answer()
    told = []
    for _ in range(100):
        scene.answers(1, shift=timedelta(days=-365))
        told.append(scene.clock.now())
    assert all(before < after for before, after in itertools.pairwise(told))
