"""Epochs by their numbers of all loops and runs together, and the process's session without passing it on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import perdure
from perdure import UserError
from perdure.loop.leaving import Exit
from tests.unit.runtime.session.training import Join, Training

BATCHES = 5


def script(training: Training, *goals: int, stop: int | None = None, leave: int | None = None) -> list[list[int]]:
    """Trains until one goal after the other; the epochs of each loop. Asked to leave in step `stop`, and leaves its
    loops by `break` in epoch `leave`."""
    found: list[list[int]] = []
    with training.session as session:
        for goal in goals:
            found.append([])
            for epoch in perdure.remaining_epochs_until(goal):
                found[-1].append(epoch)
                assert perdure.current_epoch() == perdure.finished_epochs() == epoch
                for inputs, _ in training.batches:
                    training.net(inputs).mean().backward()
                    training.optimizer.step()
                    if session.steps_done + 1 == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                if epoch == leave:
                    break
            assert perdure.current_epoch() is None
    return found


def test_a_second_loop_goes_on_with_the_numbers_of_the_first(join: Join) -> None:
    assert script(Training(join()), 2, 2, 4) == [[0, 1], [], [2, 3]]
    assert script(Training(join()), 2, 2, 4) == [[], [], []], "all of it is finished"
    assert script(Training(join()), 2, 2, 5) == [[], [], [4]], "a goal that is raised"


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (2, [[0, 1], [], [2, 3]]),
        (BATCHES, [[1], [], [2, 3]]),
        (3 * BATCHES - 1, [[], [], [2, 3]]),
        (3 * BATCHES, [[], [], [3]]),
    ],
)
def test_a_resumed_run_has_the_epochs_that_are_left(join: Join, stop: int, left: list[list[int]]) -> None:
    with pytest.raises(Exit):
        script(Training(join()), 2, 2, 4, stop=stop)
    assert script(Training(join()), 2, 2, 4) == left


def test_a_break_counts_its_epoch_and_the_next_loop_makes_up_for_those_it_has_left_out(join: Join) -> None:
    assert script(Training(join()), 3, 4, leave=1) == [[0, 1], [2, 3]]


def test_a_loop_within_another_is_refused(join: Join) -> None:
    Training(join())
    for _ in perdure.remaining_epochs_until(2):
        with pytest.raises(UserError, match="called inside of an epoch"):
            next(iter(perdure.remaining_epochs_until(3)))
        break


@pytest.mark.parametrize("count", [0, -1, 2.5, True, None])
def test_what_is_no_number_of_epochs_is_refused(join: Join, count: object) -> None:
    Training(join())
    with pytest.raises(UserError, match=r"epochs is .*: give a whole number of 1 or more"):
        perdure.remaining_epochs_until(count)  # type: ignore[arg-type]


def test_without_a_session_it_says_how_to_get_one(join: Join) -> None:
    session = join()
    assert perdure.finished_epochs() == 0
    session.close()
    for call in (lambda: perdure.remaining_epochs_until(1), perdure.current_epoch, perdure.finished_epochs):
        with pytest.raises(UserError, match=r"goes by the process's session, and there is none: make it first"):
            call()


def test_the_session_that_was_made_last_counts_while_it_is_open(join: Join, tmp_path: Path) -> None:
    script(Training(join()), 1)
    first = Training(join()).session
    perdure.restore(first)
    second = perdure.Session.from_env(tmp_path / "other")
    perdure.restore(second)
    assert perdure.finished_epochs() == perdure.progress(second).finished_epochs == 0
    second.close()
    assert perdure.finished_epochs() == perdure.progress(first).finished_epochs == 1
