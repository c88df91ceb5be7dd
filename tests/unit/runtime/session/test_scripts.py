"""Scripts as people write them, against the habits of the examples: interrupted and resumed they lose nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import perdure
from perdure import UserError
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training, samples


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


def test_what_a_changed_script_sets_otherwise_in_an_optimizer_is_said_once_and_the_checkpoints_stays(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(stop: int | None, **changed: float) -> list[str]:
        training = Training(join())
        training.optimizer.param_groups[0].update(changed)
        scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
        training.session.register(scheduler=scheduler)
        set_to = []
        with contextlib.suppress(SystemExit), training.session as session:
            for _ in session.epochs(2):
                set_to.append(training.optimizer.param_groups[0]["weight_decay"])
                for inputs, _ in training.batches:
                    session.weighted(training.net(inputs).square().mean()).backward()
                    training.optimizer.step()
                    if session.steps_done == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                    scheduler.step()
        assert not any(set_to)
        return [line for line in capfd.readouterr().err.splitlines() if "this script" in line]

    assert run(1) == []
    assert run(3) == []  # the scheduler has changed the rate, the script has not
    (line,) = run(5, weight_decay=0.1)
    assert "optimizer: weight_decay was 0 when the checkpoint's run began and is 0.1 in this script" in line
    assert "the checkpoint's 0 stays" in line
    assert run(None, weight_decay=0.1) == []


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_layer_that_rests_after_a_resume_is_treated_as_its_gradient_was_left(
    join: Join, tmp_path: Path, set_to_none: bool, first: bool
) -> None:
    """With set_to_none=False it has a gradient of zeros, by which AdamW decays it. `first`: the first layer rests, from
    the first step on."""

    def run(root: str, stop: int | None = None) -> list[float]:
        training = Training(join(ROOT=f"file://{tmp_path}/{root}"))
        optimizer = torch.optim.AdamW(training.net.parameters(), lr=0.1, weight_decay=0.1)
        training.session.register(adam=optimizer)
        with contextlib.suppress(SystemExit), training.session as session:
            for _ in session.epochs(2):
                for inputs, _ in training.batches:
                    optimizer.zero_grad(set_to_none=set_to_none)
                    rests = session.steps_done % 3 == (0 if first else 2)
                    part = training.net[2] if first else training.net[0]
                    given = inputs.repeat(1, 2) if first and rests else inputs
                    (part if rests else training.net)(given).square().mean().backward()
                    optimizer.step()
                    if session.steps_done == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
        return [value for parameter in training.net.parameters() for value in parameter.flatten().tolist()]

    for stop in (1, 4, 7):
        run("disturbed", stop)
    assert run("disturbed") == run("undisturbed")


def test_a_sparse_gradient_is_none_after_a_resume_as_before(join: Join) -> None:
    """Its optimizer takes no dense one."""

    def run(stop: int | None = None) -> int:
        session = join()
        embedding = torch.nn.Embedding(64, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        session.register(embedding=embedding, optimizer=optimizer)
        with contextlib.suppress(SystemExit), session:
            for _ in session.epochs(2):
                for _, numbers in session.loader(samples(), 8):
                    optimizer.zero_grad(set_to_none=False)
                    embedding(numbers).square().mean().backward()
                    optimizer.step()
                    if session.steps_done == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
        return session.steps_done

    assert run(stop=4) < run() == 10
