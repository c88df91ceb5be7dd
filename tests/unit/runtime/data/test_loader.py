"""What a script gets from a loader: its batches, their ids, and no draw from the global generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from perdure.data.loader import Loader
from perdure.data.sampling import SamplingPlan
from perdure.errors import UserError


class Squares(Dataset[Any]):
    """Sample n is (n * n, a random number drawn where the sample is made)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, n: int) -> dict[str, Any]:
        return {"square": torch.tensor([n * n]), "noise": torch.rand(1), "name": f"sample {n}"}


class Epochs:
    """A session's part in a loader's life."""

    def __init__(self, epoch: int | None = 0) -> None:
        self.epoch = epoch
        self.before = 0

    def before_first_batch(self) -> None:
        self.before += 1

    def handed(self, loader: Loader) -> None:
        pass


def loader(size: int = 21, *, rank: int = 0, world: int = 1, epochs: Epochs | None = None, **options: Any) -> Loader:
    plan = SamplingPlan("train", size, batch=8, seed=3)
    return Loader(Squares(size), plan, epochs or Epochs(), rank=rank, world=world, options=options)


def states() -> list[Any]:
    legacy: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist()]


def test_the_ids_that_are_recorded_are_those_of_the_items_in_the_batch() -> None:
    one = loader()
    for batch in one:
        found = one.advance()
        assert batch["square"].flatten().tolist() == [n * n for n in found]
        assert batch["name"] == [f"sample {n}" for n in found]


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_leaves_the_global_generators_alone(workers: int) -> None:
    class Fixed(Squares):
        def __getitem__(self, n: int) -> dict[str, Any]:
            return {"number": n}

    before = states()
    plan = SamplingPlan("train", 21, batch=8)
    list(Loader(Fixed(21), plan, Epochs(), rank=0, world=1, options={"num_workers": workers}))
    assert states() == before


def test_iterating_does_not_depend_on_the_default_device() -> None:
    torch.set_default_device("meta")
    try:
        found = list(loader(collate_fn=len))
    finally:
        torch.set_default_device(None)
    assert found == [8, 8, 5]


def test_a_rank_without_a_sample_gets_the_same_structure_with_nothing_in_it() -> None:
    last = [list(loader(17, rank=rank, world=3))[-1] for rank in range(3)]
    assert [batch["square"].shape for batch in last] == [(1, 1), (0, 1), (0, 1)]
    assert last[2]["name"] == []


def test_an_empty_part_has_no_ids_and_weighs_nothing() -> None:
    one = loader(17, rank=2, world=3)
    for _ in one:
        ids = one.advance()
    assert ids == []
    assert one.current is not None
    assert one.current.weight == 0.0


def test_what_was_handed_out_counts_only_once_a_step_is_done() -> None:
    one = loader()
    walk = iter(one)
    next(walk), next(walk)
    assert one.consumed == 0
    one.advance()
    assert one.consumed == 16


def test_the_session_is_called_once_before_anything_is_fetched() -> None:
    epochs = Epochs()
    walk = iter(loader(epochs=epochs))
    assert epochs.before == 0
    next(walk), next(walk)
    assert epochs.before == 1


def test_the_session_is_called_even_if_nothing_of_the_epoch_is_left() -> None:
    epochs = Epochs()
    one = loader(epochs=epochs)
    one.rewind(21)
    assert list(one) == []
    assert epochs.before == 1


def test_random_numbers_in_workers_depend_on_the_sample_alone() -> None:
    def noise(consumed: int, workers: int) -> dict[int, float]:
        one = loader(num_workers=workers)
        found: dict[int, float] = {}
        one.rewind(consumed)
        for batch in one:
            found |= dict(zip(one.advance(), batch["noise"].flatten().tolist(), strict=True))
        return found

    straight, resumed = noise(0, 1), noise(8, 2)
    assert {sample: straight[sample] for sample in resumed} == resumed


def test_a_loader_outside_of_an_epoch_is_a_mistake_that_is_named() -> None:
    with pytest.raises(UserError, match=r"session\.epochs"):
        iter(loader(epochs=Epochs(None)))


def test_a_second_pass_in_one_epoch_is_a_mistake_that_is_named() -> None:
    one = loader()
    list(one)
    with pytest.raises(UserError, match="one pass an epoch"):
        iter(one)


def test_its_length_is_what_is_left_of_the_epoch() -> None:
    one = loader()
    assert len(one) == 3
    one.rewind(8)
    assert len(one) == 2
