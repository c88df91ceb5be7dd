"""The global order under every sequence of worlds and stops: nothing is lost, nothing comes twice."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import UserError
from perdure.loop.data.permutation import permuted
from perdure.loop.data.sampling import KIND, LARGE_KIND, SHUFFLED_SAMPLES, BatchIds, BatchShard, SamplingPlan


def batches(plan: SamplingPlan, epoch: int, consumed: int, world: int) -> list[list[BatchShard]]:
    """Every rank's part of each global batch."""
    ranks = [list(plan.shares(epoch, consumed, rank, world)) for rank in range(world)]
    return [list(parts) for parts in zip(*ranks, strict=True)]


def train(plan: SamplingPlan, epoch: int, stops: list[tuple[int, int]]) -> list[int]:
    """The ids an epoch trains on if run after run, each of its own world, stops after so many steps."""
    consumed, ids = 0, []
    for world, steps in [*stops, (1, plan.samples)]:
        for parts in batches(plan, epoch, consumed, world)[:steps]:
            ids += [sample for part in parts for sample in part.ids]
            consumed = parts[0].stop
        consumed = plan.resume(plan.cursor(epoch, consumed), epoch)
        if consumed == plan.end:
            break
    return ids


@pytest.mark.parametrize("samples", [1, 63, 64, 65, 261, 1536, 1797])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_every_sample_is_used_once_by_any_world(samples: int, world: int) -> None:
    plan = SamplingPlan("train", samples, batch=64, seed=7)
    assert Counter(train(plan, 3, [(world, samples)])) == Counter(range(samples))


@settings(deadline=None, max_examples=150)
@given(
    samples=st.integers(1, 400) | st.just(1797),
    batch=st.integers(1, 130),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 50),
    stops=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=8),
)
def test_worlds_may_change_at_any_step_and_the_order_stays_one_permutation(
    samples: int, batch: int, seed: int, epoch: int, stops: list[tuple[int, int]]
) -> None:
    plan = SamplingPlan("train", samples, batch, seed)
    ids = train(plan, epoch, stops)
    assert Counter(ids) == Counter(range(samples))
    assert ids == plan.order(epoch)[:].tolist()


@given(samples=st.integers(1, 200), batch=st.integers(1, 70), world=st.integers(1, 9))
def test_all_ranks_take_part_in_every_batch_and_their_weights_are_those_of_a_mean(
    samples: int, batch: int, world: int
) -> None:
    for parts in batches(SamplingPlan("train", samples, batch), 0, 0, world):
        size = parts[0].stop - parts[0].start
        assert sum(len(part.ids) for part in parts) == size
        assert max(len(part.ids) for part in parts) - min(len(part.ids) for part in parts) <= 1
        for part in parts:
            assert part.weight * size == pytest.approx(len(part.ids) * world)


@given(samples=st.integers(1, 200), batch=st.integers(1, 70), world=st.integers(1, 9))
def test_a_rank_takes_neighbours_of_each_global_batch_and_nobody_pads(samples: int, batch: int, world: int) -> None:
    plan = SamplingPlan("train", samples, batch)
    order = plan.order(0)[:].tolist()
    for parts in batches(plan, 0, 0, world):
        assert [sample for part in parts for sample in part.ids] == order[parts[0].start : parts[0].stop]
    assert sum(len(part.ids) for parts in batches(plan, 0, 0, world) for part in parts) == samples


def test_equal_shares_weigh_exactly_one() -> None:
    assert {part.weight for parts in batches(SamplingPlan("train", 96, 48), 0, 0, 3) for part in parts} == {1.0}


@pytest.mark.parametrize("samples", [100, SHUFFLED_SAMPLES + 1])
def test_epochs_and_seeds_have_orders_of_their_own(samples: int) -> None:
    plan = SamplingPlan("train", samples, 10)
    orders = {tuple(p.order(epoch)[:100].tolist()) for p in (plan, replace(plan, seed=1)) for epoch in (0, 1)}
    assert len(orders) == 4


def test_without_shuffle_the_order_is_that_of_the_dataset() -> None:
    assert train(SamplingPlan("train", 20, 6, shuffle=False), 5, []) == list(range(20))


def test_a_declared_drop_last_leaves_the_tail_out_and_records_it() -> None:
    plan = SamplingPlan("train", 100, 32, drop_last=True)
    assert len(train(plan, 0, [(2, 1)])) == 96
    assert plan.cursor(0, 96)["dropped"] == 4


def test_a_cursor_of_an_earlier_epoch_starts_the_epoch_over() -> None:
    plan = SamplingPlan("train", 100, 10)
    assert plan.resume(plan.cursor(epoch=3, consumed=50), epoch=4) == 0


@pytest.mark.parametrize("change", [{"samples": 101}, {"seed": 5}, {"shuffle": False}])
def test_a_plan_that_changed_in_the_middle_of_an_epoch_is_refused_by_name(change: dict[str, Any]) -> None:
    plan = SamplingPlan("train", 100, 10)
    cursor = plan.cursor(epoch=2, consumed=50)
    with pytest.raises(UserError, match=next(iter(change))):
        replace(plan, **change).resume(cursor, 2)


def test_the_batch_size_may_change_in_the_middle_of_an_epoch() -> None:
    assert SamplingPlan("train", 100, 25).resume(SamplingPlan("train", 100, 10).cursor(2, 50), 2) == 50


@pytest.mark.parametrize(
    ("samples", "first"),
    [
        (10, [7, 4, 1, 8]),
        (1 << 20, [23988, 103698, 799479, 486866]),
        ((1 << 20) + 1, [563109, 777737, 1036342, 457694]),
        (10**9, [6832347, 832469076, 206544224, 639198609]),
    ],
)
def test_the_order_of_an_epoch_is_the_same_for_ever(samples: int, first: list[int]) -> None:
    assert SamplingPlan("train", samples, 4, seed=3).order(epoch=2)[:4].tolist() == first


def test_an_order_is_the_one_of_a_shuffled_array_up_to_a_million_samples() -> None:
    shuffled = np.random.Generator(np.random.PCG64([7, 5])).permutation(SHUFFLED_SAMPLES)
    order = SamplingPlan("train", SHUFFLED_SAMPLES, 64, seed=7).order(epoch=5)
    assert np.array_equal(order[:], shuffled)


@given(size=st.integers(1, 700), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_a_computed_order_is_a_permutation_and_any_part_of_it_is_the_same(size: int, seed: int, epoch: int) -> None:
    whole = permuted(np.arange(size), size, seed, epoch)
    assert sorted(whole.tolist()) == list(range(size))
    part = np.arange(size // 3, size // 2)
    assert np.array_equal(permuted(part, size, seed, epoch), whole[part])


def test_a_computed_order_is_as_good_as_a_shuffled_one() -> None:
    """Every place holds every number equally often, and neighbours have nothing to do with each other."""
    size, epochs = 64, 3000
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        counts[np.arange(size), permuted(np.arange(size), size, 11, epoch)] += 1
    expected = epochs / size
    assert ((counts - expected) ** 2 / expected).sum() / (size - 1) ** 2 == pytest.approx(1, abs=0.05)
    large = permuted(np.arange(200_000), 200_000, 11, 0)
    assert np.corrcoef(large, np.arange(200_000))[0, 1] == pytest.approx(0, abs=0.01)
    assert np.corrcoef(large[1:], large[:-1])[0, 1] == pytest.approx(0, abs=0.01)


def test_ten_million_samples_take_next_to_no_memory() -> None:
    plan = SamplingPlan("train", 10_000_000, 64, seed=1)
    tracemalloc.start()
    try:
        for _ in itertools.islice(zip(plan.shares(0, 0, 0, 4), BatchIds(plan.shares(0, 0, 0, 4)), strict=True), 2000):
            pass
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20


def test_a_loader_is_given_what_the_shares_hold_and_placeholders_are_distinguished() -> None:
    shares = SamplingPlan("train", 9, 4).shares(0, 0, 3, 4)
    given = list(BatchIds(shares))
    assert given[:2] == [list(share.ids) for share in shares][:2]
    assert given[2] == [~list(shares)[2].placeholder]
    assert len(BatchIds(shares)) == len(shares) == 3


def test_a_large_order_of_another_version_is_gone_on_with_between_epochs_and_refused_within_one() -> None:
    plan = SamplingPlan("train", SHUFFLED_SAMPLES + 1, 64)
    older = plan.cursor(epoch=2, consumed=640) | {"kind": KIND}
    assert plan.cursor(2, 640)["kind"] == LARGE_KIND
    assert plan.resume(older, 3) == 0
    with pytest.raises(UserError, match="finish the epoch with the version that made it"):
        plan.resume(older, 2)


def test_a_cursor_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="webdataset"):
        SamplingPlan("train", 100, 10).resume({"kind": "webdataset", "shard": 3}, 0)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"batch": 0}, "batch_size"),
        ({"samples": 0}, "empty"),
        ({"seed": -1}, "seed"),
        ({"batch": 101, "drop_last": True}, "drop_last"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_a_remedy(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        SamplingPlan("train", **{"samples": 100, "batch": 10, **wrong})
