"""Which decision is made, by where it is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.goodput.batch import WORTH, BatchRange, best_batch, choice_of
from perdure.goodput.rates import RateRule, rate_factor
from perdure.goodput.speed import Speed
from perdure.loop.adapting.adapt import Adapt
from perdure.loop.adapting.choosing import Here, RunMeasures, first, from_list, from_measures, kept, warmed_up
from perdure.loop.adapting.decision import BatchDecision

ADAPT = Adapt(up_to=64, per_rank=(1, 16))


def decision(epoch: int, consumed: int, batch: int, ranks: int = 1) -> BatchDecision:
    return BatchDecision(epoch, consumed, ranks, batch, batch // ranks, 0, None, 1.0)


LIST = (decision(0, 0, 8), decision(1, 16, 12), decision(1, 28, 16), decision(2, 0, 10))


def test_without_any_the_scripts_batch_counts_in_as_many_parts_as_the_ranks_need() -> None:
    assert first(40, ADAPT, Here(0, 0, 1)) == BatchDecision(0, 0, 1, 40, 14, 2, None, 1.0)
    assert first(40, ADAPT, Here(3, 8, 4)) == BatchDecision(3, 8, 4, 40, 10, 0, None, 1.0)
    assert first(40, replace(ADAPT, accumulates=False), Here(0, 0, 2)).batch == 32


def test_a_decision_is_kept_until_the_ranks_change() -> None:
    held = decision(0, 8, 16, 2)
    assert kept(held, ADAPT, Here(1, 32, 2)) is held
    assert kept(held, ADAPT, Here(1, 32, 4)) == BatchDecision(1, 32, 4, 16, 4, 0, None, 1.0)
    assert kept(held, replace(ADAPT, per_rank=(1, 4)), Here(1, 32, 2)) == BatchDecision(1, 32, 2, 16, 4, 1, None, 1.0)


def test_a_list_says_all_until_the_end_of_the_epoch() -> None:
    assert from_list(LIST, None, 8, ADAPT, Here(0, 0, 1)) == LIST[:1]
    assert from_list(LIST, LIST[0], 8, ADAPT, Here(1, 0, 1)) == LIST[:3]
    assert from_list(LIST, LIST[1], 8, ADAPT, Here(1, 16, 1)) == LIST[1:3]
    assert from_list(LIST, LIST[1], 8, ADAPT, Here(1, 28, 1)) == LIST[2:3]
    assert from_list(LIST, LIST[2], 8, ADAPT, Here(2, 0, 1)) == LIST[3:]
    assert from_list(LIST, LIST[3], 8, ADAPT, Here(2, 20, 1)) == LIST[3:]


def test_without_parts_a_batch_that_the_ranks_have_no_room_for_shrinks_and_its_rate_with_it() -> None:
    alone = Adapt(up_to=64, per_rank=(1, 10), accumulates=False, rule="linear")
    assert first(40, alone, Here(0, 0, 2)) == BatchDecision(0, 0, 2, 20, 10, 0, None, 0.5)
    parts = BatchDecision(0, 0, 2, 40, 10, 1, 8.0, 5.0)
    assert kept(parts, alone, Here(0, 0, 2)) == replace(parts, batch=20, accumulation=0, rate=2.5)
    assert from_list([decision(0, 0, 8, 2), replace(parts, consumed=8)], None, 8, alone, Here(0, 0, 2))[1].rate == 2.5
    noisy = kept(parts, replace(alone, rule="adascale"), Here(0, 0, 2))
    assert noisy.rate == pytest.approx(
        5.0 * rate_factor(RateRule.ADASCALE, 8.0, 8, 20) / rate_factor(RateRule.ADASCALE, 8.0, 8, 40)
    )
    assert kept(parts, replace(alone, per_rank=(1, 64)), Here(0, 0, 2)) == replace(parts, micro=20, accumulation=0)


def test_a_list_that_begins_later_leaves_the_scripts_batch_until_then() -> None:
    now, later = from_list(LIST[1:2], None, 8, ADAPT, Here(1, 0, 1))
    assert (now.batch, later) == (8, LIST[1])


def test_a_list_of_another_number_of_ranks_is_fitted_to_these() -> None:
    now, later = from_list([decision(0, 0, 32), decision(0, 32, 64)], None, 8, ADAPT, Here(0, 0, 2))
    assert now == BatchDecision(0, 0, 2, 32, 16, 0, None, 1.0)
    assert later == BatchDecision(0, 32, 2, 64, 16, 1, None, 1.0)


def test_a_resumed_epoch_keeps_what_its_checkpoint_says_and_takes_of_the_list_what_comes_later() -> None:
    held = decision(1, 4, 24)
    assert from_list(LIST, held, 8, replace(ADAPT, per_rank=(1, 64)), Here(1, 10, 1)) == (held, *LIST[1:3])


FAST = Speed(alpha=1.0, beta=0.001, c_in=0.0, d_in=0.0, c_out=2.0, d_out=0.0, profiled=4)
"""A part costs a second whatever its size: larger batches are faster."""
WIDE = Adapt(up_to=64, per_rank=(1, 16), rule="linear")


def measured(noise: float | None = 1e9, nodes: int = 1, speed: Speed = FAST) -> RunMeasures:
    return RunMeasures(speed, noise, nodes)


def test_a_batch_grows_where_that_promises_more() -> None:
    held = decision(0, 0, 8, 2)
    found = from_measures(measured(), held, 8, WIDE, Here(1, 0, 2))
    assert found == BatchDecision(1, 0, 2, 32, 16, 0, 1e9, 4.0), "a further part would cost a further second"
    assert from_measures(measured(), None, 8, WIDE, Here(0, 0, 2)) == replace(found, epoch=0)


def test_a_batch_stays_where_its_noise_is_small_or_unknown() -> None:
    held = decision(0, 0, 8, 2)
    assert from_measures(measured(0.0), held, 8, WIDE, Here(1, 0, 2)) is held
    assert from_measures(measured(None), held, 8, WIDE, Here(1, 0, 2)) is held
    assert from_measures(measured(float("inf")), held, 8, WIDE, Here(1, 0, 2)) is held
    assert from_measures(None, held, 8, WIDE, Here(1, 0, 2)) is held
    unseen = replace(FAST, profiled=0)
    assert from_measures(measured(speed=unseen), held, 8, WIDE, Here(1, 0, 2)) is held


def test_nothing_is_decided_in_the_middle_of_an_epoch_but_where_a_checkpoint_is_due_or_ranks_change() -> None:
    held = decision(1, 0, 8, 2)
    assert from_measures(measured(), held, 8, WIDE, Here(1, 24, 2)) is held
    assert from_measures(measured(), held, 8, WIDE, Here(1, 0, 2)) is held, "it was decided here"
    assert from_measures(measured(), held, 8, WIDE, Here(1, 24, 4)).batch == 64
    assert from_measures(measured(), held, 8, WIDE, Here(2, 0, 2)).batch == 32
    saved = from_measures(measured(), held, 8, WIDE, Here(1, 24, 2, saves=True))
    assert (saved.batch, saved.place) == (32, (1, 24))
    there = decision(1, 24, 8, 2)
    assert from_measures(measured(), there, 8, WIDE, Here(1, 24, 2, saves=True)) is there, "it was decided here"


@pytest.mark.parametrize("rule", RateRule)
def test_measures_that_err_by_a_percent_change_nothing_wherever_it_is_decided(rule: RateRule) -> None:
    adapt, real = replace(WIDE, rule=rule), replace(FAST, beta=0.05)
    held = from_measures(measured(40.0, speed=real), None, 8, adapt, Here(0, 0, 2))
    assert 8 < held.batch < 64
    for place in range(1, 100):
        speed = replace(real, beta=0.05 * (1 + 0.01 * (place % 3 - 1)))
        now = measured(40.0 * (1 + 0.01 * (-1) ** place), speed=speed)
        assert from_measures(now, held, 8, adapt, Here(0, 8 * place, 2, saves=True)) is held


def test_a_batch_that_is_hardly_better_is_not_adopted_and_a_batch_shrinks_again() -> None:
    held = BatchDecision(1, 0, 2, 32, 16, 0, 1e9, 4.0)
    assert from_measures(measured(1e8), held, 8, WIDE, Here(2, 0, 2)) is held
    slow = replace(FAST, beta=0.1)
    found = from_measures(measured(0.0, speed=slow), held, 8, WIDE, Here(2, 0, 2))
    assert (found.batch, found.rate, found.noise, found.place) == (8, 1.0, 0.0, (2, 0))
    allowed = BatchRange(8, 64, (1, 16), accumulates=True)
    now = choice_of(FAST, 100.0, allowed, 1, 2, batch=24)
    best = best_batch(FAST, 100.0, allowed, 1, 2, multiple=2)
    assert now
    assert best
    assert best.goodput / now.goodput > 1.0
    near = BatchDecision(1, 0, 2, now.batch, now.micro, now.accumulation, 100.0, 3.0)
    kept_batch = from_measures(measured(100.0), near, 8, WIDE, Here(2, 0, 2)).batch == now.batch
    assert kept_batch is (best.goodput / now.goodput < WORTH)


def test_a_batch_that_stays_has_no_more_parts_than_its_ranks_need() -> None:
    held = BatchDecision(1, 0, 1, 64, 16, 3, 1e9, 8.0)
    found = from_measures(measured(), held, 8, WIDE, Here(1, 24, 4))
    assert (found.batch, found.micro, found.accumulation) == (64, 16, 0)


def test_a_rate_that_follows_the_noise_is_decided_although_the_batch_stays() -> None:
    held = BatchDecision(1, 0, 2, 32, 16, 0, 1e9, 4.0)
    rule = replace(WIDE, rule="adascale", up_to=32)
    found = from_measures(measured(64.0), held, 8, rule, Here(2, 0, 2))
    assert found.batch == 32
    assert found.rate == pytest.approx((64 / 8 + 1) / (64 / 32 + 1))
    assert from_measures(measured(64.5), found, 8, rule, Here(3, 0, 2)) is found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_whatever_is_measured_the_ranks_have_room(ranks: int) -> None:
    for noise in (0.0, 1.0, 50.0, 1e12, float("inf")):
        for batch in (8, 24, 60):
            for adapt in (WIDE, replace(WIDE, accumulates=False), replace(WIDE, per_rank=(4, 5))):
                found = from_measures(measured(noise), decision(0, 0, batch), 8, adapt, Here(1, 0, ranks))
                assert found.ranks == ranks
                assert found.micro <= adapt.per_rank[1]
                assert found.micro * ranks * (found.accumulation + 1) >= found.batch
                assert found.batch <= 64
                assert adapt.accumulates or not found.accumulation


def test_a_rate_warms_up_longer_with_a_larger_batch() -> None:
    assert [warmed_up(100, used, 8, 16) for used in (0, 50, 200, 300)] == [0.0, 0.25, 1.0, 1.0]
    assert warmed_up(100, 50, 8, 8) == 0.5
