"""The rules of the learning rate, by the tables of their papers."""

from __future__ import annotations

from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.goodput.batch import efficiency
from perdure.goodput.rates import RateRule, gain, rate_factor


@pytest.mark.parametrize(
    ("rule", "noise", "batch", "factor"),
    [
        ("linear", 0.0, 256, 1.0),
        ("linear", 0.0, 8192, 32.0),  # Goyal et al.: 0.1 for 256, 3.2 for 8,192
        ("sqrt", 1e9, 1024, 2.0),
        ("sqrt", 0.0, 4096, 4.0),
        ("legw", 0.0, 1024, 2.0),
        ("adascale", 0.0, 1024, 1.0),  # no noise: a larger batch wins nothing
        ("adascale", 256.0, 512, 4 / 3),  # (1 + 1) / (1/2 + 1)
        ("adascale", 768.0, 1024, 4 / 1.75),  # (3 + 1) / (3/4 + 1)
        ("adascale", inf, 1024, 4.0),  # all noise: linear
        ("adamscale", 256.0, 512, sqrt(4 / 3)),
        ("adamscale", inf, 1024, 2.0),  # all noise: the square root
    ],
)
def test_a_rule_gives_the_factor_of_its_paper(rule: str, noise: float, batch: int, factor: float) -> None:
    assert rate_factor(RateRule(rule), noise, 256, batch) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("rule", RateRule)
@pytest.mark.parametrize("noise", [0.0, 100.0, inf])
def test_no_rule_changes_the_rate_of_the_initial_batch(rule: RateRule, noise: float) -> None:
    assert rate_factor(rule, noise, 96, 96) == 1.0


@pytest.mark.parametrize(
    ("batch", "consumed", "factor"),
    [
        (256, 0, 0.0),
        (256, 5000, 0.5),
        (256, 10000, 1.0),
        (256, 99999, 1.0),
        (1024, 10000, 0.5),  # four times the batch: twice the rate, after four times the samples
        (1024, 40000, 2.0),
        (1024, 99999, 2.0),
    ],
)
def test_legw_warms_up_over_more_samples_for_a_larger_batch(batch: int, consumed: int, factor: float) -> None:
    assert rate_factor(RateRule.LEGW, 0.0, 256, batch, consumed=consumed, warm_up=10000) == factor


@given(st.floats(0, 1e12), st.integers(1, 1000), st.integers(1, 1000))
def test_a_gain_lies_between_one_and_the_ratio_of_the_batches(noise: float, initial: int, times: int) -> None:
    won = gain(noise, initial, initial * times)
    assert 1 - 1e-12 <= won <= times * (1 + 1e-12)
    assert won == pytest.approx((noise / initial + 1) / (noise / (initial * times) + 1), rel=1e-9)
    assert won == pytest.approx(times * efficiency(noise, initial, initial * times), rel=1e-9)


def test_a_smaller_step_wins_less_and_no_samples_win_nothing() -> None:
    assert gain(0.0, 64, 32) == 1.0  # without noise half of the samples show as much
    assert gain(inf, 64, 32) == 0.5
    assert gain(100.0, 64, 0) == gain(0.0, 64, 0) == 0.0
    assert [rate_factor(rule, 100.0, 64, 0) for rule in RateRule] == [0.0] * 5
