"""What a loss counts for where its items are counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from perdure.errors import UserError
from perdure.group.peers import Solo
from perdure.loop.data.evaluating import Evaluation
from perdure.loop.data.loader import Loader
from perdure.loop.data.sampling import SamplingPlan
from perdure.loop.position.progress import ProgressTracker
from perdure.loop.run import Run
from perdure.session.weighting import share, weigh, weighted
from perdure.wire.settings import Settings

RANKS = some.lists(some.lists(some.floats(-100, 100), max_size=9), min_size=1, max_size=6)


@given(RANKS)
def test_the_mean_over_ranks_of_weighted_means_is_the_mean_over_all_items(ranks: list[list[float]]) -> None:
    items = [item for rank in ranks for item in rank]
    counts = [len(rank) for rank in ranks]
    parts = [share(len(rank), counts) * sum(rank) / len(rank) if rank else 0.0 for rank in ranks]
    assert sum(parts) / len(ranks) == pytest.approx(sum(items) / len(items) if items else 0.0)


def test_alone_a_loss_is_what_it_was() -> None:
    loss = torch.tensor(0.3)
    assert weigh(loss, 17, None, Solo()) is loss


def test_losses_that_are_accumulated_add_up_to_the_mean_over_the_step() -> None:
    parts = [weigh(torch.tensor(2.0), 1, 4, Solo()), weigh(torch.tensor(6.0), torch.tensor(3), 4, Solo())]
    assert torch.stack(parts).sum().item() == (1 * 2.0 + 3 * 6.0) / 4


def test_a_loss_over_nothing_contributes_nothing_although_it_is_no_number() -> None:
    values = torch.ones(2, 3, requires_grad=True)
    loss = cross_entropy(values, torch.tensor([-100, -100]))
    assert math.isnan(loss.item())
    weighed = weigh(loss, 0, None, Solo())
    weighed.backward()
    assert weighed.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("n", [-1, math.nan, math.inf, True, "3", [3], torch.ones(2), object()])
def test_what_is_no_number_of_items_is_refused(n: Any) -> None:
    with pytest.raises(UserError, match=r"weighted\(loss, n=.*the number of items"):
        weigh(torch.ones(()), n, None, Solo())


@pytest.mark.parametrize("n", [None, 3])
@pytest.mark.parametrize("loss", ["x", 0.5, None, {"loss": torch.ones(())}])
def test_a_loss_that_is_no_tensor_is_refused_on_one_rank_too(loss: Any, n: int | None, tmp_path: Path) -> None:
    run = Run(Settings(tmp_path.as_uri()))
    run.peers = Solo()
    with pytest.raises(UserError, match=r"weighted\(.*give the loss as a tensor"):
        weighted(run, loss, n, None)


def test_a_step_of_fewer_items_than_one_of_its_losses_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be less than n"):
        weigh(torch.ones(()), 3, 2, Solo())


class Hearing(ProgressTracker):
    """As a loader hears of it by its session."""

    def draw_begins(self, source: object) -> None:
        """Nothing is measured."""


def made(kind: type[Loader], name: str, samples: int, progress: ProgressTracker) -> Loader:
    """What the second of four ranks has of a loader with one global batch."""
    plan = SamplingPlan(name, samples, batch=samples)
    loader = kind(TensorDataset(torch.ones(samples)), plan, cast(Any, progress), rank=1, world=4, options={})
    progress.add(loader)
    return loader


@pytest.mark.parametrize("kind", [Evaluation, Loader])
def test_a_loss_counts_by_its_own_batch_behind_an_evaluation_between_the_two(kind: type[Loader]) -> None:
    progress = Hearing()
    progress.begin_epoch()
    train, valid = made(Loader, "train", 5, progress), made(kind, "valid", 1, progress)
    before = progress.weighted(torch.tensor(1.0))
    for _ in train:
        own = progress.weighted(torch.tensor(1.0))
        for _ in valid:
            assert progress.weighted(torch.tensor(1.0)) == 0.0
        assert progress.weighted(torch.tensor(1.0)) == own == 0.8
    assert before == 1.0
