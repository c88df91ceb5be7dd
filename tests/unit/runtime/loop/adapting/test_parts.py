"""Batches that change, cut into parts and shares: nothing is lost or comes twice, and each share has its weight."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.loop.adapting.decision import BatchDecision, fitted
from perdure.loop.adapting.parts import PartShares, batches, count
from perdure.loop.data.sampling import SamplingPlan


def decision(batch: int, consumed: int = 0, *, ranks: int = 1, most: int = 1 << 20, epoch: int = 0) -> BatchDecision:
    whole = BatchDecision(epoch, consumed, ranks, batch, batch, 0, None, 1.0)
    return fitted(whole, ranks, most, accumulates=True)


def shares(
    samples: int, decisions: list[BatchDecision], rank: int, world: int, *, consumed: int = 0, epoch: int = 0
) -> PartShares:
    plan = SamplingPlan("train", samples, 8)
    return PartShares(plan.order(epoch), decisions, epoch, consumed, samples, rank, world)


@settings(deadline=None, max_examples=200)
@given(
    samples=st.integers(1, 300),
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 300)), min_size=1, max_size=4),
    world=st.integers(1, 5),
    most=st.integers(1, 40),
    consumed=st.integers(0, 300),
)
def test_each_sample_comes_once_and_each_batch_has_the_weight_of_its_samples(
    samples: int, sizes: list[tuple[int, int]], world: int, most: int, consumed: int
) -> None:
    consumed = min(consumed, samples)
    begins = [0, *sorted(start for _, start in sizes[1:])]
    decisions = [decision(size, start, ranks=world, most=most) for (size, _), start in zip(sizes, begins, strict=True)]
    ranks = [list(shares(samples, decisions, rank, world, consumed=consumed)) for rank in range(world)]
    plan = SamplingPlan("train", samples, 8)
    ids = list(
        chain.from_iterable(chain.from_iterable(part.ids for part in parts) for parts in zip(*ranks, strict=True))
    )
    assert ids == plan.order(0)[consumed:samples].tolist(), "in the one order, whoever gets them"
    assert max((len(part.ids) for parts in ranks for part in parts), default=0) <= most
    assert (
        {len(parts) for parts in ranks}
        == {count(decisions, 0, consumed, samples)}
        == {len(shares(samples, decisions, 0, world, consumed=consumed))}
    )
    weights: Counter[int] = Counter()
    for part in chain.from_iterable(ranks):
        weights[part.batch.start] += part.weight * (part.batch.stop - part.batch.start)  # type: ignore[assignment]
        assert part.placeholder in plan.order(0)[part.start : part.stop]
    for batch in batches(decisions, 0, consumed, samples):
        assert weights[batch.start] == pytest.approx(world * (batch.stop - batch.start))
    assert [part.stop for part in ranks[0] if part.last] == [
        one.stop for one in batches(decisions, 0, consumed, samples)
    ]


def test_a_decision_counts_from_its_sample_on_where_the_batch_before_it_ends() -> None:
    found = batches([decision(8), decision(16, 20), decision(4, 20), decision(5, 40, epoch=1)], 0, 3, 30)
    assert [(one.start, one.stop) for one in found] == [(3, 11), (11, 19), (19, 20), (20, 24), (24, 28), (28, 30)]


def test_the_last_batch_of_an_epoch_has_as_few_parts_as_its_samples_need() -> None:
    found = list(batches([decision(32, ranks=2, most=4)], 0, 0, 41))
    assert [(one.stop - one.start, one.parts) for one in found] == [(32, 4), (9, 2)]


def test_a_part_with_fewer_samples_than_ranks_leaves_some_of_them_without_one() -> None:
    found = [list(shares(3, [decision(8, ranks=5)], rank, 5)) for rank in range(5)]
    assert [[len(part.ids) for part in parts] for parts in found] == [[1], [1], [1], [0], [0]]
    assert [parts[0].weight for parts in found] == [5 / 3, 5 / 3, 5 / 3, 0.0, 0.0]
