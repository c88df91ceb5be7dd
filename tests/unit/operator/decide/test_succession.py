"""Who leaves when a run gets smaller: whole nodes first, then those that are not warm, then those that came last."""

from __future__ import annotations

import itertools

import pytest

from perdure_operator.decide.succession import Candidate, victims


def _members(*nodes: str, cold: tuple[int, ...] = ()) -> list[Candidate]:
    """One on each of these nodes, the first came first."""
    return [Candidate(str(number), node, number not in cold, (False, number)) for number, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("nodes", "count", "leave"),
    [
        ("abcd", 1, "3"),  # each empties one: the last
        ("abcd", 3, "123"),
        ("abca", 1, "2"),  # the last would leave half a node
        ("aabb", 1, "3"),  # none can be emptied
        ("aabb", 2, "23"),
        ("aabb", 3, "123"),
        ("aabbc", 2, "34"),  # c, and then the last of the others
        ("aabc", 2, "23"),
        ("abbb", 1, "0"),  # also the first, where its node is the only one
        ("aaabb", 2, "34"),
        ("aabbb", 2, "01"),
        ("", 0, ""),
        ("ab", 0, ""),
        ("ab", 2, "01"),
    ],
)
def test_nodes_are_emptied_before_the_last_go(nodes: str, count: int, leave: str) -> None:
    assert victims(_members(*nodes), count) == set(leave)


def test_where_no_node_can_be_emptied_who_is_not_warm_goes_first() -> None:
    assert victims(_members(*"aabb", cold=(1,)), 1) == {"1"}
    assert victims(_members(*"aabb", cold=(0, 1, 2)), 1) == {"2"}


def test_to_empty_a_node_counts_more_than_who_is_warm() -> None:
    assert victims(_members(*"aab", cold=(0,)), 1) == {"2"}


def test_a_node_that_is_not_known_cannot_be_emptied() -> None:
    assert victims(_members("", "", "a", "a"), 2) == {"2", "3"}
    assert victims(_members("", "a", "a"), 1) == {"2"}


def test_who_made_the_run_larger_goes_before_a_replacement_that_came_later() -> None:
    """Its class may be preempted: see joinerPriorityClassName."""
    members = [
        Candidate(name, name, warm=True, came=came)
        for name, came in (("first", (False, 0)), ("joiner", (True, 2)), ("replacement", (False, 3)))
    ]
    assert victims(members, 1) == {"joiner"}
    assert victims(members, 2) == {"joiner", "replacement"}


def test_a_thousand_are_not_compared_with_each_other() -> None:
    """Who stays is asked several times in a round."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    members = [Candidate(Name(number), f"n{number // 2}", warm=True, came=(False, number)) for number in range(1000)]
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
