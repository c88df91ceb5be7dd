"""A job that has not begun releases nodes that it holds in vain, and starts again after a pause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import Assigned, Disruption, Intent, Phase, PreviousRun
from perdure_operator.decide.facts import gang_pause, longest_gang_pause
from perdure_operator.decide.starting import MOST_YIELDS, Gang, gang_released_at
from tests.support.jobs import START, Job, creates, deletes, job

UIDS = [f"00000000-0000-4000-8000-{number:012}" for number in range(20)]
TIMEOUT = 600
LONGEST_FIRST_PAUSE = 120


def _stuck(placed: int = 2, replicas: int = 3, **spec: Any) -> Job:
    """So many have a node and the others none."""
    here = job(**spec).starting(replicas)
    for number in range(placed, replicas):
        here = here.pod(number, node="", unschedulable="0/2 nodes are available")
    return here.settle()


def _released(here: Job) -> Job:
    return here.after(TIMEOUT).settle()


class TestHoldingOn:
    def test_it_says_what_is_held_and_until_when(self) -> None:
        told = _stuck().condition(ConditionType.RUNNING)
        assert told.reason == "Unschedulable"
        assert (
            f"the nodes that other members hold (2) are released at {START + timedelta(seconds=TIMEOUT):%H:%M:%S}Z"
            in (told.message)
        )

    def test_it_holds_on_so_long_and_no_longer(self) -> None:
        here = _stuck()
        assert here.plan().requeue_after == TIMEOUT
        assert deletes(here.after(TIMEOUT - 1).plan()) == []
        assert sorted(deletes(here.after(TIMEOUT).plan())) == [here.name(0), here.name(1), here.name(2)]

    def test_as_long_as_the_user_says(self) -> None:
        here = _stuck(start_timeout_seconds=3600)
        assert deletes(here.after(3599).plan()) == []
        assert deletes(here.after(3600).plan()) != []

    def test_members_that_find_a_node_meanwhile_end_it(self) -> None:
        here = _stuck().after(TIMEOUT - 1).pod(2, node="n3", unschedulable="").settle()
        assert here.now.next is not None
        assert here.now.next.in_vain_since is None
        assert here.after(TIMEOUT).settle().names() == ["0", "1", "2"]

    def test_who_holds_nothing_waits_for_room_as_before(self) -> None:
        here = _stuck(placed=0).after(100 * TIMEOUT).settle()
        assert here.names() == ["0", "1", "2"]

    def test_a_quota_that_leaves_out_some_counts_as_want_of_room(self) -> None:
        here = job(replicas=3).refused("digits-ab12-2").step().step().step()
        assert here.now.next is not None
        assert here.now.next.in_vain_since is not None

    def test_another_refusal_does_not(self) -> None:
        here = job(replicas=3).refused("digits-ab12-2", message='webhook "w" denied').step().step().step()
        assert here.names() == ["0", "1"]
        assert deletes(here.after(TIMEOUT).step().plan()) == []

    def test_a_run_that_trains_is_never_taken_from(self) -> None:
        here = job().running(2).spec(replicas=4).settle().all_ended(ExitKind.CHECKPOINTED, commit=(1, 5)).settle()
        assert here.now.current is None
        grows = job(elastic=Elastic(min_replicas=2, max_replicas=4)).running(2).spec(replicas=4).settle()
        assert grows.now.current is not None
        assert _released(grows.after(1).settle()).now.gang is None

    def test_no_member_releases_its_node_while_others_of_the_job_still_leave_theirs(self) -> None:
        here = _stuck().after(TIMEOUT)
        saves = here.snapshot.pods[0].model_copy(update={"name": here.name(9), "uid": "u9", "phase": "Running"})
        move = Intent(disruption=Disruption.NODE_LEAVING, cause="n1 is cordoned", since=START, seconds=3600)
        leaver = Assigned(name=saves.name, uid=saves.uid, rank=0)
        here = here.having(pods=(*here.snapshot.pods, saves))
        here = here.status(previous=PreviousRun(run=0, members=(leaver,), intent=move))
        assert not set(deletes(here.plan())) & {here.name(0), here.name(1), here.name(2)}
        upcoming = here.step().now.next
        assert upcoming is not None
        assert upcoming.in_vain_since is None, "their time begins when the last of the others has left"

    def test_with_elastic_the_smallest_size_is_enough(self) -> None:
        sizes = Elastic(min_replicas=2, max_replicas=4)
        enough = _stuck(2, 4, elastic=sizes)
        assert enough.now.next is not None
        assert enough.now.next.in_vain_since is None
        assert _released(_stuck(1, 4, elastic=sizes)).now.gang is not None


class TestLettingGo:
    def test_it_is_reported_with_the_time_of_the_next_attempt(self) -> None:
        here = _released(_stuck())
        (event,) = [one for plan in here.history for one in plan.events if one.reason == "GangReleased"]
        assert event.type == "Warning"
        assert "2 members held nodes while others found no room" in event.message
        told = here.condition(ConditionType.RUNNING)
        assert told.reason == Reason.GANG_RELEASED
        assert here.now.gang is not None
        assert f"{here.now.gang.until:%H:%M:%S}Z" in told.message
        assert here.now.phase is Phase.PENDING
        assert [pod for pod in here.living() if not pod.deleting] == []

    def test_no_member_is_created_until_the_pause_is_over_and_then_all_are(self) -> None:
        here = _released(_stuck())
        assert here.now.gang is not None
        seconds = (here.now.gang.until - here.snapshot.now).total_seconds()
        assert here.plan().requeue_after == seconds
        assert creates(here.after(seconds - 1).plan()) == []
        here = here.after(seconds).settle()
        assert len(here.now.next.members if here.now.next else ()) == 3

    def test_names_are_never_used_again(self) -> None:
        here = _released(_stuck()).after(LONGEST_FIRST_PAUSE).settle()
        assert here.now.next is not None
        assert here.now.next.members == (here.name(3), here.name(4), here.name(5))

    def test_pauses_grow_while_there_is_no_room(self) -> None:
        here, seen = _stuck(), list[int]()
        for _ in range(3):
            here = here.after(TIMEOUT).settle()
            assert here.now.gang is not None
            seen.append(here.now.gang.attempts)
            here = here.having(now=here.now.gang.until).settle()
            assert here.now.next is not None
            newest = here.now.next.members[-1]
            here = here.pod(newest, node="", unschedulable="0/2 nodes").settle()
        assert seen == [1, 2, 3]

    def test_an_edit_of_the_spec_ends_the_pause(self) -> None:
        here = _released(_stuck()).spec(replicas=2).settle()
        assert len(here.now.next.members if here.now.next else ()) == 2

    def test_a_run_that_is_planned_ends_the_row(self) -> None:
        here = _released(_stuck()).after(LONGEST_FIRST_PAUSE).settle().ready().settle()
        assert here.now.run == 1
        assert here.now.gang is None

    def test_no_pause_ends_later_than_it_can_have_been_set_for(self) -> None:
        """Its writer had another clock."""
        here = _released(_stuck())
        assert here.now.gang is not None
        far = here.now.gang.model_copy(update={"until": START + timedelta(days=1)})
        here = here.status(gang=far).settle()
        assert here.now.gang is not None
        assert here.now.gang.until == here.snapshot.now + timedelta(seconds=longest_gang_pause(TIMEOUT))

    def test_a_job_that_is_suspended_meanwhile_restarts_its_time(self) -> None:
        here = _stuck().after(TIMEOUT - 1).spec(suspend=True).settle().after(TIMEOUT).spec(suspend=False).settle()
        assert here.now.gang is None
        assert len(here.now.next.members if here.now.next else ()) == 3

    def test_and_those_made_then_that_find_no_room_are_not_let_go_for_the_time_before(self) -> None:
        """Its members are known to have no room before the first look at them."""
        here = _stuck().after(TIMEOUT - 1).spec(suspend=True).settle().after(1).spec(suspend=False).step()
        here = here.pod(5, node="", unschedulable="0/2 nodes are available").settle()
        assert here.now.gang is None
        assert here.now.next is not None
        assert here.now.next.in_vain_since == here.snapshot.now

    def test_members_that_are_there_again_begin_also_where_a_clock_goes_back(self) -> None:
        here = _released(_stuck())
        assert here.now.gang is not None
        over = here.now.gang.until
        here = here.having(now=over).settle().having(now=over - timedelta(seconds=30)).ready().settle()
        assert here.now.run == 1
        assert here.now.current is not None


class TestTheOldestGoesLast:
    def test_it_holds_on_while_a_younger_one_does(self) -> None:
        here = _stuck().having(younger_gangs=1)
        assert deletes(here.after(TIMEOUT).plan()) == []
        assert deletes(here.after(2 * TIMEOUT).plan()) != []

    def test_it_looks_again_often_as_others_are_no_event_of_its_own(self) -> None:
        here = _stuck().having(younger_gangs=1).after(TIMEOUT).settle()
        assert here.plan().requeue_after == 10

    @pytest.mark.parametrize("younger", [0, 1, 3])
    def test_it_says_when_it_would_let_go(self, younger: int) -> None:
        here = _stuck().having(younger_gangs=younger).settle()
        until = START + timedelta(seconds=TIMEOUT * (1 + younger))
        assert f"are released at {until:%H:%M:%S}Z" in here.condition(ConditionType.RUNNING).message


@pytest.mark.parametrize(
    ("needed", "placed", "roomless", "in_vain"),
    [
        (4, 3, 1, True),
        (4, 1, 3, True),
        (4, 0, 4, False),  # it does not wait for nodes that it does not hold
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
    held = [(gang_released_at(START, 600, younger) - START).total_seconds() for younger in (0, 1, 2, 100)]
    assert held == [600, 1200, 1800, 600 * (1 + MOST_YIELDS)]


def test_pauses_grow_up_to_the_time_that_members_are_awaited() -> None:
    pauses = [gang_pause(UIDS[0], attempts, 600).total_seconds() for attempts in (1, 2, 3, 4, 5, 1000)]
    assert all(least <= each <= 2 * least for each, least in zip(pauses, (60, 120, 240, 480, 600, 600), strict=True))
    assert max(pauses) <= longest_gang_pause(600)
    assert gang_pause(UIDS[0], 1, 30) <= timedelta(seconds=60)


def test_pauses_of_two_jobs_differ() -> None:
    assert len({gang_pause(uid, 1, 600) for uid in UIDS}) > 10


def test_two_that_met_once_do_not_meet_in_each_attempt() -> None:
    first, second = UIDS[:2]
    lead = [gang_pause(first, attempts, 600) - gang_pause(second, attempts, 600) for attempts in range(1, 10)]
    assert len(set(lead)) > 3
