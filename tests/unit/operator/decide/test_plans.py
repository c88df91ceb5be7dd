"""Where the members of a larger run are: those that stay keep as much of a sharded model as they can."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import pytest

from perdure_operator.api.spec import Elastic
from perdure_operator.decide.plans import spread
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import PATIENT, Job, job

GROWTHS = [(old, size) for old in range(1, 6) for size in range(old, 10)]


def _costs(old: int, size: int, places: Sequence[int]) -> tuple[Fraction, Fraction]:
    """Of the state: how much is sent in all, and by the member that sends most. Each rank holds an equal part."""
    has = {place: (Fraction(rank, old), Fraction(rank + 1, old)) for rank, place in enumerate(places)}
    sent = dict.fromkeys(has, Fraction(0))
    for needs in range(size):
        first, last = Fraction(needs, size), Fraction(needs + 1, size)
        for place, (begin, end) in has.items():
            if place != needs:
                sent[place] += max(Fraction(0), min(last, end) - max(first, begin))
    return sum(sent.values(), Fraction(0)), max(sent.values())


@pytest.mark.parametrize(("old", "size"), GROWTHS)
def test_no_other_places_in_the_same_order_send_less_in_all_or_by_one_member(old: int, size: int) -> None:
    costs = _costs(old, size, spread(old, size, 1))
    others = [_costs(old, size, places) for places in combinations(range(size), old)]
    assert costs == (min(total for total, _ in others), min(most for _, most in others))
    assert spread(old, size, 1)[0] == 0


@pytest.mark.parametrize(("old", "size", "row"), [(4, 6, 2), (4, 8, 2), (6, 9, 3), (4, 8, 4), (2, 4, 2)])
def test_a_row_stays_together_and_in_its_order(old: int, size: int, row: int) -> None:
    places = spread(old, size, row)
    rows = [places[first : first + row] for first in range(0, old, row)]
    assert all(one[0] % row == 0 and one == tuple(range(one[0], one[0] + row)) for one in rows)
    assert list(places) == sorted(set(places))


def _doubled(elastic: Elastic | None) -> Job:
    nodes = tuple(NodeView(name=f"n{number}") for number in range(1, 7))
    here = job(disruption=PATIENT, elastic=elastic, replicas=2).having(nodes=nodes).running(world=2)
    return here.spec(replicas=4).settle().after(60).settle().ready().settle().after(60).settle()


@pytest.mark.parametrize(
    ("elastic", "places"),
    [
        (Elastic(min_replicas=2, max_replicas=4), ["0", "2", "1", "3"]),
        (Elastic(min_replicas=2, max_replicas=4, sizes=(2, 4)), ["0", "1", "2", "3"]),
        (None, ["0", "1", "2", "3"]),
    ],
    ids=["any-size", "even-sizes", "by-hand"],
)
def test_new_members_come_between_those_that_stay_unless_two_may_be_a_row(
    elastic: Elastic | None, places: list[str]
) -> None:
    here = _doubled(elastic)
    assert here.now.next is not None
    assert here.now.next.plan is not None
    assert [member.name.rpartition("-")[2] for member in here.now.next.plan.members] == places
