"""The size that a job ought to have: replicas within its bounds, and down to a size."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure_operator.api.spec import CheckpointPolicy, Elastic, SizePolicy, TrainingJobSpec
from perdure_operator.api.status import Scaling
from perdure_operator.decide.sizing import largest, sizes_of, wanted_members, why_so_many


def _spec(replicas: int, elastic: Elastic | None, each: int = 1) -> TrainingJobSpec:
    checkpoint = CheckpointPolicy(uri="s3://b/p")
    return TrainingJobSpec(replicas=replicas, checkpoint=checkpoint, elastic=elastic, processes_per_replica=each)


EVERY = Elastic(min_replicas=2, max_replicas=8)
SOME = Elastic(min_replicas=2, max_replicas=8, sizes=(2, 4, 8))
EVEN = Elastic(min_replicas=2, max_replicas=8, global_batch_size=60)


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
        (6, EVEN, 6, "spec.replicas is 6"),
        (
            8,
            EVEN,
            6,
            "spec.replicas is 8, and 6 is the largest number that divides elastic.globalBatchSize 60 that is not "
            "above it",
        ),
        (1, EVEN, 2, "spec.replicas is 1, and elastic.minReplicas is 2"),
    ],
)
def test_the_wanted_size_and_why(replicas: int, elastic: Elastic | None, members: int, why: str) -> None:
    assert wanted_members(_spec(replicas, elastic)) == members
    assert why_so_many(_spec(replicas, elastic)) == why


GIVEN = Scaling(size=5, why="the pool gives it", since=datetime(2026, 1, 1, tzinfo=UTC))


def test_with_policy_goodput_the_size_that_was_given_counts_in_place_of_replicas() -> None:
    shares = SOME.model_copy(update={"policy": SizePolicy.GOODPUT})
    assert wanted_members(_spec(8, shares)) == 2
    assert why_so_many(_spec(8, shares)).startswith("elastic.minReplicas")
    assert wanted_members(_spec(2, shares), GIVEN) == 4
    assert why_so_many(_spec(2, shares), GIVEN) == "the pool gives it"
    for policy in (None, SizePolicy.CAPACITY):
        follows = SOME.model_copy(update={"policy": policy})
        assert wanted_members(_spec(8, follows), GIVEN) == 8
        assert why_so_many(_spec(8, follows), GIVEN) == "spec.replicas is 8"
    assert wanted_members(_spec(3, None), GIVEN) == 3


@pytest.mark.parametrize("elastic", [None, EVERY, SOME, EVEN])
def test_all_sizes_of_a_job_are_those_that_it_gets_for_some_number(elastic: Elastic | None) -> None:
    spec = _spec(6, elastic)
    every = {wanted_members(spec.model_copy(update={"replicas": replicas})) for replicas in range(1, 9)}
    assert sizes_of(spec) == (tuple(sorted(every)) if elastic else (6,))


def test_no_size_is_small_enough_for_fewer_members_than_the_smallest() -> None:
    assert largest(_spec(8, SOME), 1) == 0
    assert largest(_spec(8, SOME), 2) == 2
    assert largest(_spec(8, EVERY), 1) == 0
    assert largest(_spec(8, EVERY), 7) == 7
    assert largest(_spec(8, EVEN), 1) == 0


@given(st.integers(1, 400), st.integers(1, 4), st.integers(1, 20), st.integers(0, 20), st.integers(0, 45))
def test_sizes_are_those_whose_processes_divide_the_batch(
    batch: int, each: int, least: int, more: int, able: int
) -> None:
    elastic = Elastic(min_replicas=least, max_replicas=least + more, global_batch_size=batch)
    good = [size for size in range(least, least + more + 1) if batch % (size * each) == 0]
    assert largest(_spec(1, elastic, each), able) == max((size for size in good if size <= able), default=0)


def test_where_the_processes_of_a_member_count_it_says_so() -> None:
    words = "4 is the largest number that, times processesPerReplica 2, divides elastic.globalBatchSize 64"
    assert words in why_so_many(_spec(7, Elastic(min_replicas=2, max_replicas=8, global_batch_size=64), each=2))


def test_sizes_that_are_named_are_all_that_there_are() -> None:
    """The API server refuses those that do not divide the batch."""
    assert largest(_spec(8, SOME.model_copy(update={"global_batch_size": 12})), 8) == 8


def test_more_than_the_largest_that_no_schema_let_through_is_the_largest() -> None:
    assert why_so_many(_spec(9, EVERY)) == "spec.replicas is 9, elastic.maxReplicas is 8"


NUMBERS = st.integers(-2, 9)
SIZES = st.none() | st.lists(NUMBERS, max_size=4).map(tuple)
ANY = st.tuples(NUMBERS, NUMBERS, SIZES, st.none() | NUMBERS).map(
    lambda one: Elastic(min_replicas=one[0], max_replicas=one[1], sizes=one[2], global_batch_size=one[3])
)


@given(st.integers(-2, 12), ANY)
def test_what_no_schema_let_through_still_has_a_size(replicas: int, elastic: Elastic) -> None:
    """A CRD that is older, or was edited, checks nothing."""
    assert wanted_members(_spec(replicas, elastic)) >= 1
    assert why_so_many(_spec(replicas, elastic))
