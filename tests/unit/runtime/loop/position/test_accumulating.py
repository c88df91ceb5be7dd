"""Accumulators: exact sums, of which no restart loses or doubles a sample, whatever the script does around them."""

from __future__ import annotations

import math
import os
import random
import signal
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit
from perdure.loop.position.accumulating import Accumulator, Sums
from perdure.loop.position.totals import Total, read_number, together
from tests.support.covering import covering
from tests.unit.runtime.session.training import Join, samples

NUMBERS: tuple[float, ...] = (
    0.1,
    -0.1,
    1e308,
    1e308,
    -1e308,
    5e-324,
    2.0**-1074,
    3.5,
    1e16,
    1.0,
    -1e16,
    7,
    True,
    2**80,
)


def alone(name: str = "scores", sums: Sums | None = None) -> Accumulator:
    return Accumulator(name, sums or Sums(), lambda told, _: [told])


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_is_the_same_to_the_last_bit_in_any_order_and_over_any_ranks(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    values = [*NUMBERS, *(draw.uniform(-1, 1) * 10.0 ** draw.randrange(-20, 20) for _ in range(200))]
    draw.shuffle(values)
    world = draw.randrange(1, 6)
    ranks = [alone() for _ in range(world)]
    for value in values:
        draw.choice(ranks).add(x=value)
    told = [rank._sums.held_values("scores") for rank in ranks]
    assert ranks[0]._sums.read_now("scores", told) == {"x": float(sum(map(Fraction, values)))}


def test_whole_numbers_stay_whole_and_what_is_no_number_or_infinite_shows() -> None:
    scores = alone()
    scores.add({"n": 2**70, "right": torch.tensor(3), "both": math.inf}, large=1e308, low=-math.inf, bad=np.float32(1))
    scores.add({"n": 1, "both": -math.inf}, large=1e308, low=5.0, bad=math.nan, right=np.int64(4))
    found = scores.sum()
    assert (found["n"], found["right"], found["low"], found["large"]) == (2**70 + 1, 7, -math.inf, math.inf)
    assert [type(found[name]) for name in ("n", "right", "low")] == [int, int, float]
    assert math.isnan(found["both"])
    assert math.isnan(found["bad"])
    assert list(found) == sorted(found)
    assert scores.sum() == {}


def test_it_is_added_to_as_to_a_counter() -> None:
    scores = alone()
    scores["loss"] += 0.5
    scores["loss"] += torch.tensor([0.25], requires_grad=True)
    scores["n"] -= 3
    assert scores.sum() == {"loss": 0.75, "n": -3}
    with pytest.raises(UserError, match=r"can only be added to: write accumulator\('scores'\)\['n'\] \+= value"):
        scores["n"] = 3  # type: ignore[assignment]
    with pytest.raises(UserError, match="can only be added to"):
        scores["n"] = scores["loss"]
    with pytest.raises(TypeError):
        scores["n"] + 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("3", "'x'.* is a str: give a number"),
        (torch.ones(2), r"'x'.* is a Tensor of shape \(2,\): give a number"),
        (1j, "'x'.* is a complex"),
        (None, "'x'.* is a NoneType"),
    ],
)
def test_what_is_no_number_is_refused_and_nothing_is_added(value: Any, said: str) -> None:
    scores = alone()
    with pytest.raises(UserError, match=said):
        scores.add(n=1, x=value)
    with pytest.raises(UserError, match=said):
        scores["x"] += value
    assert scores.sum() == {}


def test_names_are_strings() -> None:
    with pytest.raises(UserError, match="3 is no name"):
        alone().add({3: 1})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="a list has no names"):
        alone().add([1])  # type: ignore[arg-type]


def test_what_is_written_is_read_again() -> None:
    for value in (0.1, 5e-324, -(2**80), math.inf, 3):
        total = read_number(value, "x")
        assert Total.read(total.write()) == total
    assert math.isnan(Total.read(read_number(math.nan, "x").write()).value)
    assert together([]) == {}


def test_what_was_read_behind_a_step_is_in_no_save_that_is_made_there() -> None:
    sums = Sums()
    scores, kept = alone(sums=sums), alone("kept", sums)
    sums.release()
    scores.add(n=1)
    kept.add(n=2)
    sums.finish_step()
    assert scores.sum() == {"n": 1}
    scores.add(m=1)
    resumed = Sums()
    resumed.resume(sums.own())
    resumed.take()
    assert (resumed.held_values("scores"), resumed.held_values("kept")) == ({}, sums.held_values("kept"))


def test_nothing_is_summed_before_anything_is_restored(join: Join) -> None:
    session = join()
    scores = perdure.accumulator(session)
    scores.add(n=1)
    with pytest.raises(UserError, match="nothing is restored yet"):
        scores.sum()
    with pytest.raises(UserError, match="give a name"):
        perdure.accumulator(session, "")
    perdure.restore(session)
    assert perdure.accumulator(session).sum() == {"n": 1}


# A script that adds and reads wherever one can, and what happens to it.


MOMENTS = 75
"""That the script passes before its last epoch is over."""


class Broken(Exception):
    """The process dies, as far as one can be made to within a test."""


class Summing:
    """The values read at each place; `hits` says how often something happens, at which of the moments it passes."""

    def __init__(self, session: Session, *, kind: str = "", moment: int = 0) -> None:
        self.session = session
        self.read: dict[str, list[Any]] = {}
        self.passed, self._kind, self._moment = 0, kind, moment
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        session.register(net=self.net, optimizer=self.optimizer)
        self.first = session.loader(samples(20), 8, name="first")
        self.second = session.loader(samples(12), 4, name="second")
        self.valid = session.loader(samples(9), 4, name="valid", shuffle=False)
        self.placed = session.loader(samples(9), 4, name="placed", train=False)
        names = ("head", "often", "pass", "valid", "long", "own")
        self.sums = {name: perdure.accumulator(session, name) for name in names}

    def note(self, place: str, *what: Any) -> None:
        """A place has the same to say each time that its code runs."""
        self.read.setdefault(place, []).append(what)
        self.moment()

    def moment(self) -> None:
        self.passed += 1
        if self.passed == self._moment:
            between = perdure.progress(self.session).epoch is None
            if self._kind == "dies" or between:  # no session holds SIGTERM between loops
                raise Broken
            os.kill(os.getpid(), signal.SIGTERM)

    def play(self) -> Summing:
        sums = self.sums
        with self.session:
            sums["head"].add(before=1)
            for loop, epochs in enumerate((2, 1)):
                for epoch in self.session.epochs(epochs):
                    self.epoch(f"{loop}/{epoch}")
                sums["own"].add(loop=loop + 1)
                self.note(f"behind {loop}", sums["own"].sum())
            self.note("end", sums["long"].sum(), sums["head"].sum())
        return self

    def epoch(self, place: str) -> None:
        session, sums = self.session, self.sums
        sums["head"].add(x=0.1)
        self.evaluate(f"{place} head")
        self.train(place, self.first)
        sums["pass"].add(drawn=torch.rand(1).item())
        self.note(f"{place} between", sums["pass"].sum())
        sums["head"].add(between=0.3)
        self.train(place, self.second)
        for number, valid in enumerate((self.valid, self.placed, self.placed)):
            self.evaluate(f"{place} rest {number}", valid)
        sums["head"].add(rest=1)
        if perdure.progress(session).epoch == 1:
            self.note(f"{place} head", sums["head"].sum())

    def train(self, place: str, batches: Any) -> None:
        session, sums = self.session, self.sums
        for inputs, ids in batches:
            self.optimizer.zero_grad()
            self.net(inputs).square().mean().backward()
            self.optimizer.step()
            for name in ("often", "pass", "long"):
                for sample in ids.tolist():
                    sums[name].add(loss=0.1 * sample, n=1)
            self.moment()
            session.step()
            sums["pass"].add(steps=1)
            if session.steps_done % 4 == 0:
                self.note(f"{place} step {session.steps_done}", sums["often"].sum())
            if session.steps_done % 5 == 0:
                self.evaluate(f"{place} step {session.steps_done}")

    def evaluate(self, place: str, valid: Any = None) -> None:
        for _, ids in valid or self.valid:
            for sample in ids.tolist():
                self.sums["valid"].add(loss=0.1 * sample, n=1)
            self.moment()
            perdure.poll(self.session)
        self.note(f"{place} valid", self.sums["valid"].sum())


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Summing:
    """Nothing happens to it."""
    session = Session.from_env(tmp_path_factory.mktemp("straight"))
    try:
        return Summing(session).play()
    finally:
        session.close()


def test_an_undisturbed_script_reads_what_it_has_added(straight: Summing) -> None:
    ((valid,),) = straight.read["0/0 rest 0 valid"]
    assert valid == {"loss": float(sum(Fraction(0.1 * sample) for sample in range(9))), "n": 9}
    ((long, head),) = straight.read["end"]
    assert long == {"loss": float(3 * sum(Fraction(0.1 * i) for n in (20, 12) for i in range(n))), "n": 96}
    assert head == {"between": 0.3, "rest": 1, "x": 0.1}
    assert straight.passed >= MOMENTS
    assert all(len(told) == 1 for told in straight.read.values())


def same(straight: Summing, runs: list[Summing]) -> None:
    """Each place has said what it says undisturbed, as often as it was passed, and none is left out."""
    for run in runs:
        for place, told in run.read.items():
            assert told == straight.read[place], place
    assert {place for run in runs for place in run.read} == straight.read.keys()


@pytest.mark.parametrize(("kind", "moment"), covering(["term", "dies"], range(6, MOMENTS, 3)))
def test_sums_are_those_of_an_undisturbed_script(join: Join, straight: Summing, kind: str, moment: int) -> None:
    runs = [Summing(join(**({"EVERY_STEPS": "1"} if kind == "dies" else {})), kind=kind, moment=moment)]
    with pytest.raises((Exit, Broken)):
        runs[-1].play()
    runs.append(Summing(join(EVERY_STEPS="1"), kind="dies", moment=moment))
    with suppress(Broken):
        runs[-1].play()
    if "end" not in runs[-1].read:
        runs.append(Summing(join()).play())
    same(straight, runs)


def evaluating(
    session: Session, *, shared: bool, ask: bool = False, stops: bool = False, size: int = 32
) -> list[dict[str, float]]:
    """The values read from the training at its end, and before that from an evaluation after each second step.

    With `ask` it is asked to leave in the second one, in a hurry; with `stops` by a word at the second step's end.
    """
    net = nn.Linear(4, 1)
    session.register(net=net, optimizer=torch.optim.SGD(net.parameters()))
    train, valid = session.loader(samples(size), 8), session.loader(samples(9), 4, name="valid")
    trained, evaluated, read = perdure.accumulator(session, "trained"), perdure.accumulator(session, "evaluated"), []
    with session:
        for _ in session.epochs(1):
            for _, ids in train:
                trained.add(n=len(ids))
                session.step()
                trained.add(behind=1) if shared or stops else None
                if session.steps_done % 2 == 0:
                    for _, some in valid if shared else DataLoader(samples(9), 4):
                        evaluated.add(n=len(some))
                        if ask and session.steps_done == 4:
                            os.kill(os.getpid(), signal.SIGTERM)
                        perdure.poll(session)
                    read.append(evaluated.sum())
                if stops and session.steps_done == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                if perdure.should_stop(session):
                    return read
        read.append(trained.sum())
    return read


@pytest.mark.parametrize("shared", [True, False])
def test_what_an_evaluation_has_added_that_is_broken_off_is_not_counted(join: Join, *, shared: bool) -> None:
    """Between two steps it is, in a hurry; and the step that was done before counts as a whole."""
    with pytest.raises(Exit):
        evaluating(join(GRACE_SECONDS="5"), shared=shared, ask=True, size=48)
    behind = {"behind": 6} if shared else {}
    assert evaluating(join(), shared=shared, size=48) == [{"n": 9}, {**behind, "n": 48}]


def test_what_is_added_behind_a_step_counts_where_the_script_leaves_by_itself(join: Join) -> None:
    assert evaluating(join(), shared=False, stops=True) == [{"n": 9}]
    assert evaluating(join(), shared=False, stops=False)[-1] == {"behind": 3, "n": 32}
