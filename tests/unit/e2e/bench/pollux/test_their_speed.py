"""Pollux' model of a step: fitted to times that it can foretell, and the batch that it finds best."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from e2e.bench.pollux import their_speed
from e2e.bench.pollux.measurements import Noise, StepTime
from e2e.bench.pollux.their_speed import Batch, BatchLimits

TRUE = (0.05, 0.002, 0.2, 0.004, 0.06, 0.003, 2.0)
SIZES = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16))
LIMITS = BatchLimits(initial=32, most=512, micro=(8, 64))


def seconds(nodes: int, ranks: int, micro: int) -> tuple[float, float]:
    a, b, a_out, b_out, a_in, b_in, gamma = TRUE
    compute = a + b * micro
    if ranks == 1:
        return compute, compute
    constant, growing = (a_out, b_out) if nodes > 1 else (a_in, b_in)
    network = constant + growing * (ranks - 2)
    return (compute**gamma + network**gamma) ** (1 / gamma), compute


def measured(sizes: tuple[tuple[int, int], ...], micros: tuple[int, ...]) -> their_speed.Measured:
    found = {}
    for (nodes, ranks), micro in product(sizes, micros):
        step, compute = seconds(nodes, ranks, micro)
        found[nodes, ranks, micro] = StepTime(step, step - compute)
    return their_speed.frozen(found)


def test_a_fit_foretells_the_times_of_steps_that_it_has_not_seen() -> None:
    fitted = their_speed.fit(measured(SIZES, (8, 16, 32, 64)))
    noise = Noise(1.0, 0.0)
    for nodes, ranks, batch in ((1, 3, 96), (3, 12, 480), (2, 6, 96)):
        only = BatchLimits(initial=batch, most=batch, micro=(8, 64))
        goodput = their_speed.best(fitted, noise, only, np.array([nodes]), np.array([ranks]))[0][0]
        assert batch / goodput == pytest.approx(seconds(nodes, ranks, batch // ranks)[0], rel=0.05)


def test_one_measurement_is_half_a_constant_and_half_by_sample_and_costs_nothing_to_share() -> None:
    a, b, a_out, _, a_in, _, _ = their_speed.fit(measured(((1, 1),), (16,)))
    assert a == pytest.approx(b * 16, rel=0.01)
    assert max(a_out, a_in) < 1e-6


def test_the_slope_of_the_error_is_that_of_its_differences() -> None:
    some = sorted(measured(SIZES, (8, 64)))
    nodes, ranks, micro = np.array([key for key, _ in some], dtype=float).T
    step, sync = np.array([value for _, value in some]).T
    several, inside = nodes > 1, (nodes == 1) & (ranks > 1)
    data = (micro, np.maximum(ranks - 2, 1e-8), several, inside, np.log(step - sync), np.log(step))
    at = np.array([0.07, 0.003, 0.1, 0.01, 0.2, 0.02, 1.7])
    slope = their_speed._error(at, *data)[1]
    assert slope == pytest.approx(
        approx_fprime(at, lambda x: their_speed._error(x, *data)[0], 1e-7), rel=1e-3, abs=1e-4
    )


@pytest.mark.parametrize(("nodes", "ranks"), SIZES)
@pytest.mark.parametrize("phi", [0.0, 50.0, 1e4])
def test_no_batch_that_it_may_choose_is_better_by_more_than_the_gaps_between_those_it_tries(
    nodes: int, ranks: int, phi: float
) -> None:
    noise = Noise(1.0, phi / LIMITS.initial)
    goodput, micro, accumulation = their_speed.best(TRUE, noise, LIMITS, np.array([nodes]), np.array([ranks]))
    best = 0.0
    for size, more in product(range(LIMITS.micro[0], LIMITS.micro[1] + 1), range(9)):
        batch = Batch(size, more).of(ranks)
        if LIMITS.initial <= batch <= LIMITS.most and not (ranks == 1 and more == 0 and batch > LIMITS.initial):
            step, compute = seconds(nodes, ranks, size)
            efficiency = (phi + LIMITS.initial) / (phi + batch)
            best = max(best, batch / (step + more * compute) * efficiency)
    assert goodput[0] == pytest.approx(best, rel=0.03)
    assert LIMITS.micro[0] <= micro[0] <= LIMITS.micro[1]
    assert Batch(int(micro[0]), int(accumulation[0])).of(ranks) >= LIMITS.initial


def test_a_given_batch_is_split_so_that_each_part_fits() -> None:
    assert their_speed.split(256, LIMITS, 2) == Batch(64, 1)
    assert their_speed.split(32, LIMITS, 1) == Batch(32, 0)
    assert their_speed.split(64, LIMITS, 1) == Batch(32, 1), "one rank alone compares two parts"
    assert their_speed.within(Batch(64, 7), LIMITS, 2) == Batch(32, 7)
