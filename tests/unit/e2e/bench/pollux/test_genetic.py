"""A search that keeps the rules of placements, and finds what an enumeration finds."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from e2e.bench.pollux.genetic import Problem, Search, adapted, evaluated, ranked, total
from e2e.bench.pollux.world import DEVICES_OF_NODE, NODES

ALL = NODES * DEVICES_OF_NODE


def problem(jobs: int, *, power: float = -1.0, most: int = ALL, apart: float = 1.0) -> Problem:
    """Jobs whose speedup is the root of their ranks, times `apart` if they are on several nodes."""
    together = np.sqrt(np.arange(ALL + 1.0))
    speedups = np.tile(np.stack([together, together * apart]), (jobs, 1, 1))
    base = np.zeros((jobs, NODES), dtype=np.int8)
    return Problem(speedups, np.full(jobs, most), np.ones(jobs), base, power)


def state(*ranks: dict[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int8]]:
    found = np.zeros((len(ranks), NODES), dtype=np.int8)
    for job, nodes in enumerate(ranks):
        for node, count in nodes.items():
            found[job, node] = count
    return found


def test_ranks_are_summed_over_all_nodes() -> None:
    assert total(state({0: 4, 15: 3}, {}, {7: 1})[None]).tolist() == [[7, 0, 1]]
    assert total(np.full((1, 1, NODES), 4, dtype=np.int8)).tolist() == [[64]]


def test_aims_are_the_harmonic_mean_of_speedups_and_the_utility_of_the_nodes_in_use() -> None:
    two = problem(2, apart=0.5)
    (mean, utility), (alone, _) = evaluated(two, np.stack([state({0: 4}, {1: 2, 2: 2}), state({0: 4}, {})]))
    scaled = [2.0 / DEVICES_OF_NODE + 1e-3, 1.0 / DEVICES_OF_NODE + 1e-3]
    assert mean == pytest.approx(2 / (1 / scaled[0] + 1 / scaled[1]))
    assert utility == pytest.approx((2.0 + 1.0) / (3 * DEVICES_OF_NODE))
    assert alone < 0.01, "a job that has nothing spoils the mean"


def test_a_move_is_charged_to_the_job_that_moves() -> None:
    two = problem(2)
    moved = Problem(two.speedups, two.most_ranks, np.array([0.5, 0.5]), state({0: 4}, {1: 4}), power=1.0)
    stays, goes = evaluated(moved, np.stack([state({0: 4}, {1: 4}), state({0: 4}, {2: 4})]))[:, 0]
    assert stays == pytest.approx(2 / DEVICES_OF_NODE + 1e-3)
    assert goes == pytest.approx((2 + 1) / 2 / DEVICES_OF_NODE + 1e-3)


def test_fronts_are_those_of_the_definition() -> None:
    values = np.random.default_rng(3).integers(0, 6, size=(40, 2)).astype(float)
    left, front = set(range(40)), 0
    expected: dict[int, int] = {}
    while left:
        best = {
            one
            for one in left
            if not any((values[other] >= values[one]).all() and (values[other] > values[one]).any() for other in left)
        }
        expected |= dict.fromkeys(best, front)
        left, front = left - best, front + 1
    assert ranked(values)[0].tolist() == [expected[place] for place in range(40)]


def test_each_state_of_a_search_keeps_the_rules() -> None:
    some = problem(12, most=9)
    best, front = Search(1, generations=20).best(some, some.base[None])
    for one in [best, *front]:
        assert (one.sum(axis=0) <= DEVICES_OF_NODE).all()
        assert (one.sum(axis=1) <= 9).all()
        spread = one[np.count_nonzero(one, axis=1) > 1]
        assert (np.count_nonzero(spread, axis=0) <= 1).all(), "two jobs that are each on several nodes never share one"


def test_a_search_finds_what_an_enumeration_finds() -> None:
    three = problem(3, most=4, apart=0.3)
    best, _ = Search(1).best(three, three.base[None])
    assert evaluated(three, best[None])[0, 0] == pytest.approx(2 / DEVICES_OF_NODE + 1e-3), "four ranks, one node, each"
    shares = [count for count in combinations_with_replacement(range(1, ALL), 2) if sum(count) == ALL]
    two = problem(2)
    found = evaluated(two, Search(1).best(two, two.base[None])[0][None])[0, 0]
    means = [2 / sum(1 / (np.sqrt(count) / DEVICES_OF_NODE + 1e-3) for count in share) for share in shares]
    assert found == pytest.approx(max(means), rel=0.02)


def test_the_same_seed_finds_the_same_and_nothing_moves_where_nothing_is_better() -> None:
    some = problem(6, most=8)
    first, second = (Search(5, generations=10).best(some, some.base[None])[0] for _ in range(2))
    assert (first == second).all()
    settled = state(*({node: 4} for node in range(6)))
    kept = Problem(some.speedups, np.full(6, 4), np.zeros(6), settled)
    assert (Search(1).best(kept, settled[None])[0] == settled).all()


def test_states_of_an_earlier_search_are_those_of_the_jobs_that_are_still_there() -> None:
    front = np.stack([state({0: 1}, {1: 2}), state({2: 3}, {3: 4})])
    now = adapted(front, ["a", "b"], ["new", "b"])
    assert now.tolist() == np.stack([state({}, {1: 2}), state({}, {3: 4})]).tolist()
