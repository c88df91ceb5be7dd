"""Scripts as people write them, against the habits of the examples: interrupted and resumed they lose nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from torch import nn

import perdure
from perdure import UserError
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training


def test_a_script_that_catches_the_exit_inside_of_its_epochs_does_not_count_batches_it_never_got(
    join: Join, tmp_path: Path
) -> None:
    def carefree(training: Training, *, stop: int | None = None) -> Training:
        session = training.session
        with contextlib.suppress(SystemExit), session:
            for _ in session.epochs(3):
                try:
                    for inputs, _ in training.batches:
                        session.weighted(training.net(inputs).square().mean()).backward()
                        training.optimizer.step()
                        if session.steps_done == stop:
                            os.kill(os.getpid(), signal.SIGTERM)
                        session.step()
                except BaseException:  # noqa: BLE001, S112 - what scripts do
                    continue
        return training

    carefree(Training(join()), stop=6)
    resumed = carefree(Training(join()))

    assert [entry["step"] for entry in entries(tmp_path) if entry.get("final")] == [7, 15]
    assert resumed.session.steps_done == 15


@pytest.mark.parametrize("careful", [True, False])
def test_what_is_done_to_the_model_between_two_loops_is_not_done_again_to_what_was_trained_since(
    join: Join, careful: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def phases(training: Training, stop: int | None = None) -> Training:
        session = training.session
        with session:
            for number in range(2):
                for _ in session.epochs(1):
                    for inputs, _ in training.batches:
                        session.weighted(training.net(inputs).square().mean()).backward()
                        training.optimizer.step()
                        if session.steps_done == stop:
                            os.kill(os.getpid(), signal.SIGTERM)
                        session.step()
                if number == 0 and not (careful and session.state.get("new head")):
                    nn.init.zeros_(next(training.net[2].parameters()))
                    session.state["new head"] = True
        return training

    with pytest.raises(SystemExit):
        phases(Training(join()), stop=7)
    if careful:
        assert phases(Training(join())).session.steps_done == 10
        assert "trained to its goal" not in capfd.readouterr().err, "the second loop was on"
    else:
        with pytest.raises(UserError, match=r"changed parameters between two epochs\(\) loops"):
            phases(Training(join()))


def test_a_script_that_exits_with_status_0_in_its_loop_is_told_that_nothing_was_saved_there(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(join())
    with pytest.raises(SystemExit), training.session as session:  # noqa: PT012 - what leaves is the script
        for _ in session.epochs(3):
            for _ in training.batches:
                session.step()
                if session.steps_done == 3:
                    raise SystemExit(0)
    assert "ended in its epoch loop at step 3" in (told := capfd.readouterr().err)
    assert "nothing was saved there, the next run begins afresh" in told


def test_a_script_that_registers_nothing_is_told_so(join: Join, capfd: pytest.CaptureFixture[str]) -> None:
    perdure.restore(join())
    assert "no model and no optimizer is registered, so none is saved" in capfd.readouterr().err
    perdure.restore(Training(join()).session)
    assert "is registered, so none is saved" not in capfd.readouterr().err


@pytest.mark.parametrize("after", [False, True])
def test_a_module_that_is_cast_in_the_middle_of_training_is_refused_at_the_save_but_one_cast_after_it_is_not(
    join: Join, after: bool
) -> None:
    def train() -> None:
        training = Training(join())
        with training.session as session:
            for epoch in session.epochs(2):
                if epoch == 1 and not after:
                    training.net.double()
                    training.optimizer.state.clear()
                for inputs, _ in training.batches:
                    training.optimizer.zero_grad()
                    session.weighted(training.net(inputs.to(training.net[0].weight.dtype)).square().mean()).backward()
                    training.optimizer.step()
                    session.step()
            training.net.double()

    if after:
        train()
        return
    with pytest.raises(UserError, match=r"weight was torch.float32 when training began and is torch.float64 now.*cast"):
        train()
