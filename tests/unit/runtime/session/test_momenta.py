"""Momentum that a script keeps by hand is reported, and nothing else of a script that steps its weights by hand.

The scripts assert nothing themselves: pytest's asserts call `locals()`, and callers of that are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure import Session
from tests.unit.runtime.session.training import Join, samples

Step = Callable[[list[nn.Parameter], dict[str, Any]], None]
"""A step by hand: the weights, with gradients, and what the script keeps."""
TOLD = "which carries on gradients of weights that no optimizer has"


@dataclass
class Trainer:
    """As people wrap it."""

    weights: list[nn.Parameter]
    kept: dict[str, Any] = field(default_factory=dict)


def zeros(weights: list[nn.Parameter]) -> list[Tensor]:
    return [torch.zeros_like(one) for one in weights]


def grad_of(weight: nn.Parameter) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


# With momentum


def polyak(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    for one, velocity in zip(weights, kept.setdefault("v", zeros(weights)), strict=True):
        velocity.mul_(0.9).add_(grad_of(one))
        one.sub_(0.05 * velocity)


def made_anew(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    kept["v"] = [0.5 * v - 0.05 * grad_of(one) for one, v in zip(weights, kept.get("v", zeros(weights)), strict=True)]
    for one, velocity in zip(weights, kept["v"], strict=True):
        one.add_(velocity)


def nesterov_with_decay(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    for one, velocity in zip(weights, kept.setdefault("v", zeros(weights)), strict=True):
        gradient = grad_of(one) + 0.1 * one
        velocity.mul_(0.8).add_(gradient)
        one.sub_(0.05 * (gradient + 0.8 * velocity))


def clipped(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    nn.utils.clip_grad_norm_(weights, 0.1)
    polyak(weights, kept)


def adam(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    kept["t"] = kept.get("t", 0) + 1
    for number, one in enumerate(weights):
        mean, square = kept.setdefault(str(number), {"m": torch.zeros_like(one), "s": torch.zeros_like(one)}).values()
        mean.mul_(0.9).add_(0.1 * grad_of(one))
        square.mul_(0.99).add_(0.01 * grad_of(one) ** 2)
        one.sub_(0.01 * mean / (1 - 0.9 ** kept["t"]) / ((square / (1 - 0.99 ** kept["t"])).sqrt() + 1e-8))


def by_name(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    velocities = kept.setdefault("v", {str(number): zeros([one])[0] for number, one in enumerate(weights)})
    for number, one in enumerate(weights):
        velocities[str(number)] = 0.9 * velocities[str(number)] + 0.1 * grad_of(one)
        one.data -= 0.1 * velocities[str(number)]


def squares(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    for one, square in zip(weights, kept.setdefault("s", zeros(weights)), strict=True):
        square.mul_(0.9).add_(0.1 * grad_of(one) ** 2)
        one.sub_(0.01 * grad_of(one) / (square + 1e-6).sqrt())


def sums(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    for one, square in zip(weights, kept.setdefault("s", zeros(weights)), strict=True):
        square.add_(grad_of(one) ** 2)
        one.sub_(0.01 * grad_of(one) / (square + 1e-6).sqrt())


# Without


def plain(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    for one in weights:
        one.sub_(0.05 * grad_of(one))


def clamped(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    plain(weights, kept)
    for one in weights:
        one.clamp_(-0.3, 0.3)
    kept["before"] = [one.detach().clone() for one in weights]


def gradients(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    """Copies, in new tensors and in the same ones, those of two steps, and what the weights go by."""
    for own, one in zip(kept.setdefault("same", zeros(weights)), weights, strict=True):
        own.copy_(grad_of(one))
    last, kept["new"] = kept.get("new", zeros(weights)), [grad_of(one).clone() for one in weights]
    kept["difference"] = [now - before for now, before in zip(kept["new"], last, strict=True)]
    kept["two"] = [now + before for now, before in zip(kept["new"], last, strict=True)]
    kept["steps"] = [-0.05 * one for one in kept["new"]]
    plain(weights, kept)


def parts_of_a_batch(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    """Sums over one batch, as of clipped gradients of samples."""
    total = kept.setdefault("total", zeros(weights))
    for own, one in zip(total, weights, strict=True):
        own.zero_()
        for _ in range(2):
            own.add_(grad_of(one) / 2)
        one.sub_(0.05 * own)


def signs_and_noise(weights: list[nn.Parameter], kept: dict[str, Any]) -> None:
    kept["noise"] = [torch.randn_like(one) for one in weights]
    kept["walk"] = [own + torch.randn_like(own) for own in kept.get("walk", zeros(weights))]
    for one, noise in zip(weights, kept["noise"], strict=True):
        one.sub_(0.01 * grad_of(one).sign() + 0.001 * noise)


MOMENTUM: dict[Step, str] = {
    polyak: "['v']",
    made_anew: "['v']",
    nesterov_with_decay: "['v']",
    clipped: "['v']",
    by_name: "['v']",
    squares: "['s']",
    sums: "['s']",
}
NONE = (plain, clamped, gradients, parts_of_a_batch, signs_and_noise)


def trained(session: Session, step: Step, *, zeroed: bool) -> None:
    """Gradients are zeroed in place at the next step's begin, or removed at the step's end."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
    trainer = Trainer(list(model.parameters()))
    session.register(model=model)
    with session:
        for _ in session.epochs(2):
            for inputs, _ in session.loader(samples(), 8):
                if not zeroed:
                    model.zero_grad(set_to_none=False)
                (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
                with torch.no_grad():
                    step(trainer.weights, trainer.kept)
                if zeroed:
                    model.zero_grad()
                session.step()


def told_of(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if "gradients" in line or "each resumed run" in line]


@pytest.mark.parametrize(("step", "zeroed"), [*((one, True) for one in MOMENTUM), (polyak, False)])
def test_momentum_that_is_kept_by_hand_is_reported_once(
    join: Join, step: Step, zeroed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(join(), step, zeroed=zeroed)
    (line,) = told_of(capfd)
    assert f"steps change trainer.kept{MOMENTUM[step]}, {TOLD}" in line


def test_momentum_that_each_weight_has_a_mapping_for_is_reported(join: Join, capfd: pytest.CaptureFixture[str]) -> None:
    trained(join(), adam, zeroed=True)
    found = [re.findall(r"steps change ([^,]*), which carries on", line) for line in told_of(capfd)]
    assert found == [["trainer.kept[...]['m']"], ["trainer.kept[...]['s']"]]


@pytest.mark.parametrize(("step", "zeroed"), [*((one, False) for one in NONE), (plain, True), (gradients, True)])
def test_nothing_is_reported_of_steps_by_hand_that_carry_nothing_on(
    join: Join, step: Step, zeroed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(join(), step, zeroed=zeroed)
    assert told_of(capfd) == []
