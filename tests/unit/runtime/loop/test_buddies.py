"""Which pod mirrors which: each mirrors one other, on another node wherever that is possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from perdure.loop.buddies import buddies, on_own_node

NODES = st.lists(st.sampled_from("abcde"), min_size=2, max_size=24)
SMALL = [nodes for size in range(2, 5) for nodes in product("abc", repeat=size)]


def shared(nodes: Sequence[str], found: Sequence[int]) -> int:
    return sum(nodes[pod] == nodes[buddy] for pod, buddy in enumerate(found))


@given(NODES)
def test_each_pod_mirrors_one_other_and_as_few_as_possible_share_a_node(nodes: list[str]) -> None:
    found = buddies(nodes)
    assert sorted(found) == list(range(len(nodes)))
    assert all(pod != buddy for pod, buddy in enumerate(found))
    fullest = Counter(nodes).most_common(1)[0][1]
    assert shared(nodes, found) == max(0, 2 * fullest - len(nodes)) == on_own_node(nodes)


def test_no_other_pairs_share_fewer_nodes() -> None:
    for nodes in SMALL:
        others = [one for one in permutations(range(len(nodes))) if all(pod != buddy for pod, buddy in enumerate(one))]
        assert shared(nodes, buddies(nodes)) == min(shared(nodes, one) for one in others), nodes


@given(st.integers(2, 24))
def test_of_pods_on_different_nodes_it_is_the_next_one(size: int) -> None:
    following = (*range(1, size), 0)
    assert buddies([f"n{pod}" for pod in reversed(range(size))]) == following
    assert buddies(["n"] * size) == following


@given(NODES, st.integers(0, 23))
def test_if_one_node_is_unknown_it_is_the_next_one(nodes: list[str], which: int) -> None:
    """As where one rank is of an older version, which knows the next one alone."""
    nodes[which % len(nodes)] = ""
    assert buddies(nodes) == (*range(1, len(nodes)), 0)


@given(NODES, st.permutations("abcde"))
def test_the_names_of_nodes_make_no_difference(nodes: list[str], other: list[str]) -> None:
    renamed = [other["abcde".index(node)] for node in nodes]
    assert buddies(renamed) == buddies(nodes)
