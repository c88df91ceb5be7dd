"""The learning rate in a step, and before and after it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from perdure.loop.adapting.scaled_rates import ScaledRates


class Rated(SGD):
    """Notes the rates at which it steps."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.seen: list[list[Any]] = []
        self.fails = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.seen.append([group["lr"] for group in self.param_groups])
        if self.fails:
            raise ValueError("a loss that is no number")
        return super().step(closure)


def rated(**options: Any) -> Rated:
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return Rated([{"params": [parameters[0]]}, {"params": [parameters[1]], "lr": 0.5}], lr=0.1, **options)


def rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def test_each_group_steps_at_its_own_rate_times_the_factor_and_has_its_own_again_afterwards() -> None:
    optimizer = rated()
    ScaledRates(lambda _: 4.0).follow([optimizer])
    optimizer.step()
    assert optimizer.seen == [[0.4, 2.0]]
    assert rates(optimizer) == [0.1, 0.5]
    assert optimizer.param_groups[0]["params"][0].tolist() == pytest.approx([0.6, 0.6])


def test_a_factor_of_one_changes_nothing() -> None:
    plain, followed = rated(momentum=0.9), rated(momentum=0.9)
    ScaledRates(lambda _: 1.0).follow([followed])
    for one in (plain, followed):
        one.step()
        one.step()
    assert followed.seen == plain.seen
    assert torch.equal(followed.param_groups[0]["params"][0], plain.param_groups[0]["params"][0])


def test_the_rate_is_put_back_after_a_step_that_raises() -> None:
    optimizer = rated()
    ScaledRates(lambda _: 4.0).follow([optimizer])
    optimizer.fails = True
    with pytest.raises(ValueError, match="no number"):
        optimizer.step()
    assert optimizer.seen == [[0.4, 2.0]]
    assert rates(optimizer) == [0.1, 0.5]


def test_a_step_that_is_not_due_changes_no_rate() -> None:
    optimizer = rated()

    def refuse(_: Any) -> float:
        raise RuntimeError("not yet")

    ScaledRates(refuse).follow([optimizer])
    with pytest.raises(RuntimeError, match="not yet"):
        optimizer.step()
    assert (optimizer.seen, rates(optimizer)) == ([], [0.1, 0.5])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("error")
def test_schedulers_see_the_base_rate_whether_they_were_made_before_or_after(first: bool) -> None:
    plain, followed = rated(), rated()
    scaled = ScaledRates(lambda _: 4.0)
    before = StepLR(followed, 1, 0.5) if first else None
    scaled.follow([followed])
    schedulers = [StepLR(plain, 1, 0.5), before or StepLR(followed, 1, 0.5)]
    for _ in range(3):
        for optimizer, scheduler in zip((plain, followed), schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        assert rates(followed) == rates(plain)
        assert schedulers[1].state_dict() == {**schedulers[0].state_dict()}
    assert followed.seen == [[4 * rate for rate in seen] for seen in plain.seen]


def test_following_twice_multiplies_once() -> None:
    optimizer, scaled = rated(), ScaledRates(lambda _: 4.0)
    scaled.follow([optimizer])
    scaled.follow([optimizer])
    optimizer.step()
    assert optimizer.seen == [[0.4, 2.0]]


class Around(SGD):
    """Steps another optimizer, whose groups are its own too."""

    def __init__(self, inner: Rated) -> None:
        super().__init__(inner.param_groups, lr=0.1)
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_that_steps_another_one_with_the_same_groups_multiplies_once() -> None:
    inner = rated()
    outer = Around(inner)
    ScaledRates(lambda _: 4.0).follow([outer, inner])
    outer.step()
    assert inner.seen == [[0.4, 2.0]]
    assert rates(inner) == rates(outer) == [0.1, 0.5]


def test_a_rate_that_is_a_tensor_is_put_back_as_the_same_tensor() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    rate = torch.tensor(0.25)
    optimizer = Adam([parameter], lr=rate)
    ScaledRates(lambda _: 2.0).follow([optimizer])
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25
    assert parameter.item() == pytest.approx(0.5)


class Setting(SGD):
    """Sets a rate in its step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = super().step(closure)
        self.param_groups[0]["lr"] = 7.0
        return found


def test_a_rate_that_the_step_sets_itself_stays() -> None:
    optimizer = Setting([nn.Parameter(torch.ones(1))], lr=0.1)
    ScaledRates(lambda _: 4.0).follow([optimizer])
    optimizer.step()
    assert rates(optimizer) == [7.0]


def test_a_state_and_a_copy_know_nothing_of_it() -> None:
    optimizer = rated()
    before = optimizer.state_dict()
    ScaledRates(lambda _: 4.0).follow([optimizer])
    assert optimizer.state_dict() == before
    assert "step" not in vars(copy.deepcopy(optimizer))


def test_gradients_that_a_scaler_skips_step_nothing_and_leave_the_rate() -> None:
    optimizer = rated()
    ScaledRates(lambda _: 4.0).follow([optimizer])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight: Tensor = optimizer.param_groups[0]["params"][0]
    for loss in (weight.sum() * float("inf"), weight.sum()):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.seen == [[0.4, 2.0]]
    assert rates(optimizer) == [0.1, 0.5]
