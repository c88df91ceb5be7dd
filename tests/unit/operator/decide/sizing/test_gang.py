"""When members that hold nodes in vain are let go, and for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure_operator.decide.sizing.gang import MOST_YIELDS, Gang, lets_go, longest_pause, pause
from tests.support.jobs import START

UIDS = [f"00000000-0000-4000-8000-{number:012}" for number in range(20)]


@pytest.mark.parametrize(
    ("needed", "placed", "roomless", "in_vain"),
    [
        (4, 3, 1, True),
        (4, 1, 3, True),
        (4, 0, 4, False),  # nobody waits for nodes that it does not hold
        (4, 3, 0, False),  # the fourth is on its way
        (4, 4, 0, False),
        (2, 2, 2, False),  # enough to begin with
    ],
)
def test_nodes_are_held_in_vain_where_some_are_held_and_too_many_find_none(
    needed: int, placed: int, roomless: int, in_vain: bool
) -> None:
    assert Gang(needed, placed, roomless).in_vain is in_vain


def test_an_older_one_waits_for_each_that_is_younger_but_not_for_ever() -> None:
    held = [(lets_go(START, 600, younger) - START).total_seconds() for younger in (0, 1, 2, 100)]
    assert held == [600, 1200, 1800, 600 * (1 + MOST_YIELDS)]


def test_pauses_grow_up_to_the_time_that_members_are_awaited() -> None:
    pauses = [pause(UIDS[0], attempts, 600).total_seconds() for attempts in (1, 2, 3, 4, 5, 1000)]
    assert all(least <= each <= 2 * least for each, least in zip(pauses, (60, 120, 240, 480, 600, 600), strict=True))
    assert max(pauses) <= longest_pause(600)
    assert pause(UIDS[0], 1, 30) <= timedelta(seconds=60)


def test_pauses_of_two_jobs_differ() -> None:
    assert len({pause(uid, 1, 600) for uid in UIDS}) > 10


def test_two_that_met_once_do_not_meet_in_each_attempt() -> None:
    first, second = UIDS[:2]
    lead = [pause(first, attempts, 600) - pause(second, attempts, 600) for attempts in range(1, 10)]
    assert len(set(lead)) > 3
