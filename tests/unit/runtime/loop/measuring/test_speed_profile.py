"""Which times count, and of what."""

from __future__ import annotations

import json

import pytest

from perdure.goodput.fitting import StepTimes
from perdure.loop.measuring.speed_profile import DROPPED, KEPT, LEAST, MOST_KINDS, SpeedProfile


class Training:
    """A script on a clock of its own."""

    def __init__(self, hardware: str = "cpu", *, nodes: int | None = 1, ranks: int = 2) -> None:
        self.now, self.nodes, self.ranks = 0.0, nodes, ranks
        self.profile = SpeedProfile(hardware, now=lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def step(self, *seconds: float, samples: int = 8, source: str = "train") -> None:
        """One with a micro-batch of each of these lengths. Each batch is waited for."""
        for number, each in enumerate(seconds, 1):
            self.request()
            self.wait(100.0)
            self.profile.batch_handed_out(source, samples)
            self.wait(each)
            if number == len(seconds):
                self.profile.stepped()

    def request(self) -> None:
        self.profile.batch_requested(self.nodes, self.ranks)

    def warm(self) -> Training:
        for _ in range(DROPPED):
            self.step(50.0)
        return self

    @property
    def times(self) -> list[StepTimes]:
        self.request()
        return list(self.profile.times())


def test_the_median_of_the_times_between_a_batch_and_the_next_request() -> None:
    training = Training().warm()
    for seconds in (1.0, 2.0, 30.0):
        training.step(seconds)
    assert training.times == [StepTimes(1, 2, 8, 0, None, 2.0)]


def test_micro_batches_before_the_one_that_synchronises_have_a_time_of_their_own() -> None:
    training = Training().warm()
    for _ in range(LEAST):
        training.step(1.0, 2.0, 9.0)
    assert training.times == [StepTimes(1, 2, 8, 2, 1.5, 9.0)]


def test_what_was_measured_foretells_other_steps() -> None:
    training = Training(ranks=1).warm()
    assert training.profile.speed() is None
    for samples in (8, 16):
        for _ in range(LEAST):
            training.step(1.0 + samples, samples=samples)
    training.request()
    training.profile.begin_anew()
    training.ranks = 2
    training.warm()
    for _ in range(LEAST):
        training.step(1.0 + 8, 1.0 + 8 + 3.0, samples=8)
    training.request()
    speed = training.profile.speed()
    assert speed
    assert speed.profiled == 2
    assert speed.step_seconds(1, 2, 32, 3) == pytest.approx(4 * (1.0 + 32) + 3.0, rel=0.01)


def test_the_first_steps_after_a_start_and_after_a_change_of_ranks_do_not_count() -> None:
    training = Training().warm()
    for _ in range(LEAST):
        training.step(1.0)
    training.request()
    training.profile.begin_anew()
    training.ranks = 3
    training.warm()
    for _ in range(LEAST):
        training.step(4.0)
    assert [(one.ranks, one.step_seconds) for one in training.times] == [(2, 1.0), (3, 4.0)]


def test_a_step_with_an_evaluation_in_it_does_not_count_and_one_behind_it_does() -> None:
    training = Training().warm()
    for _ in range(LEAST):
        training.step(1.0)
    training.step(1.0)
    training.profile.spoil()
    training.wait(70.0)
    for _ in range(LEAST):
        training.step(3.0)
    training.request()
    training.profile.spoil()  # between two epochs no step is in work
    for _ in range(LEAST):
        training.step(3.0)
    assert training.times[0].step_seconds == 3.0


def test_parts_may_differ_by_a_sample() -> None:
    training = Training().warm()
    for _ in range(LEAST):
        training.request()
        training.profile.batch_handed_out("train", 8)
        training.wait(2.0)
        training.step(1.0, samples=7)
    assert training.times == [StepTimes(1, 2, 8, 1, 2.0, 1.0)]


def test_steps_of_unlike_parts_of_two_loaders_or_without_known_nodes_do_not_count() -> None:
    training = Training().warm()
    for _ in range(LEAST):
        training.request()
        training.profile.batch_handed_out("train", 8)
        training.request()
        training.step(1.0, samples=6)
        training.request()
        training.profile.batch_handed_out("other", 8)
        training.request()
        training.step(1.0, source="train")
        training.step(1.0, samples=0)
    assert training.times == []
    unknown = Training(nodes=None).warm()
    for _ in range(LEAST):
        unknown.step(1.0)
    assert unknown.times == []


def test_a_median_is_of_some_steps_and_of_the_newest_ones() -> None:
    training = Training().warm()
    for _ in range(LEAST - 1):
        training.step(1.0)
    assert training.times == []
    training.step(1.0)
    assert len(training.times) == 1
    for _ in range(KEPT):
        training.step(2.0)
    assert training.times[0].step_seconds == 2.0


def test_kinds_that_were_not_seen_for_long_are_dropped() -> None:
    training = Training().warm()
    for samples in (*range(1, MOST_KINDS + 1), 1, MOST_KINDS + 1):
        for _ in range(LEAST):
            training.step(1.0, samples=samples)
    found = {one.micro for one in training.times}
    assert found == {1, *range(3, MOST_KINDS + 2)}


def test_it_goes_on_with_what_was_saved_and_keeps_times_of_other_hardware_apart() -> None:
    training = Training("old").warm()
    for _ in range(LEAST):
        training.step(1.0, 2.0)
    training.request()
    saved = json.loads(json.dumps(training.profile.write()))
    newer = Training("new")
    newer.profile.read(saved)
    assert newer.times == []
    again = Training("old")
    again.profile.read(json.loads(json.dumps(newer.profile.write())))
    assert again.times == training.times
    again.warm()
    again.step(9.0, 9.0)
    again.request()
    assert len(training.profile.write()["old"][0][1]) == LEAST  # what was saved is no part of the newer one
