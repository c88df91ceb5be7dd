"""Copies of what changes between two steps are what `copy.deepcopy` makes."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch

from perdure.state.copies import copied


class Grid(list[int]):
    """A list of the script's own."""


PLAIN: dict[str, Any] = {
    "numbers": {"lr": 0.1, "betas": (0.9, 0.999), "fused": None, "maximize": False, "steps": [1, [2, {3: "x"}]]},
    "counter": {"milestones": Counter({4: 1, 2: 1})},
    "ordered": OrderedDict(last=1, first=[2]),
    "own class": [Grid([1, 2])],
    "odd key": {(1, "x"): [1]},
    "tensor": {"lr": torch.tensor(0.5), "mean": [torch.arange(3)]},
}


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN.keys())
def test_a_copy_is_equal_and_of_the_same_types(value: Any) -> None:
    assert repr(copied(value)) == repr(copy.deepcopy(value))


@pytest.mark.parametrize(
    "inner", [[1], {"a": 1}, Grid([1]), torch.zeros(2)], ids=["list", "dict", "own class", "tensor"]
)
def test_nothing_that_could_change_is_shared(inner: Any) -> None:
    taken = copied({"key": ([inner],)})
    assert taken["key"][0][0] is not inner
    assert repr(taken) == repr({"key": ([inner],)})


def test_what_holds_itself_is_copied_too() -> None:
    value: list[Any] = []
    value.append(value)
    taken = copied(value)
    assert taken is not value
    assert taken[0] is taken
