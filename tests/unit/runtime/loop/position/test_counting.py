"""A script's own count of an epoch's batches starts at zero in a resumed epoch, which is reported."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.errors import UserError
from perdure.loop.leaving import Exit
from tests.unit.runtime.session.training import Join, Training

WORDS = "batches of it from there, where an undisturbed run takes"
LIMIT = 3
"""Of the five batches of a whole pass."""
Way = Callable[[Any], Iterator[Any]]


def sliced(train: Any) -> Iterator[Any]:
    return itertools.islice(train, LIMIT)


def beside_a_range(train: Any) -> Iterator[Any]:
    return (batch for batch, _ in zip(train, range(LIMIT), strict=False))


def behind_a_range(train: Any) -> Iterator[Any]:
    return (batch for _, batch in zip(range(LIMIT), train, strict=False))


def one_by_one(train: Any) -> Iterator[Any]:
    batches = iter(train)
    for _ in range(LIMIT):
        yield next(batches)


def broken(train: Any) -> Iterator[Any]:
    counted: list[Any] = []
    for batch in train:
        yield batch
        counted.append(batch)
        if len(counted) == LIMIT:
            break


def broken_at_four(train: Any) -> Iterator[Any]:
    for number, batch in enumerate(train):
        yield batch
        if number + 1 == LIMIT + 1:
            break


def broken_in_one_epoch(train: Any) -> Iterator[Any]:
    return broken_at_four(train) if train._session.epoch == 2 else iter(train)


def the_rest(train: Any) -> Iterator[Any]:
    return itertools.islice(train, LIMIT - train.batch_index)


def broken_at_the_whole_count(train: Any) -> Iterator[Any]:
    for number, batch in enumerate(train, train.batch_index):
        yield batch
        if number + 1 == LIMIT:
            break


def longer_than_an_epoch(train: Any) -> Iterator[Any]:
    return itertools.islice(train, 100)


def whole(train: Any) -> Iterator[Any]:
    return iter(train)


def told(join: Join, capfd: pytest.CaptureFixture[str], way: Way, stop: int) -> list[str]:
    for leave in (stop, None):
        training = Training(join())
        with contextlib.suppress(Exit), training.session as session:
            for _ in session.epochs(4):
                for inputs, _ in way(training.batches):
                    training.optimizer.zero_grad()
                    training.net(inputs).square().mean().backward()
                    training.optimizer.step()
                    if leave == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
    return [line for line in capfd.readouterr().err.splitlines() if WORDS in line]


@pytest.mark.parametrize("stop", [2, 4, 5])
@pytest.mark.parametrize("way", [sliced, beside_a_range, behind_a_range])
def test_what_ends_a_loop_after_so_many_batches_of_a_resumed_epoch_is_reported_once(
    join: Join, capfd: pytest.CaptureFixture[str], way: Way, stop: int
) -> None:
    (line,) = told(join, capfd, way, stop)
    assert f"loader 'train' is resumed at batch {stop % LIMIT}, and the script takes 3 {WORDS} 3 of the whole" in line
    assert "session.loader(..., per_epoch=24) gives so many" in line


def test_a_process_that_joins_ranks_which_have_counted_an_epoch_s_first_batches_is_refused(join: Join) -> None:
    Training(join()).left(stop=2)
    training = Training(join())
    for _ in training.session.epochs(2):
        counting = sliced(training.batches)
        training.batches.refuse_late_place(dict)
        with pytest.raises(UserError, match="is resumed at batch 2, and the script takes 3"):
            training.batches.look_at_limit(joins=True)
        assert next(counting)
        break


@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("way", [one_by_one, broken])
def test_a_count_of_the_scripts_own_is_reported_where_a_whole_epoch_is_known(
    join: Join, capfd: pytest.CaptureFixture[str], way: Way, stop: int
) -> None:
    (line,) = told(join, capfd, way, stop)
    assert f"loader 'train': the script takes 3 {WORDS} 3 of the whole" in line


@pytest.mark.parametrize("stop", [2, 3, 6, 7])
def test_a_count_that_finds_too_few_batches_is_reported_once_two_whole_epochs_are_known(
    join: Join, capfd: pytest.CaptureFixture[str], stop: int
) -> None:
    (line,) = told(join, capfd, broken_at_four, stop)
    at = stop % (LIMIT + 1)
    assert f"loader 'train': the script takes {5 - at} {WORDS} 4 of the whole" in line


@pytest.mark.parametrize("stop", [2, 3, 6, 7, 13])
def test_an_epoch_that_alone_is_left_early_is_no_count(
    join: Join, capfd: pytest.CaptureFixture[str], stop: int
) -> None:
    assert told(join, capfd, broken_in_one_epoch, stop) == []


@pytest.mark.parametrize("stop", [2, 3, 5])
@pytest.mark.parametrize("way", [the_rest, broken_at_the_whole_count, longer_than_an_epoch, whole])
def test_nothing_is_reported_of_a_script_that_takes_what_is_left_of_its_epoch(
    join: Join, capfd: pytest.CaptureFixture[str], way: Way, stop: int
) -> None:
    assert told(join, capfd, way, stop) == []
