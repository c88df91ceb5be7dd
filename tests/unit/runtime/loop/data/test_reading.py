"""A reader with a limit: an epoch takes so many samples, and the next one goes on behind them."""

from __future__ import annotations

import os
import signal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join

TOTALS = [103, 115, 136, 145]


class Total(nn.Module):
    """What Caffe2 tests its checkpoints with: a running total that begins at 100."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor(100))


class Reading:
    """One process of a script that reads ten numbers, three an epoch, and adds them up."""

    def __init__(self, session: Session, batch: int = 1, *, size: int = 10, **options: Any) -> None:
        self.session, self.model = session, Total()
        session.register(model=self.model)
        numbers = TensorDataset(torch.arange(size))
        self.reader = session.loader(numbers, batch, **{"shuffle": False, "per_epoch": 3, "rewind": False, **options})
        self.read: list[list[int]] = []
        self.totals: list[int] = []

    def run(self, stop: int | None = None, **goal: Any) -> Reading:
        """Asked to leave in step `stop`."""
        with self.session as session:
            for _ in session.epochs(**goal or {"stop": [self.reader.exhausted]}):
                self.read.append([])
                for (numbers,) in self.reader:
                    self.model.total += numbers.sum()
                    self.read[-1] += numbers.tolist()
                    if session.steps_done + 1 == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                self.totals.append(int(self.model.total))
        return self

    def left(self, stop: int, **goal: Any) -> Reading:
        with pytest.raises(Exit):
            self.run(stop, **goal)
        return self


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_an_epoch_takes_the_next_samples_until_all_are_used(join: Join, tmp_path: Path, batch: int) -> None:
    reading = Reading(join(), batch).run()
    assert reading.totals == TOTALS
    assert reading.read == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert perdure.progress(reading.session).finished_epochs == 4
    completed = entries(tmp_path)[-1]
    assert (completed["kind"], completed["epoch"], completed["goal"]) == ("Completed", 4, {"stop": ["exhausted"]})
    assert Reading(join(), batch).run().read == [], "it is done"


@pytest.mark.parametrize("stop", range(2, 10))
def test_a_resumed_run_reads_on(join: Join, stop: int) -> None:
    first = Reading(join()).left(stop)
    second = Reading(join()).run()
    assert list(chain(*first.read, *second.read)) == list(range(10))
    assert second.totals == TOTALS[-len(second.totals) :]
    assert perdure.progress(second.session).finished_epochs == 4


def test_it_says_how_much_of_its_epoch_is_left(join: Join) -> None:
    Reading(join(), 2, per_epoch=5).left(2)
    reader = (second := Reading(join(), 2, per_epoch=5)).reader
    perdure.restore(second.session)
    assert (len(reader), reader.remaining, reader.batch_index, reader.exhausted()) == (3, 1, 2, False)
    second.run()
    assert (len(reader), reader.remaining, reader.exhausted()) == (0, 0, True)


def test_its_order_is_one_for_all_epochs(join: Join) -> None:
    first = Reading(join(), 2, shuffle=True, size=40, per_epoch=7).left(9)
    second = Reading(join(), 2, shuffle=True, size=40, per_epoch=7).run()
    read = list(chain(*first.read, *second.read))
    assert sorted(read) == list(range(40)) != read


def test_one_that_rewinds_takes_the_first_samples_of_each_epochs_order(join: Join, tmp_path: Path) -> None:
    kinds = {"shuffle": True, "size": 20, "per_epoch": 5, "rewind": True}
    with Session.from_env(tmp_path / "whole") as session:
        session.register(model=Total())
        whole: list[list[int]] = []
        loader = session.loader(TensorDataset(torch.arange(20)), 2)
        for _ in session.epochs(2):
            whole.append([])
            for (numbers,) in loader:
                whole[-1] += numbers.tolist()
                session.step()
    first = Reading(join(), 2, **kinds).left(4, count=2)
    assert not first.reader.exhausted()
    read = first.read + Reading(join(), 2, **kinds).run(count=2).read
    assert [read[0], read[1] + read[2]] == [epoch[:5] for epoch in whole]


def test_behind_a_break_it_goes_on_with_what_was_not_handed_out(join: Join) -> None:
    reading, read = Reading(join(), per_epoch=4), []
    with reading.session as session:
        for _ in session.epochs(stop=[reading.reader.exhausted]):
            for (numbers,) in reading.reader:
                read.append(numbers.item())
                session.step()
                if len(read) % 3 == 0:
                    break
    assert read == list(range(10))


def test_one_that_is_made_in_its_loop_goes_on_behind_another_loop_that_was_resumed(join: Join) -> None:
    def script(stop: int | None) -> list[int]:
        read: list[int] = []
        with join() as session:
            session.register(model=Total())
            for number in range(3):
                for _ in session.epochs(1):
                    numbers = TensorDataset(torch.arange(10))
                    batches: Any = session.steps(2)
                    if number != 1:
                        batches = session.loader(numbers, 1, shuffle=False, per_epoch=3, rewind=False)
                    for batch in batches:
                        read += [] if number == 1 else batch[0].tolist()
                        if session.steps_done + 1 == stop:
                            os.kill(os.getpid(), signal.SIGTERM)
                        session.step()
        return read

    with pytest.raises(Exit):
        script(stop=4)
    assert script(stop=None) == [3, 4, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_epoch": 0}, "per_epoch is 0: give the samples of an epoch, 1 or more"),
        ({"per_epoch": True}, "per_epoch is True"),
        ({"per_epoch": 2.5}, "per_epoch is 2.5"),
        ({"per_epoch": None}, "rewind=False without per_epoch"),
        ({"train": False}, "an evaluation takes all samples"),
        ({"drop_last": True}, "give a multiple of it as per_epoch"),
    ],
)
def test_what_cannot_be_is_refused(join: Join, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Reading(join(), 2, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 12}, "samples is 12, but the checkpoint was made after 5 samples of a reader with 10: keep it"),
        ({"shuffle": True}, "shuffle is True"),
        ({"per_epoch": 4}, "per_epoch is 4, but the checkpoint .* with 3: keep it until the epoch is over"),
        ({"rewind": True}, "rewind is True"),
        ({"per_epoch": None, "rewind": True}, "made by a loader of kind 'reader'"),
    ],
)
def test_a_checkpoint_that_it_cannot_go_on_from_is_refused(join: Join, options: dict[str, Any], words: str) -> None:
    Reading(join()).left(5)
    second = Reading(join(), **options)
    with pytest.raises(UserError, match=words):
        perdure.restore(second.session)


def test_a_plain_loaders_checkpoint_is_none_of_its_own_in_the_middle_of_an_epoch(join: Join) -> None:
    Reading(join(), per_epoch=None, rewind=True).left(5, count=2)
    second = Reading(join())
    with pytest.raises(UserError, match="in the middle of epoch 0 without per_epoch"):
        perdure.restore(second.session)


def test_asked_for_again_it_is_the_same(join: Join) -> None:
    reading = Reading(join())
    numbers = TensorDataset(torch.arange(10))
    again = reading.session.loader(numbers, 1, shuffle=False, per_epoch=3, rewind=False)
    assert again is reading.reader
    with pytest.raises(UserError, match="exists already, with per_epoch=3 and not 4"):
        reading.session.loader(numbers, 1, shuffle=False, per_epoch=4, rewind=False)


def test_one_that_is_only_looked_at_goes_on_with_nothing(join: Join) -> None:
    reading = Reading(join())
    looked: list[list[int]] = []
    with reading.session as session:
        for _ in session.epochs(2):
            for _ in session.steps(1):
                session.step()
            looked.append([numbers.item() for (numbers,) in reading.reader])
    assert looked == [[0, 1, 2]] * 2
