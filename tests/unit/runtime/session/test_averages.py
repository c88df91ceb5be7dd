"""Averages of weights that a script keeps in its own tensors are reported, and nothing else that it keeps there.

The scripts assert nothing themselves: pytest's asserts call `locals()`, and callers of that are left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure import Session
from tests.unit.runtime.session.training import Join, samples

After = Callable[[int], None]
"""What a script does after step n."""
Keep = Callable[[nn.Module], tuple[Any, After]]
"""How it keeps something, beside the model: what it keeps, and what it does with that."""
TOLD = "which follows weights of a registered module: each resumed run would start it from scratch"


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))


class Shadow:
    """As tutorials write it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.shadow: dict[str, Tensor] = {}
        self.backup: dict[str, Tensor] = {}
        for name, one in model.named_parameters():
            self.shadow[name] = one.data.clone()

    def update(self) -> None:
        for name, one in self.model.named_parameters():
            self.shadow[name] = (1.0 - self.decay) * one.data + self.decay * self.shadow[name]


@dataclass(slots=True)
class Slow:
    weights: tuple[Tensor, ...]


# Each is kept, and changed after each step.


def mapping(model: nn.Module) -> tuple[Any, After]:
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def after(_: int) -> None:
        for name, one in model.named_parameters():
            shadow[name].mul_(0.99).add_(one.detach(), alpha=0.01)

    return shadow, after


def listed(model: nn.Module) -> tuple[Any, After]:
    shadow = [one.detach().clone() for one in model.parameters()]

    def after(_: int) -> None:
        torch._foreach_lerp_(shadow, [one.detach() for one in model.parameters()], 0.1)

    return shadow, after


def in_an_object(model: nn.Module) -> tuple[Any, After]:
    ema = Shadow(model, 0.999)
    return ema, lambda _: ema.update()


def made_anew(model: nn.Module) -> tuple[Any, After]:
    kept = {"ema": {name: one.detach().clone() for name, one in model.state_dict().items()}}

    def after(_: int) -> None:
        mixed = {name: 0.9 * kept["ema"][name] + 0.1 * one for name, one in model.state_dict().items()}
        kept["ema"] = mixed

    return kept, after


def mean_of_all(model: nn.Module) -> tuple[Any, After]:
    mean = [torch.zeros_like(one) for one in model.parameters()]

    def after(step: int) -> None:
        for mine, its in zip(mean, model.parameters(), strict=True):
            mine.add_((its.detach() - mine) / step)

    return mean, after


def every_third(model: nn.Module) -> tuple[Any, After]:
    slow = Slow(tuple(one.detach().clone() for one in model.parameters()))

    def after(step: int) -> None:
        for mine, its in zip(slow.weights, model.parameters(), strict=True):
            if step % 3 == 0:
                mine.lerp_(its.detach(), 0.5)

    return slow, after


def best_so_far(model: nn.Module) -> tuple[Any, After]:
    best = [one.detach().clone() for one in model.parameters()]

    def after(step: int) -> None:
        for mine, its in zip(best, model.parameters(), strict=True):
            if step == 4:
                mine.copy_(its.detach())

    return best, after


FOLLOW: dict[Keep, str] = {
    mapping: "kept",
    listed: "kept",
    in_an_object: "kept.shadow",
    made_anew: "kept['ema']",
    mean_of_all: "kept",
    every_third: "kept.weights",
    best_so_far: "kept",
}


# None of these is an average.


def gradients(model: nn.Module) -> tuple[Any, After]:
    """The newest ones, their sum over the last step, and the tensors themselves."""
    kept: dict[str, Any] = {"own": [], "sum": [torch.zeros_like(one) for one in model.parameters()], "last": []}

    def after(_: int) -> None:
        kept["own"] = [one.grad for one in model.parameters()]
        kept["last"] = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        for mine, its in zip(kept["sum"], kept["last"], strict=True):
            mine.zero_().add_(its)

    return kept, after


def copies(model: nn.Module) -> tuple[Any, After]:
    """Of this step and of the one before it, and aliases."""
    kept: dict[str, Any] = {"aliases": model.state_dict(), "now": [], "before": []}
    in_place = [one.detach().clone() for one in model.parameters()]

    def after(_: int) -> None:
        kept["before"] = kept["now"]
        kept["now"] = [one.detach().clone() for one in model.parameters()]
        for mine, its in zip(in_place, model.parameters(), strict=True):
            mine.copy_(its.detach())

    kept["in_place"] = in_place
    return kept, after


def from_the_start(model: nn.Module) -> tuple[Any, After]:
    return [one.detach().clone() for one in model.parameters()], lambda _: None


def inner_steps(model: nn.Module) -> tuple[Any, After]:
    """Weights made from the present ones: MAML's, with noise, quantized, masked, halfway back."""
    kept: dict[str, Any] = {}
    before = {name: one.detach().clone() for name, one in model.named_parameters()}

    def after(_: int) -> None:
        now = {name: one.detach().clone() for name, one in model.named_parameters()}
        grads = {name: torch.zeros(()) if one.grad is None else one.grad for name, one in model.named_parameters()}
        kept["fast"] = {name: one - 0.01 * grads[name] for name, one in now.items()}
        kept["ahead"] = {name: one + 0.5 * (one - before[name]) for name, one in now.items()}
        kept["noisy"] = {name: one + 0.01 * torch.randn_like(one) for name, one in now.items()}
        kept["rounded"] = {name: (one * 16).round() / 16 for name, one in now.items()}
        kept["masked"] = {name: one * (one.abs() > 0.05) for name, one in now.items()}
        kept["half"] = {name: one.half() for name, one in now.items()}
        before.update(now)

    return kept, after


def in_the_shape_of_weights(model: nn.Module) -> tuple[Any, After]:
    """Batches and hidden values in the shape of a weight, a confusion matrix, a queue."""
    kept: dict[str, Any] = {"confusion": torch.zeros(8, 8), "queue": deque([torch.rand(8, 8)] * 3, maxlen=3)}

    def after(step: int) -> None:
        kept["batch"], kept["hidden"] = torch.rand(8, 4), torch.rand(8, 8)
        kept["confusion"] += torch.rand(8, 8).round()
        kept["queue"].append(torch.rand(8, 8))
        kept["mean"] = 0.9 * kept.get("mean", 0) + 0.1 * torch.rand(8, 8)

    return kept, after


class Saved(Shadow):
    """The same with a state_dict."""

    def state_dict(self) -> dict[str, Any]:
        return self.shadow

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.shadow = state


NO_AVERAGES = (gradients, copies, from_the_start, inner_steps, in_the_shape_of_weights)


def trained(session: Session, keep: Keep, **registered: Any) -> None:
    """Eight steps and more, as torch.optim.Adam makes them."""
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.register(model=model, optimizer=optimizer, **registered)
    kept, after = keep(model)
    with session:
        for _ in session.epochs(2):
            for inputs, _ in session.loader(samples(), 8):
                optimizer.zero_grad()
                (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
                after(session.steps_done + 1)
                session.step()
    del kept


def told_of(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if "each resumed run would start" in line]


@pytest.mark.parametrize("keep", FOLLOW, ids=lambda one: one.__name__)
def test_an_average_that_is_not_registered_is_reported_once_wherever_the_script_keeps_it(
    join: Join, keep: Keep, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(join(), keep)
    (line,) = told_of(capfd)
    assert f"steps change {FOLLOW[keep]}, {TOLD}" in line


@pytest.mark.parametrize("keep", NO_AVERAGES, ids=lambda one: one.__name__)
def test_nothing_is_reported_of_what_is_no_average(join: Join, keep: Keep, capfd: pytest.CaptureFixture[str]) -> None:
    trained(join(), keep)
    assert told_of(capfd) == []


def test_an_average_that_is_registered_is_not_reported(join: Join, capfd: pytest.CaptureFixture[str]) -> None:
    made: list[Saved] = []

    def keep(model: nn.Module) -> tuple[Any, After]:
        made.append(Saved(model, 0.9))
        session.register(ema=made[0])
        return made, lambda _: made[0].update()

    session = join()
    trained(session, keep)
    assert told_of(capfd) == []


def test_an_average_in_session_state_is_not_reported(join: Join, capfd: pytest.CaptureFixture[str]) -> None:
    def keep(model: nn.Module) -> tuple[Any, After]:
        ema = Shadow(model, 0.9)

        def after(_: int) -> None:
            session.state["ema"] = ema.shadow
            ema.update()

        return ema, after

    session = join()
    trained(session, keep)
    assert told_of(capfd) == []
