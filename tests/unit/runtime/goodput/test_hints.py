"""What ranks would win, of hints that are true, and of hints that lie."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.goodput.batch import BatchRange
from perdure.goodput.hints import _speedups, hints_of, range_of, speed_of, speedups
from perdure.goodput.speed import Speed
from perdure.wire.scaling import ScalingHints

HINTS = ScalingHints(64, 64, 1, 64, True, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 64)
"""64 samples of a second each; an exchange takes no time."""
SIZES = tuple(product((1, 2, 4), (1, 2, 3, 4, 8, 16, 64, 500)))

counts = st.sampled_from([1, 2, 7, 64, 4096, 2**31])
amounts = st.sampled_from([0.0, 5e-324, 1e-30, 1e-3, 1.0, 7e6, 2.0**53 - 1])
wrong = st.sampled_from([nan, inf, -inf, -1.0, 1e308])
hostile = st.builds(
    ScalingHints, counts, counts, counts, counts, st.booleans(), *[amounts | wrong for _ in range(7)], profiled=counts
)


def test_ranks_that_need_no_exchange_win_their_number() -> None:
    assert speedups(HINTS, [(1, 1), (1, 2), (2, 4), (4, 64)]) == (1.0, 2.0, 4.0, 64.0)


def test_an_exchange_costs_more_between_nodes() -> None:
    slow = replace(HINTS, c_in=16.0, c_out=32.0)
    # 64 seconds alone; 32 and an exchange with two ranks.
    assert speedups(slow, [(1, 2), (2, 2)]) == (64 / 48, 64 / 64)


def test_a_noisy_gradient_makes_ranks_worth_more() -> None:
    quiet = replace(HINTS, most_batch=1024, alpha=10.0)
    noisy = replace(quiet, noise=1e6)
    assert speedups(noisy, [(4, 32)])[0] > 2 * speedups(quiet, [(4, 32)])[0]


def test_ranks_beyond_those_that_are_believed_win_nothing() -> None:
    assert speedups(replace(HINTS, profiled=2), [(1, 2), (1, 4), (1, 5), (4, 64)]) == (2.0, 4.0, 4.0, 4.0)


def test_a_size_that_can_compute_no_batch_wins_nothing() -> None:
    small = replace(HINTS, per_rank_high=16, accumulates=False)
    # Alone it would compute four parts, were it allowed to: that is the unit.
    assert speedups(small, [(1, 1), (1, 2), (1, 4), (1, 8)]) == (0.0, 0.0, 4.0, 8.0)
    assert speedups(replace(HINTS, per_rank_low=32), [(1, 1), (1, 2), (1, 4)]) == (1.0, 2.0, 0.0)


def test_ranks_win_no_more_than_their_number_where_one_alone_may_not_use_the_batch_of_several() -> None:
    alone_at_32 = replace(HINTS, initial_batch=32, most_batch=256, accumulates=False, noise=1e9, alpha=1.0, beta=0.0)
    # Four ranks take 256 samples in the second in which one takes 32.
    assert speedups(alone_at_32, [(1, 1), (1, 4)]) == (1.0, 4.0)


def test_no_ranks_win_nothing() -> None:
    assert speedups(HINTS, [(0, 0), (1, 1)]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "lie",
    [
        {"alpha": nan},
        {"beta": inf},
        {"c_in": -1.0},
        {"most_batch": 63},
        {"profiled": 0},
        {"alpha": 0.0, "beta": 0.0},
        {"alpha": 5e-324, "beta": 0.0},
    ],
)
def test_hints_that_cannot_be_true_promise_nothing_of_further_ranks(lie: dict[str, Any]) -> None:
    assert speedups(replace(HINTS, **lie), SIZES) == tuple(1.0 for _ in SIZES)


@given(hostile)
def test_a_lie_is_bounded_by_the_number_of_ranks(hints: ScalingHints) -> None:
    for (_, ranks), speedup in zip(SIZES, speedups(hints, SIZES), strict=True):
        assert isfinite(speedup)
        assert 0 <= speedup <= ranks
        assert type(speedup) is float


@given(hostile)
def test_the_sizes_beside_it_change_no_speedup(hints: ScalingHints) -> None:
    assert speedups(hints, SIZES) == tuple(speedups(hints, [size])[0] for size in SIZES)


def test_the_same_question_is_answered_once() -> None:
    hints = replace(HINTS, most_batch=1024, alpha=10.0, noise=1234.5)
    first = speedups(hints, SIZES)
    computed = _speedups.cache_info().misses
    assert speedups(replace(hints), iter(SIZES)) is first
    assert speedups(hints, SIZES[:5]) == first[:5]
    assert speedups(replace(hints, noise=0.5), SIZES) != first
    assert _speedups.cache_info().misses == computed + 2


def test_hints_say_what_they_were_made_of() -> None:
    allowed, speed = BatchRange(32, 512, (4, 64), accumulates=True), Speed(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 7)
    hints = hints_of(allowed, 77.5, speed)
    assert (range_of(hints), hints.noise, speed_of(hints)) == (allowed, 77.5, speed)
