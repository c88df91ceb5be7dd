"""The size that a job ought to have: replicas within its bounds, and down to a size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure_operator.api.spec import Checkpoint, Elastic, TrainingJobSpec
from perdure_operator.decide.sizing.target import largest, wanted_members, why_so_many


def _spec(replicas: int, elastic: Elastic | None) -> TrainingJobSpec:
    return TrainingJobSpec(replicas=replicas, checkpoint=Checkpoint(uri="s3://b/p"), elastic=elastic)


EVERY = Elastic(min_replicas=2, max_replicas=8)
SOME = Elastic(min_replicas=2, max_replicas=8, sizes=(2, 4, 8))


@pytest.mark.parametrize(
    ("replicas", "elastic", "members", "why"),
    [
        (3, None, 3, "spec.replicas is 3"),
        (3, EVERY, 3, "spec.replicas is 3"),
        (1, EVERY, 2, "spec.replicas is 1, and elastic.minReplicas is 2"),
        (1, SOME, 2, "spec.replicas is 1, and elastic.minReplicas is 2"),
        (3, SOME, 2, "spec.replicas is 3, and 2 is the largest of elastic.sizes that is not above it"),
        (7, SOME, 4, "spec.replicas is 7, and 4 is the largest of elastic.sizes that is not above it"),
        (8, SOME, 8, "spec.replicas is 8"),
    ],
)
def test_the_wanted_size_and_why(replicas: int, elastic: Elastic | None, members: int, why: str) -> None:
    assert wanted_members(_spec(replicas, elastic)) == members
    assert why_so_many(_spec(replicas, elastic)) == why


def test_no_size_is_small_enough_for_fewer_members_than_the_smallest() -> None:
    assert largest(SOME, 1) == 0
    assert largest(SOME, 2) == 2
    assert largest(EVERY, 1) == 0
    assert largest(EVERY, 7) == 7


NUMBERS = st.integers(-2, 9)
SIZES = st.none() | st.lists(NUMBERS, max_size=4).map(tuple)
ANY = st.tuples(NUMBERS, NUMBERS, SIZES).map(
    lambda one: Elastic(min_replicas=one[0], max_replicas=one[1], sizes=one[2])
)


@given(st.integers(-2, 12), ANY)
def test_what_no_schema_let_through_still_has_a_size(replicas: int, elastic: Elastic) -> None:
    """A CRD that is older, or that somebody has edited, checks nothing."""
    assert wanted_members(_spec(replicas, elastic)) >= 1
    assert why_so_many(_spec(replicas, elastic))
