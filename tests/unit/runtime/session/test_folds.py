"""A cross validation is one session with a loop for each fold; a session for each would train the first fold alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from perdure import Session, UserError
from perdure.loop.leaving import Exit
from tests.unit.runtime.session.training import Join, Training, samples

FOLDS = 3


def cross_validated(session: Session, stop: int | None = None) -> list[list[float]]:
    torch.manual_seed(0)
    nets = [nn.Linear(4, 1) for _ in range(FOLDS)]
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in nets]
    for fold, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
        things: dict[str, Any] = {f"net{fold}": net, f"optimizer{fold}": optimizer}
        session.register(**things)
    with session:
        for fold, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            part = Subset(samples(), [number for number in range(40) if number % FOLDS != fold])
            for _ in session.epochs(2):
                for inputs, _ in session.loader(part, 8, name=f"fold{fold}"):
                    optimizer.zero_grad()
                    net(inputs).square().mean().backward()
                    optimizer.step()
                    if stop == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
    return [net.weight.flatten().tolist() for net in nets]


def test_folds_of_one_session_go_on_where_they_were(join: Join, tmp_path: Path) -> None:
    whole = cross_validated(join(ROOT=f"file://{tmp_path}/whole"))
    for stop in (3, 9, 12, 17):
        with pytest.raises(Exit):
            cross_validated(join(ROOT=(root := f"file://{tmp_path}/{stop}")), stop)
        assert cross_validated(join(ROOT=root)) == whole, stop


def test_a_second_session_of_a_process_is_told_that_it_trains_nothing(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    Training(join()).run()
    assert "an earlier session" not in capfd.readouterr().err
    Training(join()).run()
    told = capfd.readouterr().err
    assert told.count("an earlier session of this process has trained it, this one trains nothing") == 1
    assert "in one session: register each under its own name" in told


def test_a_second_session_of_a_process_in_one_run_is_refused_with_the_remedy(join: Join) -> None:
    Training(join(RUN="1", UID="u")).run()
    with pytest.raises(UserError, match="has the same root and run: train several models"):
        Training(join(RUN="1", UID="u")).run()
    Training(join(RUN="2", UID="u")).run(epochs=3)


def test_a_dataset_that_grows_under_its_loader_is_refused_and_one_loader_for_each_size_trains(join: Join) -> None:
    with join() as session:
        session.register(net=nn.Linear(4, 1))
        chosen = list(range(16))
        growing = Subset(samples(), chosen)
        fixed, seen = session.loader(growing, 8, name="fixed"), []
        for epoch in session.epochs(2):
            for _, numbers in session.loader(growing, 8, name=f"of {len(growing)}"):
                seen += numbers.tolist()
                session.step()
            chosen.extend(range(16, 24) if not epoch else ())
            if epoch:
                with pytest.raises(UserError, match="has 24 samples, and had 16 when the loader was made"):
                    next(iter(fixed))
    assert sorted(seen) == sorted([*range(16), *range(24)])
