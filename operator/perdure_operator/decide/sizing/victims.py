"""Who leaves when a run gets smaller and nobody has to: decided here and nowhere else.

A node without pods can be taken away by an autoscaler, or taken by whoever needs a whole one; half of one helps nobody.
So whole nodes are emptied first, as many as can be. Pure. Called by `succession`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A member that could stay as well."""

    name: str
    rank: int
    node: str
    """"" where it is not known."""
    warm: bool
    """Whether it is Ready."""


def victims(candidates: Sequence[Candidate], count: int) -> frozenset[str]:
    """The names of so many of them: all of a node, then those that are not warm, then the highest ranks."""
    emptied = set(_whole_nodes(candidates, count))
    others = sorted((one for one in candidates if one not in emptied), key=lambda one: (one.warm, -one.rank))
    return frozenset(one.name for one in (*emptied, *others[: max(count - len(emptied), 0)]))


def _whole_nodes(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Members of as many nodes as can be emptied by so many: the nodes with the fewest, then with the highest ranks."""
    by_node = defaultdict[str, list[Candidate]](list)
    for one in candidates:
        by_node[one.node].append(one)
    by_node.pop("", None)
    chosen: list[Candidate] = []
    for members in sorted(by_node.values(), key=lambda those: (len(those), -max(one.rank for one in those))):
        if len(chosen) + len(members) <= count:
            chosen += members
    return chosen
