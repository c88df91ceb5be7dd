"""Which members hold up the others: all that three and four members can say, and worlds that are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import product
from statistics import median_high

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure_operator.api.status import RunPlan, Straggler
from perdure_operator.decide.stragglers import KEPT, MOST, PATIENCE, OwnShare, stragglers, stragglers_in_words
from tests.support.raw import NOW
from tests.unit.operator.decide.test_suspects import plan

LATER = NOW + PATIENCE
SHARES = (None, 0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
"""What a member may say; None: it has said nothing, or long ago."""

Said = Sequence[float | None]


def said(*own: float | None) -> Mapping[str, OwnShare]:
    return {f"uid-{rank}": OwnShare(one) for rank, one in enumerate(own) if one is not None}


def found(own: Said, before: tuple[Straggler, ...] = (), at: datetime = NOW) -> tuple[Straggler, ...]:
    return stragglers(nodes(len(own)), said(*own), before, at)


def nodes(world: int) -> RunPlan:
    return plan(*(f"n{rank}" for rank in range(world)))


def ranks(found: tuple[Straggler, ...]) -> list[int]:
    return [one.rank for one in found]


def named(found: tuple[Straggler, ...]) -> list[int]:
    return [one.rank for one in found if one.named]


def is_slow(own: float, others: list[float]) -> bool:
    """In other words: at least half of the others, and one more if their number is even, are far below it."""
    below = [other for other in others if own >= 1.5 * other and own - other >= 0.25]
    return len(below) >= len(others) // 2 + 1


@pytest.mark.parametrize("world", [3, 4])
def test_slow_is_who_works_one_and_a_half_times_as_long_and_a_quarter_of_a_step_longer_than_most(world: int) -> None:
    for own in product(SHARES, repeat=world):
        heard = [rank for rank, one in enumerate(own) if one is not None]
        expected = [
            rank
            for rank in heard
            if len(heard) >= 3 and is_slow(own[rank] or 0.0, [own[other] or 0.0 for other in heard if other != rank])
        ]
        first = found(own)
        assert (ranks(first), named(first)) == (expected, []), own
        assert 2 * len(expected) <= len(heard), own
        assert named(found(own, first, LATER)) == expected, own


@pytest.mark.parametrize("world", [1, 2])
def test_of_one_or_two_members_none_is_named(world: int) -> None:
    for own in product(SHARES, repeat=world):
        assert found(own, named_before(*range(world))) == (), own


def named_before(*of: int) -> tuple[Straggler, ...]:
    return tuple(
        Straggler(name=f"digits-{rank}", rank=rank, own_percent=90, others_percent=30, since=NOW, named=True)
        for rank in of
    )


@pytest.mark.parametrize(("own", "stays"), [(0.4, False), (0.49, False), (0.51, True), (0.9, True)])
def test_who_is_named_stays_so_until_its_own_time_is_below_one_and_a_quarter(own: float, stays: bool) -> None:
    before = named_before(1)
    assert named(found((0.4, own, 0.4), before, LATER)) == ([1] if stays else [])
    assert ranks(found((0.4, own, 0.4))) == ([1] if own == 0.9 else [])
    assert found((0.0, 0.0, 0.0), before, LATER) == ()


@pytest.mark.parametrize("own", [0.55, None])
def test_who_is_not_slow_at_one_look_is_slow_for_a_whole_minute_before_it_is_named(own: float | None) -> None:
    slow, almost = (0.4, 0.9, 0.4, 0.4), (0.4, own, 0.4, 0.4)
    first = found(slow)
    second = found(almost, first, NOW + timedelta(seconds=50))
    third = found(slow, second, LATER)
    assert [one.since for one in third] == [LATER]
    assert named(third) == []
    assert named(found(slow, third, LATER + PATIENCE - timedelta(seconds=1))) == []
    assert named(found(slow, third, LATER + PATIENCE)) == [1]


def test_a_clock_that_was_set_back_names_nobody_early() -> None:
    first = found((0.4, 0.9, 0.4))
    assert named(found((0.4, 0.9, 0.4), first, NOW - timedelta(days=1))) == []


def test_steps_in_which_nearly_everybody_waits_have_no_slow_member() -> None:
    assert found((0.02, 0.2, 0.02)) == ()


def test_pods_that_are_not_in_the_plan_do_not_count() -> None:
    foreign = {"uid-8": OwnShare(0.1), "uid-9": OwnShare(0.1)}
    assert stragglers(nodes(2), {**said(0.1, 0.9), **foreign}, (), NOW) == ()
    assert stragglers(nodes(3), {**said(0.1, 0.9, None), **foreign}, (), NOW) == ()


def test_what_is_known_of_a_straggler_is_told() -> None:
    (one,) = found((0.42, 0.83, 0.45))
    told = Straggler(name="digits-1", node="n1", rank=1, own_percent=83, others_percent=45, since=NOW, heard_time=NOW)
    assert one == told
    words = "holds up the others since 12:00:00Z: it works 83 % of each step itself, and they work 45 %"
    one = one.model_copy(update={"since": NOW.replace(hour=12, minute=0, second=0)})
    nowhere = one.model_copy(update={"node": "", "rank": 2, "name": "digits-2"})
    assert stragglers_in_words((one, nowhere)) == f"rank 1 (digits-1 on n1) {words} and rank 2 (digits-2) {words}"


@pytest.mark.parametrize(("data", "words"), [(None, ""), (0.0, ""), (0.6, ", 60 % waiting for its data")])
def test_a_straggler_that_waits_for_data_is_said_to(data: float | None, words: str) -> None:
    (one,) = stragglers(nodes(3), {**said(0.4, None, 0.4), "uid-1": OwnShare(0.9, data)}, (), NOW)
    assert f"works 90 % of each step itself{words}, and they" in stragglers_in_words((one,))


@pytest.mark.parametrize("own", [(0.4, None, 0.4, 0.4), (0.4, None, None, None), (None, 0.9, None, 0.4)])
def test_one_that_is_named_stays_so_while_nothing_is_known_of_it_and_not_for_ever(own: Said) -> None:
    """A new leader has heard none of them, and would name it again a minute later."""
    slow = (0.4, 0.9, 0.4, 0.4)
    before = found(slow, found(slow), LATER)
    silent = found(own, before, LATER + KEPT - timedelta(seconds=1))
    assert (silent, named(silent)) == (before, [1])
    assert found(own, silent, LATER + KEPT) == ()
    assert found((0.4, 0.4, 0.4, 0.4), silent, LATER) == ()
    assert stragglers(plan("n0", "n2", "n3"), {}, (before[0].model_copy(update={"name": "gone"}),), LATER) == ()


def test_of_many_those_are_told_that_cost_most() -> None:
    costs = [0.05 + rank / 100 for rank in range(40)]
    told = found([0.0] * 41 + [0.3 + one for one in costs])
    assert ranks(told) == list(range(81 - MOST, 81))


@given(st.lists(st.sampled_from(SHARES[1:]) | st.floats(0, 1), min_size=3, max_size=9))
def test_the_others_are_all_but_the_member_itself(own: list[float]) -> None:
    for one in found(own):
        others = own[: one.rank] + own[one.rank + 1 :]
        assert one.others_percent == round(100 * median_high(others))


looks = st.lists(
    st.tuples(
        st.lists(st.none() | st.floats(0, 1), max_size=6),
        st.integers(0, 90).map(lambda seconds: timedelta(seconds=seconds)),
    ),
    max_size=8,
)


@given(looks)
@example([((0.1, 0.1, 0.9), PATIENCE)] * 2 + [((0.1, None, 0.9), PATIENCE)])
def test_in_any_history_members_are_named_that_have_spoken_among_three_or_more_and_were_slow_for_a_minute(
    history: list[tuple[Said, timedelta]],
) -> None:
    before, now, since = tuple[Straggler, ...](), NOW, dict[int, datetime]()
    last = dict[int, datetime]()
    for own, after in history:
        now += after
        known, before = set(named(before)), found(own, before, now)
        heard = {rank for rank, one in enumerate(own) if one is not None}
        judged = heard if len(heard) >= 3 else set[int]()
        last |= dict.fromkeys(judged, now)
        kept = set(ranks(before)) - judged
        assert kept <= known
        assert all(now - last[rank] < KEPT for rank in kept)
        since = {one.rank: since.get(one.rank, now) for one in before}
        assert [one.since for one in before] == [since[one.rank] for one in before]
        assert all(now - since[rank] >= PATIENCE for rank in named(before))
