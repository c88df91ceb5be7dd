"""Where the members of a pool's jobs have room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure_operator.decide.packing import Pool, pack

TWO_OF_FOUR = Pool(((4, 2),))


@pytest.mark.parametrize(
    ("jobs", "nodes", "missing"),
    [
        ([(4, 1), (4, 1)], (1, 1), 0),
        ([(2, 1), (2, 1), (4, 1)], (1, 1, 1), 0),
        ([(3, 1), (3, 1), (2, 1)], (1, 1, 2), 0),
        ([(5, 1), (3, 1)], (2, 1), 0),
        ([(2, 2), (1, 4)], (1, 1), 0),
        ([(2, 3), (1, 1)], (2, 1), 0),
        ([(3, 3)], (2,), 3),
        ([(8, 1), (1, 1)], (2, 0), 1),
        ([(0, 1), (8, 1)], (0, 2), 0),
        ([], (), 0),
    ],
)
def test_a_job_is_on_one_node_if_one_has_room_for_it(
    jobs: list[tuple[int, int]], nodes: tuple[int, ...], missing: int
) -> None:
    packed = pack(TWO_OF_FOUR, jobs)
    assert (packed.nodes, packed.missing) == (nodes, missing)


def test_the_fullest_node_that_has_room_is_taken() -> None:
    """Else the job of four would be on both."""
    assert pack(Pool(((4, 1), (2, 1))), [(2, 1), (4, 1)]).nodes == (1, 1)


def test_what_a_pool_has() -> None:
    pool = Pool(((8, 2), (4, 1), (16, 0)))
    assert (pool.devices, pool.widest, pool.usable(1), pool.usable(3)) == (20, 8, 20, 15)
    assert (Pool(()).devices, Pool(()).widest) == (0, 0)


@pytest.mark.parametrize(
    ("taken", "left"),
    [(0, ((4, 1), (8, 2))), (3, ((1, 1), (8, 2))), (4, ((8, 2),)), (5, ((7, 1), (8, 1))), (20, ()), (99, ())],
)
def test_devices_that_are_taken_are_those_of_the_smallest_nodes(taken: int, left: tuple[tuple[int, int], ...]) -> None:
    assert Pool(((8, 2), (4, 1))).less(taken) == Pool(left)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5)), max_size=4),
    st.lists(st.integers(0, 9), max_size=6),
    st.integers(1, 3),
)
def test_members_of_equal_ranks_find_all_the_room_that_there_is(
    shapes: list[tuple[int, int]], members: list[int], ranks: int
) -> None:
    pool = Pool(tuple(shapes))
    packed = pack(pool, [(one, ranks) for one in members])
    assert packed.missing == max(sum(members) * ranks - pool.usable(ranks), 0)
    placed = [(one, nodes) for one, nodes in zip(members, packed.nodes, strict=True) if not packed.missing]
    assert all((nodes > 0) == (one > 0) and nodes <= one for one, nodes in placed)
