"""Ranks meet before their optimizers step: real gloo groups, whose ranks are threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count

import pytest
import torch.distributed as dist

from perdure.errors import PeerLost, UserError
from perdure.group.agreement import Agreement, CheckpointCall, Votes
from perdure.group.world import Group, connect_group

SECONDS = 60.0
SHORT = 0.01


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as ranks:
        limit = timedelta(seconds=SECONDS)
        made = [ranks.submit(connect_group, store, "g", rank=rank, size=2, timeout=limit) for rank in range(2)]
        found = [one.result() for one in made]
        del made  # a group closes its connections with its last reference
        yield found


def test_who_comes_first_waits_and_may_look_elsewhere_meanwhile(groups: list[Group]) -> None:
    one, other = (Agreement(group) for group in groups)
    first = one.meet(7)
    assert not first.is_over(SHORT)
    assert not first.is_over(SHORT)
    second = other.meet(7)
    assert first.is_over(SECONDS)
    assert second.is_over(SECONDS)


def test_a_vote_that_is_under_way_is_not_mistaken_for_the_meeting(groups: list[Group]) -> None:
    ranks = [Agreement(group, interval=0.0) for group in groups]
    for rank, votes in zip(ranks, (Votes(save=True), Votes()), strict=True):
        rank.check(6, CheckpointCall.STEP, votes)
    meetings = [rank.meet(6) for rank in ranks]
    assert all(meeting.is_over(SECONDS) for meeting in meetings)
    assert [rank.collect().save for rank in ranks] == [True, True]


def test_who_loses_another_one_in_the_meeting_hears_of_it(groups: list[Group]) -> None:
    first = Agreement(groups.pop(0)).meet(7)
    groups.clear()  # its connections close, as at the end of its process
    with pytest.raises(PeerLost, match="all ranks were to meet before their optimizers step"):
        first.is_over(SECONDS)


def test_ranks_that_step_unequally_often_are_named(groups: list[Group]) -> None:
    first, second = Agreement(groups[0]).meet(7), Agreement(groups[1]).meet(9)
    for meeting in (first, second):
        with pytest.raises(UserError, match=r"unequally often: .* all of them at steps 7 to 9"):
            meeting.is_over(SECONDS)


def test_a_meeting_against_a_vote_is_named_on_every_rank(groups: list[Group]) -> None:
    """One rank's optimizer steps, and the other's script skips that step."""
    steps, skips = (Agreement(group, interval=0.0) for group in groups)
    meeting = steps.meet(7)
    skips.check(7, CheckpointCall.STEP, Votes())
    apart = r"all of them at step 7, in an optimizer's step\(\) and step\(\), .* and step optimizers equally often"
    with pytest.raises(UserError, match=apart):
        meeting.is_over(SECONDS)
    with pytest.raises(UserError, match=apart):
        skips.collect()


def test_ranks_that_have_called_something_else_before_they_meet_are_named_there(groups: list[Group]) -> None:
    """Not every call is a vote, but the meeting comes at every step."""
    ranks = [Agreement(group, interval=SECONDS, now=partial(next, count(0.0))) for group in groups]
    for step in (1, 2):
        for rank in ranks:
            rank.check(step, CheckpointCall.STEP, Votes())
    ranks[0].check(3, CheckpointCall.STEP, Votes())
    apart = r"all of them at step 4, in an optimizer's step\(\), after different calls"
    for meeting in [rank.meet(4) for rank in ranks]:
        with pytest.raises(UserError, match=apart):
            meeting.is_over(SECONDS)
