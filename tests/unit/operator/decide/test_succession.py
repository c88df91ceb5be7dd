"""Who leaves when a run gets smaller: whole nodes first, then those that are not warm, then the highest ranks."""

from __future__ import annotations

import itertools

import pytest

from perdure_operator.decide.succession import Candidate, victims


def _members(*nodes: str, cold: tuple[int, ...] = ()) -> list[Candidate]:
    """One for each rank, on these nodes."""
    return [Candidate(str(rank), rank, node, warm=rank not in cold) for rank, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("nodes", "count", "leave"),
    [
        ("abcd", 1, "3"),  # each empties one: the highest rank
        ("abcd", 3, "123"),
        ("abca", 1, "2"),  # the highest rank would leave half a node
        ("aabb", 1, "3"),  # none can be emptied
        ("aabb", 2, "23"),
        ("aabb", 3, "123"),
        ("aabbc", 2, "34"),  # c, and then the highest rank
        ("aabc", 2, "23"),
        ("abbb", 1, "0"),  # also the first rank, where its node is the only one
        ("aaabb", 2, "34"),
        ("aabbb", 2, "01"),
        ("", 0, ""),
        ("ab", 0, ""),
        ("ab", 2, "01"),
    ],
)
def test_nodes_are_emptied_before_the_highest_ranks_go(nodes: str, count: int, leave: str) -> None:
    assert victims(_members(*nodes), count) == set(leave)


def test_where_no_node_can_be_emptied_who_is_not_warm_goes_first() -> None:
    assert victims(_members(*"aabb", cold=(1,)), 1) == {"1"}
    assert victims(_members(*"aabb", cold=(0, 1, 2)), 1) == {"2"}


def test_to_empty_a_node_counts_more_than_who_is_warm() -> None:
    assert victims(_members(*"aab", cold=(0,)), 1) == {"2"}


def test_a_node_that_is_not_known_cannot_be_emptied() -> None:
    assert victims(_members("", "", "a", "a"), 2) == {"2", "3"}
    assert victims(_members("", "a", "a"), 1) == {"2"}


def test_a_thousand_are_not_compared_with_each_other() -> None:
    """Who stays is asked several times in a round."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    members = [Candidate(Name(number), number, f"n{number // 2}", warm=True) for number in range(1000)]
    assert len(victims(members, 500)) == 500
    assert compared < 10 * len(members)


def test_no_choice_empties_more_nodes_and_none_is_of_another_size() -> None:
    for nodes in itertools.product("abc", repeat=5):
        members = _members(*nodes)
        for count in range(6):
            chosen = victims(members, count)
            assert len(chosen) == count
            best = max(_emptied(members, those) for those in itertools.combinations(map(str, range(5)), count))
            assert _emptied(members, tuple(chosen)) == best, (nodes, count)


def _emptied(members: list[Candidate], leave: tuple[str, ...]) -> int:
    return len({one.node for one in members} - {one.node for one in members if one.name not in leave})
