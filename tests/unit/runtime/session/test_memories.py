"""State that a module carries from step to step in plain attributes is found; values made new in each step are not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perdure.session.memories import carried, memories

Keeps = Callable[[Any, torch.Tensor], None]


class Module(nn.Module):
    """It has one attribute of each kind, and a function for each way to keep something."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = torch.zeros(8, 2)
        self.array = np.zeros(4)
        self.mean = torch.zeros(2)
        self.hidden = torch.zeros(3, 2)
        self.recent: deque[torch.Tensor] = deque([torch.ones(2)] * 3, maxlen=4)
        self.bag = [torch.ones(2)]
        self.shadow = {"weight": torch.zeros(2)}
        self.last = torch.zeros(3, 2)
        self.mask = torch.ones(3, 2)
        self.maps = {"last": torch.zeros(3, 2)}
        self.outputs = [torch.zeros(3, 2)]
        self.total = torch.zeros(())

    def in_place(self, found: torch.Tensor) -> None:
        self.bank[:3] = found

    def array_in_place(self, found: torch.Tensor) -> None:
        self.array += float(found.sum())

    def running_mean(self, found: torch.Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * found.mean(0)

    def next_hidden(self, found: torch.Tensor) -> None:
        before = self.hidden
        self.hidden = torch.tanh(found + before)

    def newest(self, found: torch.Tensor) -> None:
        self.recent.append(found.mean(0))

    def gathered(self, found: torch.Tensor) -> None:
        self.bag.append(found.mean(0))

    def average(self, found: torch.Tensor) -> None:
        for name in ("weight",):
            assert name in self.shadow
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * found.mean(0)

    def looked_at(self, found: torch.Tensor) -> None:
        self.last = found.clone()
        if self.last is not None:
            self.maps["last"] = self.last.softmax(1)

    def masked(self, found: torch.Tensor) -> None:
        if self.mask is None or self.mask.shape != found.shape or not len(self.mask):
            return
        self.mask = (found > 0).float()

    def put_out(self, found: torch.Tensor) -> None:
        self.outputs.clear()
        self.outputs.append(found.clone())

    def counted(self, found: torch.Tensor) -> None:
        self.total += found.sum()

    def nothing(self, found: torch.Tensor) -> None: ...


def changed_by(name: str, weights: frozenset[bytes | None] = frozenset()) -> list[str]:
    module, saved = Module(), frozenset[int]()
    before = memories(module, saved)
    getattr(module, name)(torch.rand(3, 2, generator=torch.Generator().manual_seed(1)))
    return carried(Module, before, memories(module, saved), weights)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("in_place", "bank"),
        ("array_in_place", "array"),
        ("running_mean", "mean"),
        ("next_hidden", "hidden"),
        ("newest", "recent"),
        ("gathered", "bag"),
        ("average", "shadow"),
    ],
)
def test_what_a_step_carries_on_is_found(name: str, attribute: str) -> None:
    assert changed_by(name) == [attribute]


@pytest.mark.parametrize("name", ["looked_at", "masked", "put_out", "counted", "nothing"])
def test_tensors_made_in_each_step_and_single_numbers_are_left_out(name: str) -> None:
    assert changed_by(name) == []


def test_memory_of_a_parameter_is_left_out() -> None:
    module = Module()
    module.bank = module.bank.view(4, 4)
    before = memories(module, {module.bank.untyped_storage().data_ptr()})
    assert "bank" not in before
    assert "mean" in before


def test_a_copy_of_weights_is_left_out() -> None:
    module = Module()
    before = memories(module, frozenset())
    module.in_place(torch.ones(3, 2))
    now = memories(module, frozenset())
    copy = now["bank"].items[0].elements
    assert carried(Module, before, now, {copy}) == []


def test_nothing_that_is_looked_at_is_kept_alive() -> None:
    module = Module()
    before = memories(module, frozenset())
    module.looked_at(torch.ones(3, 2))
    assert before["last"].items[0].get() is None
