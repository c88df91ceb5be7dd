"""When a checkpoint is due, and how the cadence gives way to pauses while saves fail that stop training for long."""

from __future__ import annotations

from itertools import pairwise

import pytest

from perdure.checkpoint.schedule import CheckpointSchedule, pause
from perdure.wire.settings import Cadence


@pytest.fixture
def clock() -> list[float]:
    """Now, in seconds: a test moves it."""
    return [100.0]


@pytest.mark.parametrize("seconds", [1.0, 3.0, 10.3, 40.0])
def test_pauses_grow_and_failing_saves_take_ever_less_of_the_time(seconds: float) -> None:
    pauses = [pause(failures, seconds) for failures in range(1, 40)]
    assert pauses[0] == 2 * seconds
    assert all(later >= earlier for earlier, later in pairwise(pauses))
    assert pauses[-1] == max(60.0, 10 * seconds)


def test_a_save_that_fails_at_once_keeps_the_cadence() -> None:
    assert pause(1, 0.2) == pause(30, 0.9) == 0.0


def test_nothing_is_due_in_a_pause_and_a_save_is_due_at_its_end_once(clock: list[float]) -> None:
    here = CheckpointSchedule(Cadence(steps=1, seconds=5, epochs=1), rank=0, now=lambda: clock[0])
    here.failed(1, 10.0)
    clock[0] += 19.9
    assert (here.after_step(7), here.after_epoch(1), here.by_the_clock()) == (False, False, False)
    clock[0] += 0.2
    assert [here.by_the_clock() for _ in range(3)] == [True, False, False]
    assert not here.after_step(8)
    here.failed(2, 10.0)
    clock[0] += 39.9
    assert not here.by_the_clock()
    clock[0] += 0.2
    assert here.by_the_clock()


def test_the_end_of_a_pause_is_rank_0s_to_say(clock: list[float]) -> None:
    other = CheckpointSchedule(Cadence(steps=1), rank=1, now=lambda: clock[0])
    other.failed(1, 10.0)
    clock[0] += 1000
    assert (other.after_step(7), other.by_the_clock()) == (False, False)


@pytest.mark.parametrize("mended", ["saved", "taken over", "failed at once", "not made"])
def test_the_cadence_is_back_when_a_save_is_made(mended: str, clock: list[float]) -> None:
    here = CheckpointSchedule(Cadence(steps=2, epochs=1), rank=0, now=lambda: clock[0])
    here.failed(1, 10.0)
    if mended == "saved":
        here.saved()
    elif mended == "taken over":
        here.take_over(0, 1.0)
    elif mended == "not made":
        clock[0] += 1000
        assert here.by_the_clock()
        here.end_pause()
    else:
        here.failed(2, 0.1)
    assert (here.after_step(2), here.after_step(3), here.after_epoch(1)) == (True, False, True)
    clock[0] += 1000
    assert not here.by_the_clock()
