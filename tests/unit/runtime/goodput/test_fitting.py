"""The fit of a step's time: what it foretells of sizes that were not measured, and of measures that tell little."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, replace
from itertools import product
from math import inf, isfinite, nan
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.goodput.fitting import StepTimes, fit
from perdure.goodput.speed import Speed

CURVES = {
    "an exchange that costs little": Speed(0.02, 5e-4, 0.002, 0.0005, 0.01, 0.001, 8),
    "an exchange of its own size": Speed(0.005, 1e-4, 0.004, 0.001, 0.02, 0.002, 8),
    "between nodes much dearer": Speed(0.05, 2e-3, 0.02, 0.0, 0.2, 0.01, 8),
    "no exchange": Speed(0.01, 1e-3, 0.0, 0.0, 0.0, 0.0, 8),
    "nothing but samples": Speed(0.0, 1e-3, 0.001, 0.001, 0.05, 0.0, 8),
}
MEASURED = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (2, 8), (4, 8))
FORETOLD = (*MEASURED, (1, 3), (1, 8), (2, 6), (2, 16), (4, 12), (4, 16))
"""At most twice the ranks that were measured."""
MICROS = (16, 32, 64, 128)


def exact(speed: Speed, nodes: int, ranks: int, micro: int, accumulation: int = 0) -> StepTimes:
    """What a trainer would measure without any noise."""
    step = speed.step_seconds(nodes, ranks, micro, 0)
    return StepTimes(nodes, ranks, micro, accumulation, speed.compute_seconds(micro), step)


def noisy(speed: Speed, draw: random.Random, steps: int = 100) -> list[StepTimes]:
    """Medians of steps whose times differ from the true one by a normal error of 5 %."""
    sizes = [exact(speed, nodes, ranks, micro) for (nodes, ranks), micro in product(MEASURED, MICROS)]
    return [
        replace(
            one,
            micro_seconds=median((one.micro_seconds or 0.0) * draw.gauss(1, 0.05) for _ in range(steps)),
            step_seconds=median(one.step_seconds * draw.gauss(1, 0.05) for _ in range(steps)),
        )
        for one in sizes
    ]


@pytest.mark.parametrize("curve", CURVES)
def test_steps_that_differ_by_five_percent_foretell_twice_the_ranks_within_three(seed: int, curve: str) -> None:
    draw = random.Random(f"{seed} {curve}")  # noqa: S311 - it has to be repeatable
    errors = []
    for _ in range(9):
        found = fit(noisy(CURVES[curve], draw))
        for (nodes, ranks), micro, accumulation in product(FORETOLD, (8, *MICROS, 256), (0, 3)):
            true = CURVES[curve].step_seconds(nodes, ranks, micro, accumulation)
            errors.append(abs(found.step_seconds(nodes, ranks, micro, accumulation) / true - 1))
    errors.sort()
    assert errors[len(errors) * 99 // 100] < 0.03


@pytest.mark.parametrize("curve", CURVES)
def test_exact_steps_give_their_own_times(curve: str) -> None:
    found = fit(exact(CURVES[curve], *size, micro) for size, micro in product(MEASURED, MICROS))
    assert astuple(found) == pytest.approx(astuple(CURVES[curve]), rel=5e-3, abs=1e-6)
    for size, micro in product(MEASURED, MICROS):
        step = CURVES[curve].step_seconds(*size, micro, 0)
        assert found.step_seconds(*size, micro, 0) == pytest.approx(step, rel=5e-4)


@pytest.mark.parametrize(
    ("curve", "foretold"),
    [
        (Speed(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4), 8.0),  # twice the ranks, half the time
        (Speed(32.0, 0.5, 0.0, 0.0, 0.0, 0.0, 4), 36.0),
        # The same steps, and not to be told apart: what may be computing is. Only eight ranks show it.
        (Speed(0.0, 1.0, 16.0, 4.0, 0.0, 0.0, 4), 36.0),
        (Speed(0.0, 1.0, 16.0, 4.0, 0.0, 0.0, 8), 48.0),
    ],
)
def test_steps_of_one_batch_on_ever_more_ranks_are_enough(curve: Speed, foretold: float) -> None:
    counts = [ranks for ranks in (1, 2, 4, 8) if ranks <= curve.profiled]
    times = [replace(exact(curve, 1, ranks, 64 // ranks), micro_seconds=None) for ranks in counts]
    found = fit(times)
    for one in times:
        assert found.step_seconds(1, one.ranks, one.micro, 0) == pytest.approx(one.step_seconds, rel=0.01)
    assert found.step_seconds(1, 8, 8, 0) == pytest.approx(foretold, rel=0.01)


def test_twice_the_measured_ranks_are_believed_and_no_more() -> None:
    found = fit([exact(CURVES["no exchange"], 1, ranks, 32) for ranks in (1, 2, 3)])
    assert found.step_seconds(1, 6, 32, 0) < inf
    assert found.step_seconds(1, 7, 32, 0) == inf


def test_one_size_of_parts_leaves_half_of_their_time_to_each() -> None:
    found = fit([StepTimes(1, 1, 50, 0, None, 2.0)])
    assert [found.alpha, found.beta] == pytest.approx([1.0, 0.02])


def test_what_was_not_seen_takes_no_time() -> None:
    alone = fit([StepTimes(1, 1, 50, 0, None, 2.0), StepTimes(1, 1, 100, 0, None, 3.0)])
    assert (alone.c_in, alone.d_in, alone.c_out, alone.d_out) == (0.0, 0.0, 0.0, 0.0)
    assert alone.step_seconds(1, 2, 50, 0) == pytest.approx(2.0)


def test_one_number_of_ranks_says_nothing_of_a_further_one() -> None:
    found = fit([StepTimes(1, 1, 50, 0, None, 2.0), StepTimes(1, 4, 50, 0, None, 2.5)])
    assert found.step_seconds(1, 1, 50, 0) == pytest.approx(2.0, rel=0.01)
    assert found.step_seconds(1, 2, 50, 0) == pytest.approx(2.5, rel=0.01)
    assert found.step_seconds(1, 8, 50, 0) == pytest.approx(2.5, rel=0.01)


def test_nodes_that_were_not_seen_exchange_no_faster_than_ranks_of_one_node() -> None:
    found = fit([exact(CURVES["an exchange that costs little"], 1, ranks, 32) for ranks in (1, 2, 4)])
    assert (found.c_out, found.d_out) == (found.c_in, found.d_in)
    assert found.c_in > 0


def test_ranks_of_one_node_that_were_not_seen_exchange_at_once() -> None:
    found = fit([exact(CURVES["an exchange that costs little"], *size, 32) for size in ((1, 1), (2, 2), (2, 4))])
    assert (found.c_in, found.d_in) == (0.0, 0.0)
    assert found.c_out > 0


def test_steps_that_were_never_seen_without_an_exchange_count_the_fewest_ranks_as_computing() -> None:
    found = fit([StepTimes(1, 2, 50, 0, None, 2.0), StepTimes(1, 4, 50, 0, None, 2.5)])
    assert found.step_seconds(1, 1, 50, 0) == pytest.approx(2.0, rel=0.01)
    assert found.step_seconds(1, 2, 50, 0) == pytest.approx(2.0, rel=0.01)
    assert found.step_seconds(1, 8, 50, 0) == pytest.approx(3.5, rel=0.01)


def test_an_exchange_that_seems_to_take_less_than_no_time_takes_none() -> None:
    found = fit([StepTimes(1, 1, 50, 0, None, 2.0), StepTimes(1, 2, 50, 0, 2.0, 1.9), StepTimes(1, 4, 50, 0, 2.0, 1.8)])
    assert (found.c_in, found.d_in) == (0.0, 0.0)


def test_nothing_measured_believes_nothing() -> None:
    assert fit([]) == Speed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    assert fit([]).step_seconds(1, 1, 1, 0) == inf


@pytest.mark.parametrize("bad", [0.0, -1.0, nan, inf, 1e300, 5e-324, 1e-10])
def test_what_is_no_time_is_left_out(bad: float) -> None:
    good = [exact(CURVES["an exchange that costs little"], *size, micro) for size, micro in product(MEASURED, MICROS)]
    odd = [StepTimes(2, 64, 32, 0, 1.0, bad), StepTimes(0, 4, 32, 0, 1.0, 1.0), StepTimes(1, 4, 0, 0, 1.0, 1.0)]
    assert fit([*odd, *good]) == fit(good)
    assert fit([replace(good[0], micro_seconds=bad)]) == fit([replace(good[0], micro_seconds=None)])


wild_seconds = st.sampled_from([0.0, -1.0, nan, inf, 1e-9, 1e9, 1e300, 5e-324, 0.5]) | st.floats(1e-6, 1e3)
wild = st.lists(
    st.builds(
        StepTimes, st.integers(0, 3), st.integers(0, 5), st.sampled_from([0, 1, 7, 2**31]), st.integers(0, 3),
        st.none() | wild_seconds, wild_seconds,
    ),
    max_size=6,
)  # fmt: skip


@given(wild)
def test_no_profile_gives_anything_but_times_from_0(times: list[StepTimes]) -> None:
    for seconds in astuple(fit(times)):
        assert isfinite(seconds)
        assert seconds >= 0


def test_the_order_of_the_steps_changes_no_more_than_the_last_digits(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - it has to be repeatable
    times = noisy(CURVES["an exchange of its own size"], draw, 3)
    first = fit(times)
    assert fit(times) == first
    for _ in range(20):
        draw.shuffle(times)
        assert astuple(fit(times)) == pytest.approx(astuple(first), rel=1e-6, abs=1e-12)


def relative_error(points: Sequence[tuple[float, float]], constant: float, slope: float) -> float:
    """The sum of the squares of the relative errors."""
    return sum(((constant + slope * at) / seconds - 1) ** 2 for at, seconds in points)


def least_on_a_grid(points: Sequence[tuple[float, float]]) -> float:
    """The least error that any constant and slope from 0 can have, found by looking ever closer at a grid."""
    low = [0.0, 0.0]
    width = [2 * max(seconds for _, seconds in points), 2 * max(seconds / at for at, seconds in points)]
    best = inf
    for _ in range(24):
        grid = [(low[0] + width[0] * one / 8, low[1] + width[1] * two / 8) for one in range(9) for two in range(9)]
        found = min(grid, key=lambda corner: relative_error(points, *corner))
        best = min(best, relative_error(points, *found))
        width = [one / 2 for one in width]
        low = [max(0.0, at - half / 2) for at, half in zip(found, width, strict=True)]
    return best


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 5, 8]), st.floats(0.1, 10)), min_size=2, max_size=6))
def test_no_other_times_fit_better(points: list[tuple[int, float]]) -> None:
    found = fit([StepTimes(1, 1, micro, 0, None, seconds) for micro, seconds in points])
    error = relative_error(points, found.alpha, found.beta)
    assert error <= least_on_a_grid(points) + 1e-6
