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
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from perdure.loop.data.randomness import draws_nothing, own_generators

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
        (torch.utils.data.random_split, []),
        (SimpleNamespace(shuffle=random.shuffle, numpy=np.random.mtrand._rand), []),
    ],
    ids=[
        "attribute",
        "transform",
        "subset",
        "concatenation",
        "closure",
        "method",
        "none",
        "function",
        "partial",
        "torchs",
        "globals",
    ],
)
def test_generators_of_its_own_are_found_by_their_paths(thing: Any, paths: list[str]) -> None:
    assert own_generators(thing) == paths


def test_a_dataset_that_contains_itself_and_a_million_samples_is_looked_at_briefly() -> None:
    endless = dataset(samples=[[n] for n in range(1_000_000)])
    vars(endless)["me"] = endless
    assert own_generators(endless) == []


class Augmented(TensorDataset):
    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        return (self.tensors[0][number] + torch.rand(1),)


class Drawn(list[int]):
    def __getitem__(self, number: Any) -> Any:
        return super().__getitem__(int(torch.randint(len(self), (1,))))


class Noisy(torch.Tensor):
    def __getitem__(self, number: Any) -> Any:
        return super().__getitem__(number) + torch.rand(1)


PLAIN = TensorDataset(torch.ones(3), torch.ones(3))
AUGMENTED = Augmented(torch.ones(3))


@pytest.mark.parametrize(
    "thing",
    [
        PLAIN,
        Subset(PLAIN, [0, 2]),
        torch.utils.data.random_split(PLAIN, [1, 2])[1],
        ConcatDataset([PLAIN, Subset(PLAIN, range(2))]),
        StackDataset(PLAIN, PLAIN),
        StackDataset(one=PLAIN, two=Subset(PLAIN, range(3))),
        [{"image": torch.ones(3)}],
    ],
)
def test_of_torchs_own_datasets_and_of_what_is_given_as_it_is_held_it_is_known_that_nothing_is_drawn(
    thing: Any,
) -> None:
    assert draws_nothing(thing)


@pytest.mark.parametrize(
    "thing",
    [
        AUGMENTED,
        Subset(AUGMENTED, [0, 2]),
        Subset(PLAIN, Drawn([0, 2])),
        ConcatDataset([PLAIN, AUGMENTED]),
        StackDataset(PLAIN, AUGMENTED),
        StackDataset(one=PLAIN, two=AUGMENTED),
        TensorDataset(torch.ones(3).as_subclass(Noisy)),
        Drawn([1]),
        SimpleNamespace(),
    ],
)
def test_what_anybody_else_has_written_may_draw(thing: Any) -> None:
    assert not draws_nothing(thing)
