"""The API server's time by its answers: near it, never backwards, whatever the local wall clock says."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from perdure_operator.cluster.clock import ServerClock

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Scene:
    """A server, the line to it, and a machine whose wall clock is `skew` off."""

    def __init__(self, skew: timedelta = timedelta(), phase: float = 0.3) -> None:
        self.elapsed = 0.0
        self.phase = phase
        self.skew = skew
        self.shift = timedelta()
        self.clock = ServerClock(monotonic=lambda: 5000.0 + self.elapsed, fallback=lambda: self.true + self.skew)

    @property
    def true(self) -> datetime:
        """By the server's clock."""
        return START + timedelta(seconds=self.elapsed + self.phase) + self.shift

    def answer(self, *, there: float = 0.01, back: float = 0.01) -> None:
        sent = 5000.0 + self.elapsed
        self.elapsed += there
        date = format_datetime(self.true.replace(microsecond=0), usegmt=True)
        self.elapsed += back
        self.clock.heard(date, sent=sent)

    def off(self) -> float:
        return (self.clock.now() - self.true).total_seconds()


@pytest.mark.parametrize("minutes", [-11, 11])
def test_the_machines_own_clock_does_not_matter_once_the_server_has_answered(minutes: int) -> None:
    scene = Scene(timedelta(minutes=minutes))
    assert scene.off() == pytest.approx(60 * minutes)  # no answer yet
    scene.answer()
    assert abs(scene.off()) <= 0.53


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


def test_a_server_that_is_set_forward_is_followed_at_once() -> None:
    scene = Scene()
    scene.answer()
    scene.shift = timedelta(minutes=11)
    scene.answer()
    assert abs(scene.off()) < 0.6


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


def test_a_server_that_is_set_far_forward_is_believed_when_it_says_so_twice() -> None:
    scene = Scene()
    scene.answer()
    scene.shift = timedelta(days=365)
    scene.answer()
    assert abs(scene.off()) > 1000
    scene.answer()
    assert abs(scene.off()) < 0.6
