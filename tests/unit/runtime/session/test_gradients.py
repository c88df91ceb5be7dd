"""Scripts that add up gradients over several batches: if each of these is a step of the session, that is reported.

Here on one rank; on two, with DistributedDataParallel, in test_ranks.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from perdure import Session
from tests.unit.runtime.session.training import Join, samples

TOLD = "call session.step() only after optimizer.step()"
Body = Callable[[int, torch.optim.Optimizer, Session], None]
Before = Callable[[int, torch.optim.Optimizer], None]


def trained(join: Join, body: Body, before: Before = lambda *_: None) -> None:
    """`body` follows each backward pass, and `before` precedes it."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    made = torch.optim.SGD(net.parameters(), lr=0.01)
    with join() as session:
        session.register(net=net, optimizer=made)
        loader = session.loader(samples(), 4)
        for _ in session.epochs(2):
            made.zero_grad()
            for number, (inputs, _) in enumerate(loader, loader.batch_index):
                loss = net(inputs).square().mean()
                before(number, made)
                loss.backward()
                body(number, made, session)


def _every_batch(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
    session.step()


def _every_fourth(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    session.step()


def _every_fourth_by_hand(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    """Without the optimizer: the script changes the weights itself."""
    if number % 4 == 3:
        _descend(optimizer)
        optimizer.zero_grad(set_to_none=False)
    session.step()


def _each_by_hand(_: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    _descend(optimizer)
    optimizer.zero_grad(set_to_none=False)
    session.step()


def _each_by_hand_zeroed_late(_: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    _descend(optimizer)
    session.step()
    optimizer.zero_grad(set_to_none=False)


def _descend(optimizer: torch.optim.Optimizer) -> None:
    for weight in optimizer.param_groups[0]["params"]:
        weight.data -= 0.01 * weight.grad


def _with_the_optimizer(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        session.step()


def _dropping(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    """As a script does that leaves a batch out whose gradient is too large, or GradScaler where one overflows."""
    if number % 3:
        optimizer.step()
    session.step()
    optimizer.zero_grad()


def _dropping_to_zero(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    if number % 3:
        optimizer.step()
    session.step()
    optimizer.zero_grad(set_to_none=False)


def _dropping_to_zero_early(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    if number % 3:
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    session.step()


def _dropping_and_clipping(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    """The next gradients may lie where the dropped ones lay, and are written to once more often."""
    if number % 3:
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
        optimizer.step()
    session.step()
    optimizer.zero_grad()


def _leaving_out(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    """The gradients stay until the next backward pass."""
    if number % 3:
        optimizer.step()
    session.step()


def _twice_each(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
    session.step()


@pytest.mark.parametrize("body", [_every_batch, _every_fourth, _every_fourth_by_hand])
def test_a_step_at_each_part_of_a_larger_batch_is_reported_once_with_a_parameter(
    join: Join, capsys: pytest.CaptureFixture[str], body: Body
) -> None:
    trained(join, body)
    told = [line for line in capsys.readouterr().err.splitlines() if TOLD in line]
    assert len(told) == 1
    assert "added to the gradients that were there, of net.weight" in told[0]


NOT_HELD = (
    _with_the_optimizer,
    _dropping,
    _dropping_to_zero,
    _dropping_to_zero_early,
    _dropping_and_clipping,
    _twice_each,
    _each_by_hand,
    _each_by_hand_zeroed_late,
)


@pytest.mark.parametrize("body", NOT_HELD)
def test_gradients_that_no_step_of_the_session_leaves_to_the_next_batch_are_not_reported(
    join: Join, capsys: pytest.CaptureFixture[str], body: Body
) -> None:
    trained(join, body)
    assert TOLD not in capsys.readouterr().err


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_dropped_right_before_the_next_backward_pass_are_not_reported(
    join: Join, capsys: pytest.CaptureFixture[str], set_to_none: bool
) -> None:
    trained(join, _leaving_out, lambda _, optimizer: optimizer.zero_grad(set_to_none=set_to_none))
    assert TOLD not in capsys.readouterr().err


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_that_the_scaler_leaves_out_is_not_reported(
    join: Join, capsys: pytest.CaptureFixture[str], set_to_none: bool
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    left_out: list[float] = []

    def body(number: int, optimizer: torch.optim.Optimizer, session: Session) -> None:
        weights = optimizer.param_groups[0]["params"]
        for weight in weights:
            weight.grad *= scaler.scale(torch.tensor(float("inf") if number % 3 == 0 else 1.0))
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        left_out.extend([before] * (scaler.get_scale() < before))
        session.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    trained(join, body)
    assert left_out
    assert TOLD not in capsys.readouterr().err
