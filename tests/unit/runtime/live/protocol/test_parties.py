"""The parties of an attempt: numbers, ranks, the decider, and which sends what to which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UserError
from perdure.live.protocol.parties import Attempt, Party, PartyRole, attempt_of
from perdure.wire import Handover


def attempt(world: int, joins: tuple[int, ...] = (), leavers: tuple[int, ...] = ()) -> Attempt:
    return Attempt(3, 4, world, joins, leavers)


def ranks(of: Attempt) -> list[tuple[int | None, int | None]]:
    return [(party.old, party.new) for party in of.parties]


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    world = draw(st.integers(1, 6))
    leavers = tuple(sorted(draw(st.sets(st.integers(0, world - 1)))))
    left = world - len(leavers)
    count = draw(st.integers(0 if left else 1, 4))
    if count == len(leavers):
        return attempt(world, leavers, leavers)
    joins = draw(st.permutations(range(left + count)))[:count]
    return attempt(world, tuple(sorted(joins)), leavers)


class TestRanks:
    def test_in_an_equal_world_newcomers_take_the_leavers_ranks(self) -> None:
        assert ranks(attempt(3, (0, 2), (0, 2))) == [(0, None), (1, 1), (2, None), (None, 0), (None, 2)]

    def test_in_a_smaller_world_stayers_keep_their_order(self) -> None:
        assert ranks(attempt(3, (), (0,))) == [(0, None), (1, 0), (2, 1)]

    def test_in_a_larger_world_newcomers_hold_the_ranks_the_plan_names(self) -> None:
        assert ranks(attempt(2, (2,))) == [(0, 0), (1, 1), (None, 2)]

    def test_parties_are_numbered_old_ranks_first(self) -> None:
        parties = attempt(2, (0,), (0,)).parties
        assert parties == (
            Party(0, PartyRole.LEAVER, 0, None),
            Party(1, PartyRole.STAYER, 1, 1, decides=True),
            Party(2, PartyRole.NEWCOMER, None, 0),
        )

    @given(attempts())
    def test_every_rank_of_either_run_has_exactly_one_party(self, of: Attempt) -> None:
        assert [of.of_old(rank).old for rank in range(of.world)] == list(range(of.world))
        assert [of.of_new(rank).new for rank in range(of.new_world)] == list(range(of.new_world))
        assert [party.number for party in of.parties] == list(range(of.world + len(of.joins)))

    @given(attempts())
    def test_stayers_never_change_their_order(self, of: Attempt) -> None:
        new = [party.new for party in of.parties if party.part is PartyRole.STAYER and party.new is not None]
        assert new == sorted(new)


class TestDecider:
    @pytest.mark.parametrize(
        ("of", "decider"),
        [
            (attempt(2, (1,), (1,)), 0),
            (attempt(2, (0,), (0,)), 1),
            (attempt(2, (0, 1), (0, 1)), 0),
            (attempt(1, (1,)), 0),
        ],
        ids=["rank-1-leaves", "rank-0-leaves", "all-leave", "growth"],
    )
    def test_it_is_the_lowest_that_stays_and_if_none_stays_the_lowest(self, of: Attempt, decider: int) -> None:
        assert of.decider == decider
        assert [party.number for party in of.parties if party.decides] == [decider]


class TestState:
    def test_newcomers_and_a_new_rank_0_need_the_header(self) -> None:
        assert attempt(3, (), (0,)).tensor_receivers == (1,)
        assert attempt(2, (0,), (0,)).tensor_receivers == (2,)
        assert attempt(2, (2,)).tensor_receivers == (2,)
        assert attempt(3, (), (2,)).tensor_receivers == ()

    def test_generators_follow_the_rank_in_an_equal_world_alone(self) -> None:
        assert attempt(2, (1,), (1,)).predecessor_of(1) == 1
        assert attempt(2, (2,)).predecessor_of(1) is None


@pytest.mark.parametrize(
    ("world", "joins", "leavers", "problem"),
    [
        (2, (1,), (0,), "its world is as large"),
        (2, (), (0, 1), "no rank would be left"),
        (2, (), (2,), "not ascending ranks of 2"),
        (2, (4,), (), "not ascending ranks of 3"),
    ],
    ids=["other-ranks", "nobody", "no-such-leaver", "no-such-rank"],
)
def test_a_block_that_contradicts_itself_is_refused(
    world: int, joins: tuple[int, ...], leavers: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        attempt(world, joins, leavers)


def test_a_run_is_taken_over_by_a_higher_one_alone() -> None:
    with pytest.raises(UserError, match="its number is not higher"):
        Attempt(4, 4, 2, (2,), ())


def test_an_attempt_is_what_the_assignments_block_says() -> None:
    block = Handover(3, 2, (1,), (1,), "10.0.0.1:2000", 30, "ab")
    assert attempt_of(block, 5) == Attempt(3, 5, 2, (1,), (1,))
