"""What the agent of a script whose batch is chosen hears of that batch, and of what was measured."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch

import perdure
from perdure import Session
from perdure.wire.channel import Figures, read_report
from tests.unit.runtime.session.training import Join, Training
from tests.unit.runtime.whole_numbers import Weights, losses, optimizer_of, samples

BATCH = 8
DECISIONS = [{"epoch": 0, "consumed": 0, "batch": 8}, {"epoch": 1, "consumed": 0, "batch": 24, "accumulation": 2}]


@pytest.fixture(autouse=True)
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.loop.telemetry.figures.SEND_SECONDS", 0.0)


def train(session: Session, epochs: int, **asked: Any) -> None:
    net = Weights()
    model, optimizer = session.wrap(net), optimizer_of(net)
    session.register(model=model, optimizer=optimizer)
    adapt = perdure.Adapt(up_to=40, per_rank=(1, 10), **asked)
    batches = session.loader(samples(), BATCH, adapt=adapt)
    for _ in session.epochs(epochs):
        for inputs, wanted, _ in batches:
            with session.micro() as last:
                session.weighted(losses(model(inputs), wanted).mean()).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                session.step()


def told(reader: int) -> list[Figures]:
    lines = os.read(reader, 1 << 20).splitlines()
    return [one for line in lines if isinstance(one := read_report(line), Figures)]


def test_the_batch_in_use_is_told(join: Join, pipe: tuple[int, int]) -> None:
    train(join(REPORT_FD=str(pipe[1]), CHECK_SECONDS="0"), 2, decisions=DECISIONS)
    found = [one.batch for one in told(pipe[0]) if one.batch is not None]
    assert list(dict.fromkeys(found)) == [8, 24]


def test_what_is_measured_is_told_once_it_is_known(join: Join, pipe: tuple[int, int]) -> None:
    train(join(REPORT_FD=str(pipe[1]), CHECK_SECONDS="0"), 12)
    found = [one.scaling for one in told(pipe[0])]
    assert found[0] is None
    last = found[-1]
    assert last is not None
    assert (last.initial_batch, last.most_batch, last.per_rank_low, last.per_rank_high) == (8, 40, 1, 10)
    assert (last.accumulates, last.profiled) == (True, 1)
    assert last.alpha + last.beta > 0


def test_a_script_that_measures_nothing_has_no_hints(join: Join, pipe: tuple[int, int]) -> None:
    train(join(REPORT_FD=str(pipe[1]), CHECK_SECONDS="0"), 4, decisions=DECISIONS)
    assert {one.scaling for one in told(pipe[0])} == {None}


def test_a_script_whose_batch_is_its_own_tells_nothing_of_it(join: Join, pipe: tuple[int, int]) -> None:
    torch.manual_seed(0)
    Training(join(REPORT_FD=str(pipe[1]), CHECK_SECONDS="0")).run(epochs=1)
    lines = [json.loads(line) for line in os.read(pipe[0], 1 << 20).splitlines()]
    figures = [line for line in lines if line["report"] == "figures"]
    assert figures
    assert not any({"batch", "scaling"} & line.keys() for line in figures)
