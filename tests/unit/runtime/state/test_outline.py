"""A module's parameters, looked for again only where something of it has been replaced: that must never be missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from perdure.state.outline import Outline
from perdure.state.registry import Registry


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
        self.scale = nn.Parameter(torch.ones(1))


def _another_parameter(net: Net) -> None:
    net.first.weight = nn.Parameter(torch.zeros(3, 2))


def _one_more_parameter(net: Net) -> None:
    net.first.register_parameter("more", nn.Parameter(torch.zeros(2)))


def _one_less_parameter(net: Net) -> None:
    net.first.register_parameter("bias", None)


def _another_part(net: Net) -> None:
    net.second[1] = nn.PReLU()


def _one_more_part(net: Net) -> None:
    net.second[1].add_module("inside", nn.Linear(1, 1))


def _one_less_part(net: Net) -> None:
    del net.second[2]


def _tied(net: Net) -> None:
    net.second[0].bias = net.first.bias


def _another_table(net: Net) -> None:
    net.first._parameters = {"weight": nn.Parameter(torch.zeros(3, 2))}


def _made_of_others(net: Net) -> None:
    parametrize.register_parametrization(net.first, "weight", nn.Tanh())


CHANGES: list[Callable[[Net], None]] = [
    _another_parameter,
    _one_more_parameter,
    _one_less_parameter,
    _another_part,
    _one_more_part,
    _one_less_part,
    _tied,
    _another_table,
    _made_of_others,
]


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__[1:] for change in CHANGES])
def test_whatever_is_replaced_in_a_module_is_noticed(change: Callable[[Net], None]) -> None:
    net = Net()
    outline = Outline(net)
    outline.parameters()
    change(net)
    found, wanted = outline.parameters(), list(net.parameters())
    assert len(found) == len(wanted)
    assert all(one is other for one, other in zip(found, wanted, strict=True))


def test_a_parameter_that_has_another_name_is_noticed() -> None:
    net = nn.Linear(2, 3, bias=False)
    outline = Outline(net)
    before = outline.parameters()
    prune.l1_unstructured(net, "weight", amount=0.5)
    assert outline.parameters() is not before


def test_a_module_that_is_as_it_was_is_not_walked_again() -> None:
    outline = Outline(Net())
    assert outline.parameters() is outline.parameters()


def test_a_registry_has_the_parameters_of_all_its_modules_each_once() -> None:
    net, other = Net(), nn.Linear(2, 3)
    other.weight = net.first.weight
    registry = Registry()
    registry.add("net", net)
    registry.add("other", other)
    before = registry.parameters()
    assert [id(one) for one in before] == [*map(id, net.parameters()), id(other.bias)]
    assert registry.parameters() is before
    _one_more_parameter(net)
    assert len(registry.parameters()) == len(before) + 1
