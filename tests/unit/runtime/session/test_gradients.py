"""Scripts that add up gradients over several batches: if each of these is a step of the session, that is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from perdure import Session
from tests.unit.runtime.session.training import Join, samples

TOLD = "call session.step() only after optimizer.step()"
Body = Callable[[int, torch.optim.Optimizer, Session], None]


def trained(join: Join, body: Body) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    made = torch.optim.SGD(net.parameters(), lr=0.01)
    with join() as session:
        session.register(net=net, optimizer=made)
        loader = session.loader(samples(), 4)
        for _ in session.epochs(2):
            made.zero_grad()
            for number, (inputs, _) in enumerate(loader, loader.batch_index):
                net(inputs).square().mean().backward()
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


@pytest.mark.parametrize(
    "body", [_with_the_optimizer, _dropping, _twice_each, _each_by_hand, _each_by_hand_zeroed_late]
)
def test_gradients_that_no_step_of_the_session_leaves_to_the_next_batch_are_not_reported(
    join: Join, capsys: pytest.CaptureFixture[str], body: Body
) -> None:
    trained(join, body)
    assert TOLD not in capsys.readouterr().err
