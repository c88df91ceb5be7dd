"""The norms of one rank's gradients; those of several are measured by real ranks in test_measurements."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perdure.loop.measuring.gradient_norms import LoneNorms, Owned, by_group, product, squared_norm


class Registered:
    """Stands for a registry."""

    def __init__(self, *things: Any) -> None:
        self.things = [*things]
        self.sharded_modules: list[nn.Module] = []


class Lone:
    """A rank that trains a small network."""

    def __init__(self, *, scaler: torch.amp.GradScaler | None = None, inner: bool = True) -> None:
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        self.net[2].bias.requires_grad_(False)
        self.scaler = scaler
        groups = [{"params": [*self.net[0].parameters()]}, {"params": [*self.net[2].parameters()]}]
        self.optimizer = torch.optim.SGD(groups if inner else groups[:1], lr=0.0)
        self.registered = Registered(self.net, self.optimizer, *([scaler] if scaler else []))
        self.owned = Owned(self.registered)
        self.norms = LoneNorms(self.owned)
        assert self.owned.look()
        self.norms.attach()

    def backward(self, seed: int, samples: int = 5) -> list[Tensor | None]:
        """The gradient of one micro-batch, which is added to what is there."""
        inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed))
        twin = copy.deepcopy(self.net)
        twin.zero_grad()
        loss_of(twin, inputs).backward()
        loss = loss_of(self.net, inputs)
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return [parameter.grad for parameter in twin.parameters()]


def loss_of(net: nn.Module, inputs: Tensor) -> Tensor:
    found: Tensor = net(inputs).square().sum(1).mean()
    return found


def norms(gradients: list[Tensor | None]) -> list[float]:
    found = [0.0 if one is None else float(one.double().square().sum()) for one in gradients]
    return [found[0] + found[1], found[2] + found[3]]


def test_the_parts_of_an_accumulated_step() -> None:
    lone = Lone()
    for _ in range(2):  # of the first it is not known how many parts it has
        lone.optimizer.zero_grad()
        parts = [lone.backward(seed) for seed in range(3)]
        taken = lone.norms.take([5, 5, 5])
    assert taken
    step, sizes = taken
    total = [parameter.grad for parameter in lone.net.parameters()]
    assert sizes == [5, 5, 5]
    assert step.own.tolist() == pytest.approx([9 * sum(pair) for pair in zip(*map(norms, parts), strict=True)])
    assert step.mean.tolist() == pytest.approx(norms(total))


def test_two_steps_in_a_row_are_two_parts() -> None:
    lone = Lone()
    lone.backward(0)
    assert lone.norms.take([5]) is None
    pair = []
    for seed, samples in ((1, 5), (2, 7)):
        lone.optimizer.zero_grad()
        pair.append(lone.backward(seed, samples))
        taken = lone.norms.take([samples])
    assert taken
    step, sizes = taken
    mean = [None if one is None or other is None else (one + other) / 2 for one, other in zip(*pair, strict=True)]
    assert sizes == [5, 7]
    assert step.own.tolist() == pytest.approx([sum(both) for both in zip(*map(norms, pair), strict=True)])
    assert step.mean.tolist() == pytest.approx(norms(mean))
    assert not lone.norms._kept


def test_only_what_an_optimizer_owns_counts() -> None:
    lone = Lone(inner=False)
    for _ in range(2):
        lone.optimizer.zero_grad()
        parts = [lone.backward(seed) for seed in range(2)]
        taken = lone.norms.take([5, 5])
    assert taken
    assert taken[0].own.tolist() == pytest.approx([4 * sum(norms(part)[0] for part in parts)])
    assert lone.net[2].weight._backward_hooks is None


@pytest.mark.parametrize("parts", [1, 2])
def test_the_scale_of_a_loss_is_taken_out(parts: int) -> None:
    """Also where it changes between the two steps of a pair."""
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        lone = Lone(scaler=scaler)
        for step in range(3):
            lone.optimizer.zero_grad()
            for part in range(parts):
                lone.backward(2 * step + part)
            found = lone.norms.take([5] * parts)
            if scaler and step == 1:
                scaler.update(64.0)
        assert found
        results.append([*found[0].own.tolist(), *found[0].mean.tolist()])
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_parts_that_differ_by_a_sample_are_parts_of_a_step() -> None:
    lone = Lone()
    for _ in range(2):
        lone.optimizer.zero_grad()
        parts = [lone.backward(seed, samples) for seed, samples in enumerate((5, 4))]
        taken = lone.norms.take([5, 4])
    assert taken
    step, sizes = taken
    assert sizes == [5, 4]
    assert step.own.tolist() == pytest.approx([4 * sum(pair) for pair in zip(*map(norms, parts), strict=True)])


@pytest.mark.parametrize("sizes", [[5, 3], [5]])
def test_parts_of_unlike_sizes_and_a_gradient_computed_twice_tell_nothing(sizes: list[int]) -> None:
    lone = Lone()
    for _ in range(3):
        lone.optimizer.zero_grad()
        lone.backward(0)
        lone.backward(1)
        assert lone.norms.take(sizes) is None


def test_a_group_that_is_added_is_looked_at_and_without_hooks_nothing_is_seen() -> None:
    lone = Lone(inner=False)
    assert not lone.owned.look()
    lone.optimizer.add_param_group({"params": [*lone.net[2].parameters()]})
    assert lone.owned.look()
    assert lone.owned.groups == 2
    lone.norms.detach()
    lone.backward(0)
    assert lone.norms.take([5]) is None
    assert not any(parameter._backward_hooks for parameter in lone.net.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norms_are_exact_enough_in_each_type(dtype: torch.dtype) -> None:
    values = torch.full((1 << 20,), 8.0, dtype=dtype)
    assert float(product(values, values)) == pytest.approx(64.0 * (1 << 20), rel=1e-4)
    turned = values.view(1 << 10, 1 << 10).t()[:, ::2]
    assert float(squared_norm([turned, values])) == pytest.approx(96.0 * (1 << 20), rel=1e-4)


def test_groups_without_a_gradient_are_zero() -> None:
    one = torch.ones((), dtype=torch.float64)
    assert by_group([(1, one), (1, one)], 3).tolist() == [0.0, 2.0, 0.0]
    assert by_group([], 2).tolist() == [0.0, 0.0]
