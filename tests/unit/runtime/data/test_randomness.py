"""Generators of a dataset's or a function's own are seen where they can be, and nothing else is taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from perdure.data.randomness import own_generators

OWN = random.Random(0)  # noqa: S311 - nothing is secret here


def closing_over(generator: random.Random) -> Callable[[], float]:
    def draw() -> float:
        return generator.random()

    return draw


def dataset(**attributes: Any) -> TensorDataset:
    made = TensorDataset(torch.ones(3))
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize(
    ("thing", "paths"),
    [
        (dataset(rng=np.random.default_rng(0)), ["rng"]),
        (dataset(transform=SimpleNamespace(steps=[torch.nn.Identity(), OWN])), ["transform.steps[1]"]),
        (Subset(dataset(generator=torch.Generator()), [0]), ["dataset.generator"]),
        (ConcatDataset([dataset(), dataset(state=np.random.RandomState(0))]), ["datasets[1].state"]),
        (closing_over(OWN), ["generator"]),
        (SimpleNamespace(rng=OWN).__getattribute__, ["self.rng"]),
        (dataset(), []),
        (closing_over, []),
        (partial(print, 3), []),
    ],
    ids=["attribute", "transform", "subset", "concatenation", "closure", "method", "none", "function", "partial"],
)
def test_generators_of_its_own_are_found_by_their_paths(thing: Any, paths: list[str]) -> None:
    assert own_generators(thing) == paths


def test_a_dataset_that_contains_itself_and_a_million_samples_is_looked_at_briefly() -> None:
    endless = dataset(samples=[[n] for n in range(1_000_000)])
    vars(endless)["me"] = endless
    assert own_generators(endless) == []
