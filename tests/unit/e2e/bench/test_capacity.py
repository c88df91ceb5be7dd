"""Capacity that comes and goes, and what part of it counts as used."""

from __future__ import annotations

from itertools import pairwise

import pytest

from e2e.bench import capacity
from e2e.bench.capacity import Change
from e2e.harness.evidence import TracedStep


def draw(seed: int) -> tuple[Change, ...]:
    return capacity.draw(seed, seconds=600, low=2, high=4, dwell=(35, 90))


@pytest.mark.parametrize("seed", range(20))
def test_the_walk_goes_one_node_at_a_time_between_its_ends(seed: int) -> None:
    drawn = draw(seed)
    assert (drawn[0], drawn == draw(seed)) == (Change(0.0, 4), True)
    assert {abs(after.nodes - before.nodes) for before, after in pairwise(drawn)} == {1}
    assert {change.nodes for change in drawn} <= {2, 3, 4}
    assert all(35 <= after.at - before.at <= 90 for before, after in pairwise(drawn))
    assert 510 <= drawn[-1].at < 600


def test_the_ideal_trains_with_each_node_while_it_is_there() -> None:
    changes = [Change(100.0, 4), Change(110.0, 2), Change(130.0, 3)]
    assert capacity.ideal(changes, 140.0, 0.5) == (10 * 4 + 20 * 2 + 10 * 3) / 0.5


def test_what_is_trained_beyond_the_capacity_or_outside_of_the_time_does_not_count() -> None:
    changes = [Change(100.0, 4), Change(110.0, 2)]
    steps = [step(99.0), step(105.0), step(112.0), step(113.0, run=2), step(120.0)]
    assert capacity.used(changes, 120.0, steps, {1: 4, 2: 1}) == 8 + 8 * 2 / 4 + 8


def step(at: float, *, run: int = 1) -> TracedStep:
    return TracedStep("uid", run, 0, 1, 0, at, tuple(range(8)))
