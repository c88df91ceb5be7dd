"""The estimates are exact in expectation, whatever the sizes of the parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.loop.measuring.two_equations import Solution, solve

SIGNAL, NOISE = 3.0, 40.0


def estimates(solution: Solution, own: float, mean: float) -> tuple[float, float]:
    noise = solution.noise_own * own + solution.noise_mean * mean
    return noise, solution.signal_own * own + solution.signal_mean * mean


def expected_norms(sizes: Sequence[int], weights: Sequence[float]) -> tuple[float, float]:
    """Of the parts together, and of their mean, for parts with independent noise."""
    parts = [(weight, size) for weight, size in zip(weights, sizes, strict=True) if size]
    own = sum(weight**2 * (SIGNAL + NOISE / size) for weight, size in parts)
    signal = (sum(weight for weight, _ in parts) / len(sizes)) ** 2 * SIGNAL
    return own, signal + sum(weight**2 / size for weight, size in parts) / len(sizes) ** 2 * NOISE


@pytest.mark.parametrize("sizes", [(8, 8), (1, 1, 1, 1), (3, 2, 2), (5, 4, 0), (1, 1, 0, 0), (7, 1)])
def test_weighted_parts_of_any_sizes(sizes: tuple[int, ...]) -> None:
    weights = [len(sizes) * size / sum(sizes) for size in sizes]
    solution = solve(sizes, weighted=True)
    assert solution
    assert estimates(solution, *expected_norms(sizes, weights)) == pytest.approx((NOISE, SIGNAL))


@pytest.mark.parametrize("sizes", [(8, 8), (3, 2, 2), (7, 1)])
def test_parts_that_count_alike(sizes: tuple[int, ...]) -> None:
    solution = solve(sizes, weighted=False)
    assert solution
    assert estimates(solution, *expected_norms(sizes, [1.0] * len(sizes))) == pytest.approx((NOISE, SIGNAL))


@pytest.mark.parametrize(
    ("sizes", "weighted"), [((8,), True), ((8, 0), True), ((0, 0), True), ((), True), ((8, 8, 0), False)]
)
def test_some_parts_tell_nothing(sizes: tuple[int, ...], *, weighted: bool) -> None:
    """A single one, and an unweighted empty one, whose gradient is that of a sample of another part."""
    assert solve(sizes, weighted=weighted) is None
