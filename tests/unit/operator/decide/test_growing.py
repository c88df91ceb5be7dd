"""A job with `elastic` begins with those that are there, goes on with those that are left, and grows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import ExitKind, Standby
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import LiveRefused, Phase, RunPlan
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.draft import clock
from perdure_operator.decide.facts import gang_pause
from perdure_operator.decide.sizing import LONGEST_REST_SECONDS, SETTLING_SECONDS
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import PATIENT, START, Job, creates, deletes, job, killed, raised

NODES = 8
AFTER, TIMEOUT = 10, 60


def _elastic(**fields: Any) -> Elastic:
    given = {"min_replicas": 2, "max_replicas": 8, "grow_after_seconds": AFTER, "grow_timeout_seconds": TIMEOUT}
    return Elastic(**{**given, **fields})


def _job(elastic: Elastic | None = None, **spec: Any) -> Job:
    """Each member on a node of its own; its script cannot go over alive, so that a plan is at once that of the run."""
    nodes = tuple(NodeView(name=f"n{number + 1}") for number in range(NODES))
    here = job(disruption=PATIENT, elastic=elastic or _elastic(), **spec).having(nodes=nodes)
    return here.status(live_refused=LiveRefused(template="t1", why="its model is sharded"))


def _up(here: Job, *members: int) -> Job:
    for number in members:
        here = here.pod(number, ready=True, phase="Running", ip=f"10.0.0.{number + 1}")
    return here


def _numbers(plan: RunPlan | None) -> list[str]:
    return [member.name.rpartition("-")[2] for member in plan.members] if plan else []


def _there(here: Job) -> list[str]:
    return [pod.name.rpartition("-")[2] for pod in here.living() if not pod.deleting]


def _small(members: int = 2, replicas: int = 4, **fields: Any) -> Job:
    """A run that is smaller than wanted, as its other members found no room; those that grow it are named."""
    here = _up(_job(_elastic(**fields)).starting(replicas), *range(members))
    return here.settle().after(AFTER).settle().after(0).settle().after(1).settle()


class TestTheBeginning:
    def test_with_all_that_are_wanted_a_job_begins_at_once(self) -> None:
        here = _up(_job().starting(4), 0, 1, 2, 3).settle()
        assert _numbers(here.run_plan) == ["0", "1", "2", "3"]

    def test_with_enough_for_a_smaller_size_it_begins_after_a_while(self) -> None:
        here = _up(_job().starting(4), 0, 2).settle()
        assert here.run_plan is None
        assert here.plan().requeue_after == AFTER
        here = here.after(AFTER).settle()
        assert _numbers(here.run_plan) == ["0", "2"]
        assert here.now.phase is Phase.RUNNING

    def test_a_joiner_within_the_while_comes_along_and_restarts_it(self) -> None:
        here = _up(_job().starting(4), 0, 2).settle().after(AFTER - 1)
        here = _up(here, 3).settle().after(AFTER - 1).settle()
        assert here.run_plan is None
        assert _numbers(here.after(1).settle().run_plan) == ["0", "2", "3"]

    def test_a_joiner_that_goes_within_the_while_does_not_count(self) -> None:
        here = _up(_job().starting(4), 0, 2).settle().after(AFTER - 1).exited(2).settle()
        assert here.after(60).settle().run_plan is None

    def test_with_fewer_than_the_smallest_size_it_waits(self) -> None:
        here = _up(_job().starting(4), 0).settle().after(600).settle()
        assert here.run_plan is None
        assert here.condition(ConditionType.RUNNING).reason == "StartingMembers"

    def test_it_begins_with_a_size_and_not_with_a_number_between_two(self) -> None:
        here = _up(_job(_elastic(sizes=(2, 4, 8))).starting(4), 0, 1, 2).settle().after(AFTER).settle()
        assert _numbers(here.run_plan) == ["0", "1"]

    def test_it_says_that_the_members_get_their_ranks_and_not_that_others_are_awaited(self) -> None:
        here = _up(_job().starting(4), 0, 2).settle().after(AFTER).step()
        assert here.now.run == 1
        assert here.condition(ConditionType.RUNNING).reason == "Assigning"

    def test_without_a_budget_it_does_not_begin(self) -> None:
        here = _up(_job().starting(4).refused("digits-ab12").having(budget=None), 0, 2)
        assert here.step().after(AFTER).step().run_plan is None

    def test_a_job_of_a_fixed_size_begins_with_all_of_them_or_not_at_all(self) -> None:
        here = _up(_job().spec(elastic=None).starting(4), 0, 1, 2).settle().after(3600).settle()
        assert here.run_plan is None


class TestGrowing:
    def test_a_small_run_trains_while_new_members_are_awaited_until_a_time_that_status_shows(self) -> None:
        here = _small()
        assert stage_of(here.now) is Stage.PREPARING
        assert here.now.phase is Phase.RUNNING
        assert len(here.now.next.members if here.now.next else ()) == 2
        assert here.condition(ConditionType.SIZED).reason == "OtherSize"
        until = START + timedelta(seconds=AFTER + 1 + TIMEOUT)
        assert (
            f"the operator waits for new members until {until:%H:%M:%S}Z" in here.condition(ConditionType.SIZED).message
        )
        assert f"until {until:%H:%M:%S}Z" in here.condition(ConditionType.DISRUPTED).message

    def test_new_members_are_pending_standbys_outside_the_budget(self) -> None:
        here = _small()
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 2
        assert {here.assignment(name) for name in (here.now.next.members if here.now.next else ())} == {Standby()}

    def test_with_all_of_them_it_grows_once_the_run_has_had_time_to_begin(self) -> None:
        here = _small().ready().settle()
        assert here.now.run == 1
        here = here.after(SETTLING_SECONDS - 1).settle()
        assert len(_numbers(here.run_plan)) == 4
        assert here.condition(ConditionType.SIZED).reason == "WantedSize"

    def test_with_some_of_them_it_grows_once_they_have_been_there_for_a_while(self) -> None:
        here = _small(replicas=8)
        joiners = here.now.next.members if here.now.next else ()
        here = here.pod(joiners[0], ready=True, phase="Running", ip="10.0.0.8")
        here = here.pod(joiners[1], ready=True, phase="Running", ip="10.0.0.9").settle()
        here = here.after(AFTER).settle()
        assert here.now.run == 1
        here = here.after(SETTLING_SECONDS).settle()
        assert here.run_plan is not None
        stay = (here.name(0), here.name(1))
        assert [member.name for member in here.run_plan.members[::2]] == list(stay)
        assert [member.name for member in here.run_plan.members[1::2]] == list(joiners[:2])

    def test_new_members_that_do_not_come_are_let_go_and_tried_again_later_and_later(self) -> None:
        here = _small()
        for pause in (TIMEOUT, 2 * TIMEOUT, 4 * TIMEOUT):
            here = here.after(TIMEOUT).step()
            assert here.history[-1].events[-1].reason == Reason.GROWTH_GIVEN_UP
            here = here.settle()
            assert stage_of(here.now) is Stage.RUNNING
            assert here.now.run == 1
            assert here.plan().requeue_after == pause
            assert "new members are tried again at" in here.condition(ConditionType.SIZED).message
            here = here.after(pause).settle().after(1).settle()
            assert stage_of(here.now) is Stage.PREPARING

    def test_an_edit_of_the_spec_ends_the_pause(self) -> None:
        here = _small().after(TIMEOUT).settle()
        assert stage_of(here.now) is Stage.RUNNING
        assert stage_of(here.spec(replicas=3).settle().now) is Stage.QUIET

    def test_a_run_of_the_wanted_size_forgets_what_was_given_up(self) -> None:
        here = _small().after(TIMEOUT).settle()
        assert here.now.growth is not None
        assert here.spec(replicas=2).settle().now.growth is None

    def test_a_node_that_was_to_go_and_stays_leaves_growing_all_its_time(self) -> None:
        here = _small().cordon("n2").settle().after(1).settle().uncordon("n2").settle()
        here = here.after(PATIENT.replacement_timeout_seconds + 1).settle()
        assert stage_of(here.now) is Stage.PREPARING
        assert here.now.run == 1

    def test_no_time_lies_further_ahead_than_it_can_have_been_set(self) -> None:
        """Its writer had another clock."""
        day = timedelta(days=1)
        here = _small()
        assert here.intent is not None
        assert here.now.current is not None
        late = here.intent.model_copy(update={"grow_by": START + day})
        here = here.status(current=here.now.current.model_copy(update={"intent": late})).settle()
        assert here.intent is not None
        assert here.intent.grow_by == here.snapshot.now + timedelta(seconds=TIMEOUT)
        rests = here.after(TIMEOUT).settle()
        assert rests.now.growth is not None
        rests = rests.status(growth=rests.now.growth.model_copy(update={"until": START + day})).settle()
        assert rests.now.growth is not None
        assert rests.now.growth.until == rests.snapshot.now + timedelta(seconds=LONGEST_REST_SECONDS)

    def test_of_a_fixed_size_a_node_that_was_to_go_and_stays_ends_no_run(self) -> None:
        """The time for its replacement does not count for the members that enlarge the run."""
        here = _job().spec(elastic=None).running(2).spec(replicas=4).settle().after(1).settle()
        here = here.cordon("n2").settle().after(1).settle().uncordon("n2").settle()
        here = here.after(PATIENT.replacement_timeout_seconds + 1).settle()
        assert stage_of(here.now) is Stage.PREPARING
        assert here.now.phase is Phase.RUNNING

    def test_new_members_that_come_in_the_while_before_are_there_for_as_long(self) -> None:
        """The two whiles are the same time."""
        here = _small(replicas=8)
        joiner = here.now.next.members[0] if here.now.next else ""
        here = here.after(SETTLING_SECONDS - AFTER).pod(joiner, ready=True, phase="Running", ip="10.0.0.8").settle()
        assert len(here.after(AFTER).settle().members) == 3

    def test_once_a_run_was_offered_the_move_ends_with_another_run_of_those_that_there_are(self) -> None:
        """No member has reported which of the two runs trains: it may be neither, and new members may never come."""
        here = _small().status(live_refused=None).ready().settle().after(SETTLING_SECONDS).settle()
        newcomer = here.now.next.members[0] if here.now.next else ""
        assert stage_of(here.now) is Stage.HANDING_OVER
        here = here.after(TIMEOUT // 2).ended(newcomer, ExitKind.HANDOVER_FAILED, run=2).settle()
        assert stage_of(here.after(TIMEOUT - 1).settle().now) is Stage.PREPARING, "others have their time"
        here = here.after(TIMEOUT).settle()
        assert stage_of(here.now) is Stage.HANDING_OVER
        assert here.now.next is not None
        assert _numbers(here.now.next.plan) == ["0", "1"]
        assert here.now.growth is not None
        assert here.now.growth.attempts == 1

    def test_a_newcomer_that_is_not_ready_any_more_does_not_say_of_the_run_that_is_on_that_it_starts(self) -> None:
        """A run was offered to it, and the current one trains whatever the result."""
        here = _small().status(live_refused=None).ready().settle().after(SETTLING_SECONDS).settle()
        newcomer = here.now.next.members[0] if here.now.next else ""
        assert stage_of(here.now) is Stage.HANDING_OVER
        said = here.pod(newcomer, ready=False).settle().condition(ConditionType.RUNNING)
        assert (said.status, said.reason) == ("True", "SizeChange")
        said = here.pod(0, ready=False).settle().condition(ConditionType.RUNNING)
        assert (said.status, said.reason) == ("False", "MemberNotReady")

    def test_once_a_run_was_offered_a_smaller_number_is_no_withdrawal(self) -> None:
        """Members were assigned, and one of them may wait for a run that never begins."""
        here = _small().status(live_refused=None).ready().settle().after(SETTLING_SECONDS).settle()
        newcomer = here.now.next.members[0] if here.now.next else ""
        here = here.ended(newcomer, ExitKind.HANDOVER_FAILED, run=2).settle()
        here = here.spec(replicas=2).after(1).settle().after(SETTLING_SECONDS).settle()
        assert stage_of(here.now) is Stage.HANDING_OVER
        assert here.now.next is not None
        assert here.now.next.attempted_runs == (2,)
        assert _numbers(here.now.next.plan) == ["0", "1"]

    def test_where_elastic_is_taken_away_new_members_keep_the_time_that_they_were_given(self) -> None:
        here = _small()
        assert here.intent is not None
        until = here.intent.grow_by
        here = here.spec(elastic=None).settle()
        assert here.intent is not None
        assert here.intent.grow_by == until
        here = here.after(TIMEOUT).settle()
        assert _there(here) == ["0", "1"]
        assert here.now.phase is Phase.RUNNING


class TestAFixedSizeWithoutRoom:
    """Two members train, and four are wanted: one of the new ones finds a node, the other does not."""

    FULL = "0/3 nodes are available: 3 Insufficient cpu"

    def _raised(self) -> Job:
        here = _job(start_timeout_seconds=TIMEOUT).spec(elastic=None).running(2).spec(replicas=4)
        here = here.settle().after(1).settle().pod(3, unschedulable=self.FULL)
        return here.pod(2, ready=True, phase="Running", ip="10.0.0.3").settle()

    def _given_up(self) -> Job:
        return self._raised().after(TIMEOUT).settle()

    def test_it_says_since_when_until_when_and_for_what_it_waits(self) -> None:
        here = self._raised()
        until = f"until {START + timedelta(seconds=1 + TIMEOUT):%H:%M:%S}Z"
        disrupted, sized = here.condition(ConditionType.DISRUPTED), here.condition(ConditionType.SIZED)
        assert until in disrupted.message
        assert self.FULL in disrupted.message
        assert (sized.status, sized.reason, sized.last_transition_time) == ("False", "OtherSize", START)
        assert (
            sized.message == f"2 members, 4 are wanted: spec.replicas is 4; the operator waits for new members {until}"
        )

    def test_after_start_timeout_seconds_the_new_members_give_up_their_nodes_and_the_run_goes_on(self) -> None:
        assert stage_of(self._raised().after(TIMEOUT - 1).settle().now) is Stage.PREPARING
        here = self._given_up()
        assert (stage_of(here.now), here.now.phase, here.now.run) == (Stage.RUNNING, Phase.RUNNING, 1)
        assert _there(here) == ["0", "1"]

    def test_meanwhile_status_says_when_it_tries_again_and_what_the_last_ones_waited_for(self) -> None:
        here = self._given_up()
        assert here.now.growth is not None
        said = here.condition(ConditionType.SIZED).message
        assert f"new members are tried again at {clock(here.now.growth.until)}; the last ones: " in said
        assert self.FULL in said

    def test_it_tries_again_after_the_pause_of_a_gang_that_differs_by_job(self) -> None:
        here = self._given_up()
        for attempts in range(1, 4):
            pause = gang_pause(here.snapshot.uid, attempts, TIMEOUT).total_seconds()
            assert here.plan().requeue_after == pause
            assert stage_of(here.after(pause - 1).settle().now) is Stage.RUNNING
            here = here.after(pause).settle().after(1).settle()
            assert stage_of(here.now) is Stage.PREPARING
            here = here.after(TIMEOUT).settle()

    def test_an_edit_of_the_spec_ends_the_pause(self) -> None:
        assert stage_of(self._given_up().spec(replicas=3).settle().now) is Stage.QUIET

    def test_once_there_is_room_it_grows_and_forgets_what_was_given_up(self) -> None:
        here = self._given_up()
        pause = here.plan().requeue_after or 0
        here = here.after(pause).settle().after(1).settle().ready().settle()
        assert len(_numbers(here.run_plan)) == 4
        assert here.settle().now.growth is None

    def test_a_node_that_leaves_needs_one_replacement_and_not_room_for_all(self) -> None:
        here = self._given_up().cordon("n2").settle().after(1).settle()
        new = here.now.next.members[0] if here.now.next else ""
        here = here.pod(new, ready=True, phase="Running", ip="10.0.0.9").settle()
        assert _numbers(here.run_plan) == ["0", new.rpartition("-")[2]]

    def test_one_of_those_that_were_to_make_the_run_larger_is_that_replacement(self) -> None:
        assert _numbers(self._raised().cordon("n2").settle().run_plan) == ["0", "2"]

    def test_so_does_a_member_that_is_lost(self) -> None:
        here = self._raised().ended(1, ExitKind.FAILED, error=killed()).settle().after(2).settle()
        assert _numbers(here.run_plan) == ["0", "2"]

    def test_members_of_an_earlier_template_train_until_all_new_ones_are_there_or_have_had_their_time(self) -> None:
        """Seed 1200405: the first of the new ones took over alone, and the others were deleted."""
        here = _job(start_timeout_seconds=TIMEOUT).spec(elastic=None).running(2).spec(replicas=4)
        here = here.having(template_hash="t2").settle().after(1).settle()
        for number in range(6):
            here = here.pod(number, root="s3://bucket/a http://store")
        here = _up(here, 2, 3).settle()
        assert stage_of(here.now) is stage_of(here.after(TIMEOUT - 2).settle().now) is Stage.PREPARING
        assert _numbers(_up(here, 4, 5).settle().run_plan) == ["2", "3", "4", "5"]
        assert _numbers(here.after(TIMEOUT - 1).settle().run_plan) == ["2", "3"]


class TestARunWhoseSizeIsNoneAnyMore:
    """Five members train, and an edit leaves 2, 4 and 6: six are wanted, and none finds room."""

    def _edited(self, **fields: Any) -> Job:
        here = _job().running(5).after(SETTLING_SECONDS).spec(elastic=_elastic(**fields), replicas=6).settle()
        return here.after(1).settle()

    @pytest.mark.parametrize("fields", [{"sizes": (2, 4, 6)}, {"global_batch_size": 12}])
    def test_comes_down_to_one_when_growing_is_given_up(self, fields: dict[str, Any]) -> None:
        here = self._edited(**fields)
        assert len(here.after(TIMEOUT - 1).settle().members) == 5
        here = here.after(TIMEOUT).settle()
        assert len(here.members) == 4
        assert here.now.growth is not None
        assert here.now.growth.attempts == 1

    def test_grows_where_there_is_room(self) -> None:
        here = self._edited(sizes=(2, 4, 6)).ready().settle()
        assert len(here.members) == 6

    def test_trains_on_where_no_size_is_small_enough(self) -> None:
        """Fewer than the smallest size would be none."""
        here = self._edited(min_replicas=6).after(TIMEOUT).settle()
        assert len(here.members) == 5
        assert here.now.phase is Phase.RUNNING


class TestAFixedSizeThatWasOfferedALargerRunInVain:
    """Two members should become three; the third's process has ended, and a fourth finds no room.

    An agent may have ended the current run before it learnt that: it holds its seat, and waits for an assignment.
    """

    def _offered(self) -> Job:
        here = _job().status(live_refused=None).spec(elastic=None).running(2).spec(replicas=3).settle().after(1)
        here = here.settle().ready().settle().after(5).ended(2, ExitKind.HANDOVER_FAILED, run=2).settle()
        return here.pod(3, unschedulable="0/2 nodes are available").settle()

    def test_others_are_awaited_for_as_long_as_replacements_are(self) -> None:
        here = self._offered()
        until = here.snapshot.now + timedelta(seconds=PATIENT.replacement_timeout_seconds)
        assert here.intent is not None
        assert here.intent.grow_by == until
        here = here.after(PATIENT.replacement_timeout_seconds - 1).settle()
        assert stage_of(here.now) is Stage.PREPARING

    def test_the_message_does_not_claim_that_the_run_trains(self) -> None:
        said = self._offered().condition(ConditionType.DISRUPTED).message
        assert "the run trains on, or waits for run 2, whose offer failed, while new members start" in said
        assert "until 12:00:" in said

    def test_then_those_that_there_are_go_on_in_another_run_of_the_size_they_have(self) -> None:
        here = self._offered().after(PATIENT.replacement_timeout_seconds).settle()
        assert here.now.next is not None
        assert _numbers(here.now.next.plan) == ["0", "1"]
        assert here.now.next.plan is not None
        assert here.now.next.plan.lost == (2,)

    def test_and_the_larger_one_is_tried_again(self) -> None:
        here = self._offered().after(PATIENT.replacement_timeout_seconds).settle().after(700).settle()
        here = here.after(2).settle()
        assert here.now.run == 3
        assert stage_of(here.now) is Stage.PREPARING
        said = here.condition(ConditionType.DISRUPTED).message
        assert "the run trains on while new members start, until" in said
        offered = here.ready().settle().now.next
        assert offered is not None
        assert len(_numbers(offered.plan)) == 3

    def test_a_joiner_in_time_makes_it_larger(self) -> None:
        here = self._offered().after(10).ready().settle()
        assert here.now.next is not None
        assert len(_numbers(here.now.next.plan)) == 3


class TestGoingOnWithFewer:
    def test_a_lost_member_makes_a_smaller_run_at_once(self) -> None:
        here = _job().running(4).ended(1, ExitKind.FAILED, error=killed()).settle()
        here = here.after(2).settle()
        assert _numbers(here.run_plan) == ["0", "2", "3"]
        assert 1 in here.now.lost

    def test_it_grows_again(self) -> None:
        here = _job().running(4).ended(1, ExitKind.FAILED, error=killed()).settle().after(2).settle()
        here = here.after(2).settle().after(1).settle()
        assert len(here.ready().settle().after(SETTLING_SECONDS).settle().members) == 4

    def test_a_failure_still_costs_its_pause(self) -> None:
        here = _job().running(4).ended(1, ExitKind.FAILED, error=raised()).settle()
        assert here.now.run == 1
        assert here.now.failures.code == 0
        here = here.after(1).settle()
        assert _numbers(here.run_plan) == ["0", "2", "3"]
        assert here.now.failures.code == 1

    def test_the_pause_after_a_member_was_lost_is_decided_once(self) -> None:
        """It had waited to grow: what that waited for does not count any more."""
        here = _small(members=4, replicas=8).ended(1, ExitKind.FAILED, error=raised()).settle()
        assert here.intent is not None
        begins = here.intent.not_before
        assert begins == here.snapshot.now + timedelta(seconds=1)
        here = here.after(0.5).settle()
        assert here.intent is not None
        assert here.intent.not_before == begins
        assert _numbers(here.after(0.5).settle().run_plan) == ["0", "2", "3"]

    def test_of_three_that_are_left_one_goes_where_there_is_no_such_size(self) -> None:
        here = _job(_elastic(sizes=(2, 4, 8))).running(4).ended(3, ExitKind.FAILED, error=killed()).settle()
        here = here.after(2).settle()
        assert _numbers(here.run_plan) == ["0", "1"]
        assert here.run_plan is not None
        assert here.run_plan.leavers == (here.name(2),)

    def test_with_fewer_left_than_the_smallest_size_a_replacement_is_awaited(self) -> None:
        here = _job(_elastic(min_replicas=4)).running(4).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.after(60).settle().now.run == 1

    def test_for_a_leaving_node_a_replacement_is_awaited_and_then_the_run_goes_on_without(self) -> None:
        here = _job().running(4).cordon("n2").settle().after(1).settle()
        waits = PATIENT.replacement_timeout_seconds
        assert here.after(waits - 1).settle().now.run == 1
        here = here.after(waits).settle()
        assert _numbers(here.run_plan) == ["0", "2", "3"]
        assert here.run_plan is not None
        assert here.run_plan.leavers == (here.name(1),)

    def test_a_leaver_is_replaced_by_a_joiner_without_waiting_for_more(self) -> None:
        here = _small()
        joiners = here.now.next.members if here.now.next else ()
        here = here.pod(joiners[0], ready=True, phase="Running", ip="10.0.0.9").settle().cordon("n2").settle()
        assert _numbers(here.run_plan) == ["0", joiners[0].rpartition("-")[2]]

    def test_it_says_that_members_get_their_ranks_and_not_that_others_are_awaited(self) -> None:
        here = _job().running(4).ended(1, ExitKind.FAILED, error=killed()).step()
        assert here.now.run == 2
        assert here.condition(ConditionType.RUNNING).reason == "Assigning"

    def test_a_joiner_that_is_not_ready_is_left_out(self) -> None:
        here = _job().running(4).pod(2, ready=False).settle()
        here = here.ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.after(60).settle().now.run == 1

    def test_a_job_whose_root_belongs_to_another_takes_no_joiner(self) -> None:
        here = _job().running(4).having(same_uri=("default/other",)).ended(1, ExitKind.FAILED, error=killed())
        assert here.settle().after(60).settle().now.run == 1

    def test_a_fixed_size_takes_over_only_with_all_members(self) -> None:
        here = _job().spec(elastic=None).running(4).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.after(60).settle().now.run == 1

    def test_what_a_pause_keeps_from_being_made_does_not_keep_the_others_from_going_on(self) -> None:
        """Replacements die one after the other; the members that train are asked for nothing but to go on without."""
        here = _job().running(4).cordon("n2").settle().after(1).settle()
        for seconds in (5, 5, 5, 8, 7):
            newest = here.now.next.members[-1] if here.now.next else ""
            here = here.ended(newest, ExitKind.FAILED, run=0, error=raised()).settle().after(seconds).settle()
        assert _numbers(here.run_plan) == ["0", "2", "3"]


class TestWhoLeaves:
    """Four members on three nodes: 0 and 3 share the first."""

    def _shared(self, elastic: Elastic | None = None) -> Job:
        here = _job(elastic).having(nodes=tuple(NodeView(name=f"n{number}") for number in (1, 2, 3)))
        return here.running(4).after(SETTLING_SECONDS)

    def test_a_smaller_run_empties_a_node(self) -> None:
        here = self._shared().spec(replicas=3).settle().after(1).settle()
        assert _numbers(here.run_plan) == ["0", "1", "3"]
        assert here.run_plan is not None
        assert [member.rank for member in here.run_plan.members] == [0, 1, 2]
        assert here.run_plan.leavers == (here.name(2),)

    def test_the_event_names_the_node(self) -> None:
        here = self._shared().spec(replicas=3).settle().after(1).settle()
        told = [one.message for plan in here.history for one in plan.events if one.reason == Reason.RUN_PLANNED]
        assert f"{here.name(2)} leave, and no member is left on n3" in told[-1]

    def test_so_does_one_that_comes_down_to_a_size(self) -> None:
        here = self._shared(_elastic(min_replicas=1, sizes=(1, 2, 4)))
        here = here.ended(1, ExitKind.FAILED, error=killed()).settle().after(2).settle()
        assert _numbers(here.run_plan) == ["0", "3"]

    def test_who_is_on_a_node_that_goes_away_leaves_first_of_all(self) -> None:
        here = self._shared().cordon("n1").spec(replicas=2).settle().after(1).settle()
        assert _numbers(here.run_plan) == ["1", "2"]


@pytest.mark.parametrize("members", [2, 3])
def test_no_member_of_a_run_that_could_not_grow_is_asked_for_anything(members: int) -> None:
    here = _small(members)
    plan = here.after(TIMEOUT).plan()
    assert sorted(deletes(plan)) == sorted(here.now.next.members if here.now.next else ())
    assert creates(plan) == []
