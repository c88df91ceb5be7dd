"""Make before break: standbys start while the run trains on, and the next run goes on in the pods of those who stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.wire import ErrorKind, ErrorName, ExitKind, Leave, Role, Standby, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Elastic, FailurePolicy
from perdure_operator.api.status import Disruption, Failures, LiveRefused, Phase
from perdure_operator.decide import Stage, stage_of
from perdure_operator.state.decision import Assign, CheckTemplate, SetBudget
from perdure_operator.state.snapshot import NodeView, RefusalKind, TemplateCheck, TemplateVerdict, Terminated
from tests.support.jobs import (
    PATIENT,
    START,
    Job,
    assigns,
    creates,
    deletes,
    job,
    killed,
    leaves,
    raised,
    trains,
    written,
)

SAVED = {"step": 20, "commit": (4, 20)}
FULL_QUOTA = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"


def _running(world: int = 2, nodes: int = 5) -> Job:
    here = job(disruption=PATIENT).having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(nodes)))
    return here.running(world=world).status(live_refused=LiveRefused(template="t1", why="its model is sharded"))


def _preparing(world: int = 2, nodes: int = 5, node: str = "n2") -> Job:
    return _running(world, nodes).cordon(node).settle().after(1).settle()


def _planned(world: int = 2, node: str = "n2") -> Job:
    return _preparing(world, node=node).ready().settle()


def _stage(here: Job) -> Stage:
    return stage_of(here.now)


def _ranks(here: Job) -> dict[str, int]:
    assert here.run_plan is not None
    return {member.name.rpartition("-")[2]: member.rank for member in here.run_plan.members}


class TestWhatIsSaidInPlace:
    def test_whose_exit_save_the_next_run_awaits_is_named_until_it_is_over(self) -> None:
        here = _planned()
        condition = here.condition(ConditionType.RUNNING)
        assert (condition.status, condition.reason) == ("False", "ExitSave")
        assert "digits-ab12-1" in condition.message
        assert "until" in condition.message
        after = here.ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        assert after.condition(ConditionType.RUNNING).reason == "Assigned"


class TestStandbys:
    def test_after_the_quiet_second_one_standby_starts_for_each_leaver_and_no_member_gets_an_assignment(self) -> None:
        plan = _running().cordon("n2").settle().after(1).plan()
        assert creates(plan) == ["digits-ab12-2"]
        assert assigns(plan) == {}
        assert deletes(plan) == []

    def test_the_job_is_running_and_says_what_its_standbys_wait_for(self) -> None:
        here = _preparing()
        assert _stage(here) is Stage.PREPARING
        assert here.now.phase is Phase.RUNNING
        running = here.condition(ConditionType.RUNNING)
        assert (running.status, running.reason) == ("True", "NodeLeaving"), "as `kubectl get` has it"
        assert running.message.endswith("; node n2 is cordoned")
        message = here.condition(ConditionType.DISRUPTED).message
        assert message.startswith("node n2 is cordoned; the run trains on while new members start, until 12:00:31Z: ")

    def test_they_take_over_from_who_trains_once_they_are_warm_and_not_before(self) -> None:
        up = _preparing().pod(2, phase="Running", ip="10.0.0.3").settle()
        assert up.now.run == 1
        assert up.pod(2, ready=True).settle().now.run == 2

    def test_a_stayer_that_is_not_warm_yet_is_awaited_as_well(self) -> None:
        """It got its rank early, and its trainer has not begun."""
        here = _preparing().pod(0, ready=False)
        up = here.pod(2, phase="Running", ip="10.0.0.3", ready=True).settle()
        assert up.now.run == 1
        assert up.pod(0, ready=True).settle().now.run == 2

    def test_a_standby_counts_neither_as_a_member_nor_for_the_budget(self) -> None:
        here = _preparing()
        assert here.now.replicas == 2
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 2
        assert here.assignment(2) == Standby()

    def test_a_withdrawn_signal_releases_them(self) -> None:
        here = _preparing().uncordon("n2").settle()
        assert _stage(here) is Stage.RUNNING
        assert here.intent is None
        assert [pod.name for pod in here.living() if not pod.deleting] == ["digits-ab12-0", "digits-ab12-1"]
        assert here.run_plan == _running().run_plan

    def test_more_leavers_join_the_same_move(self) -> None:
        here = _preparing(world=3).cordon("n3").settle()
        assert here.names() == ["0", "1", "2", "3", "4"]
        after = here.ready().settle()
        assert _ranks(after) == {"0": 0, "3": 1, "4": 2}

    def test_one_whose_node_goes_away_is_replaced_and_costs_nothing(self) -> None:
        here = _preparing().cordon("n3").settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)
        assert here.run_plan == _running().run_plan

    def test_one_that_ends_by_itself_costs_the_run_that_is_on_no_failure(self) -> None:
        here = _preparing().ended(2, ExitKind.FAILED, run=0, error=raised()).settle()
        assert here.now.failures.code == 0
        assert here.names() == ["0", "1", "3"]

    def test_one_made_from_an_older_template_is_replaced_and_no_member_stays(self) -> None:
        here = _preparing().having(template_hash="t2").settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3", "digits-ab12-4")
        left = here.ready().settle()
        assert _stage(left) is Stage.LEAVING  # and then the gates are asked, whether the new root is free
        left = left.ended(0, ExitKind.CHECKPOINTED, **SAVED).ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        assert set(_ranks(left.ready().settle())) == {"5", "6"}

    def test_those_of_another_template_that_write_to_the_same_place_take_over_as_they_are(self) -> None:
        here = _preparing().having(template_hash="t2").settle()
        for number in (0, 1, 3, 4):
            here = here.pod(number, root="s3://bucket/a http://store")
        assert set(_ranks(here.ready().settle())) == {"3", "4"}
        other = here.pod(4, root="s3://bucket/a http://elsewhere").ready().settle()
        assert _stage(other) is Stage.LEAVING
        assert other.now.next is not None
        assert other.now.next.members == ()

    def test_one_that_a_quota_refuses_is_named_and_in_the_end_all_leave(self) -> None:
        """Who leaves gives the quota back, and the next run has room in it."""
        here = _running().refused(2, message=FULL_QUOTA).cordon("n2").settle().after(1).step().step()
        assert "exceeded quota" in here.condition(ConditionType.DISRUPTED).message
        late = here.after(30).step()
        assert _stage(late) is Stage.LEAVING

    @pytest.mark.parametrize(
        "refusal",
        [
            'pods "digits-ab12-2" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=1',
            'pods "digits-ab12-2" is forbidden: exceeded quota: q, requested: requests.memory=1Gi,pods=1, '
            "used: requests.memory=2Gi,pods=2, limited: requests.memory=1900Mi,pods=2",
            "exceeded quota: in words that nobody has seen before",
            "failed quota: q: must specify limits.cpu for: trainer",
            "is forbidden: maximum cpu usage per Container is 1, but limit is 2",
            'is forbidden: violates PodSecurity "restricted:latest"',
            'admission webhook "policy.example" denied the request: no',
            'failed calling webhook "policy.example": no endpoints available',
            'is forbidden: error looking up service account default/trainer: serviceaccount "trainer" not found',
            "is forbidden: no PriorityClass with name high was found",
            'is forbidden: pod rejected: RuntimeClass "gvisor" not found',
        ],
    )
    def test_one_that_the_api_server_refuses_stops_no_run_that_trains(self, refusal: str) -> None:
        """If all left, the next run would need the pods that are refused."""
        here = _running().refused(2, message=refusal).cordon("n2").settle().after(1).step().step()
        late = here
        for _ in range(20):
            late = late.after(31).step()
            assert _stage(late) is Stage.PREPARING
        words = late.condition(ConditionType.DISRUPTED).message
        assert refusal in words
        assert "no time limit: the run is not stopped while new members fail" in words
        assert late.now.failures == here.now.failures
        mended = late.having(refusals=()).settle()
        assert _stage(mended) is Stage.PREPARING
        assert _ranks(mended.ready().settle()) == {"0": 0, "2": 1}

    def test_before_a_deadline_all_leave_though_one_is_refused(self) -> None:
        here = _running().refused(2, message="denied").taint("n2", "aws-node-termination-handler/spot-itn")
        assert _stage(here.step().after(1).step().step().after(60).step()) is Stage.LEAVING

    def test_one_that_the_api_server_does_not_answer_for_stops_no_run_that_trains(self) -> None:
        """Neither pod nor refusal: each try has ended in a 500, or in no answer."""
        here = _preparing().missing(2).having(created=())
        late = here
        for _ in range(3):
            late = late.after(31).step(writes=1).having(allotted=here.snapshot.allotted, created=())
            assert _stage(late) is Stage.PREPARING

    @pytest.mark.parametrize("verdict", [TemplateVerdict.BAD, TemplateVerdict.WAIT, TemplateVerdict.UNKNOWN])
    def test_a_template_that_fails_its_dry_run_stops_no_run_that_trains(self, verdict: TemplateVerdict) -> None:
        here = _running().cordon("n2").having(template_hash="t2", kept=())
        for seconds in (0, 1, 31, 31, 31):
            here = here.after(seconds)
            check = TemplateCheck(hash="t2", verdict=verdict, message="denied", time=here.snapshot.now)
            here = here.having(template_check=check).step(writes=1)
        assert _stage(here) is Stage.PREPARING
        assert here.names() == ["0", "1"]

    def test_where_none_is_awaited_all_leave_at_once(self) -> None:
        here = job().running(world=2).leaving("n1")
        assert _stage(here) is Stage.LEAVING

    def test_another_live_job_at_the_same_root_is_no_place_to_go_on_at(self) -> None:
        here = _preparing().ready().having(same_uri=("default/other",)).settle()
        assert here.run_plan == _running().run_plan
        assert "default/other" in here.condition(ConditionType.DISRUPTED).message
        assert _stage(here.after(30).settle()) is Stage.LEAVING


class TestTakeover:
    def test_plan_budget_labels_and_requests_come_in_this_order(self) -> None:
        plan = _preparing().ready().plan()
        assert plan.status is not None
        assert plan.status.current is not None
        assert plan.status.current.run == 2
        first, *rest = written(plan)
        assert first == SetBudget(min_available=3, uid="budget")
        assert {name: said.rank for name, said in trains(plan).items()} == {"digits-ab12-0": 0, "digits-ab12-2": 1}
        assert set(leaves(plan)) == {"digits-ab12-1"}
        assert {action.role for action in rest if isinstance(action, Assign)} == {Role.MEMBER}

    def test_stayers_keep_their_ranks_and_the_newcomer_takes_the_leavers(self) -> None:
        assert _ranks(_planned(world=3, node="n2")) == {"0": 0, "3": 1, "2": 2}

    def test_rank_0_may_leave_and_a_newcomer_is_the_master(self) -> None:
        here = _planned(node="n1")
        assert _ranks(here) == {"2": 0, "1": 1}
        assert here.run_plan is not None
        assert here.run_plan.master.startswith("10.0.0.3:")

    def test_all_may_leave_at_once(self) -> None:
        here = _running().cordon("n1", "n2").settle().after(1).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-2", "digits-ab12-3")
        after = here.ready().settle()
        assert _ranks(after) == {"2": 0, "3": 1}
        assert {type(after.assignment(number)) for number in (0, 1)} == {Leave}

    def test_the_plan_tells_how_long_the_old_run_may_take_and_that_none_is_lost(self) -> None:
        here = _planned()
        told = here.assignment(0)
        assert isinstance(told, Train)
        assert (told.run, told.seconds, told.wait, told.lost, told.cause) == (2, 600, 615, (), "node n2 is cordoned")
        assert here.assignment(1) == Leave(run=2, cause="node n2 is cordoned", seconds=600)

    def test_the_leaver_counts_until_its_pod_is_gone_and_then_the_budget_is_lowered(self) -> None:
        here = _planned()
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 3
        left = here.ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        assert left.names() == ["0", "2"]
        assert left.snapshot.budget is not None
        assert left.snapshot.budget.min_available == 2

    def test_what_the_leaver_tells_closes_the_old_run(self) -> None:
        left = _planned().ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        assert left.now.previous is None
        assert (left.now.step, left.now.steps_lost, left.now.lost) == (20, 0, ())
        assert left.condition(ConditionType.SAVED).reason == "Checkpointed"
        assert left.now.phase is Phase.RUNNING

    def test_a_leaver_that_does_not_end_is_deleted_and_never_by_force(self) -> None:
        here = _planned()
        assert deletes(here.after(629).plan()) == []
        late = here.after(630)
        assert deletes(late.plan()) == ["digits-ab12-1"]
        assert here.after(16).settle().plan().requeue_after == 614

    def test_a_leaver_that_admission_protects_is_asked_by_sigterm(self) -> None:
        here = _preparing().ready().step(writes=2)
        refused = here.refused(1, message="denied", kind=RefusalKind.PATCH_REFUSED).after(10)
        assert "digits-ab12-1" in deletes(refused.plan())

    def test_a_standby_on_a_node_that_leaves_is_not_planned_with(self) -> None:
        here = _preparing().ready().cordon("n3").settle()
        assert here.run_plan == _running().run_plan

    def test_completion_while_standbys_start_ends_the_job(self) -> None:
        here = _preparing().ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert here.now.phase is Phase.COMPLETED
        assert "digits-ab12-2" in {pod.name for pod in here.snapshot.pods if pod.deleting}

    @pytest.mark.parametrize(("grace", "wait"), [(120, 765), (30, 675), (86_400, 1245)])
    def test_where_no_member_stays_the_next_run_waits_until_a_leaver_that_hears_nothing_is_ended(
        self, grace: int, wait: int
    ) -> None:
        here = _running(world=1).pod(0, grace=grace).cordon("n1").settle().after(1).settle().ready().settle()
        told = here.assignment(1)
        assert isinstance(told, Train)
        assert (told.run, told.seconds, told.wait) == (2, 600, wait)

    def test_a_leaver_that_reached_the_goal_completes_the_job_though_the_next_run_is_planned(self) -> None:
        here = _planned().ended(1, ExitKind.COMPLETED, run=1, step=100, commit=(9, 100)).settle()
        assert here.now.phase is Phase.COMPLETED

    def test_ranks_of_several_processes_move_together(self) -> None:
        here = job(disruption=PATIENT, processes_per_replica=2).running(world=2).leaving("n1").ready().settle()
        assert here.now.next is not None
        assert here.now.next.plan is not None
        assert [(member.name, member.rank) for member in here.now.next.plan.members] == [
            ("digits-ab12-2", 0),
            ("digits-ab12-1", 2),
        ]
        assert here.now.next.plan.world == 4


class TestTooLate:
    def test_without_a_standby_in_time_all_save_and_leave_and_the_reason_is_reported(self) -> None:
        here = _preparing().after(30)
        plan = here.plan()
        assert set(leaves(plan)) == {"digits-ab12-0", "digits-ab12-1"}
        assert "StandbysNotReady" in {event.reason for event in plan.events}
        after = here.settle()
        assert "no standby was ready in time: StartingMembers" in after.condition(ConditionType.DISRUPTED).message

    @pytest.mark.parametrize(
        "fault",
        [
            {"waiting_reason": "ImagePullBackOff", "waiting_message": "no such tag"},
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": "no such secret"},
            {"waiting_reason": "CrashLoopBackOff", "waiting_container": "proxy"},
            {"waiting_reason": "RunContainerError", "waiting_message": "exec: perdure: not found"},
        ],
    )
    def test_a_pod_that_cannot_start_elsewhere_stops_no_run_that_trains(self, fault: dict[str, str]) -> None:
        late = _preparing().pod(2, **fault).settle().after(31).settle()
        assert _stage(late) is Stage.PREPARING
        words = late.condition(ConditionType.DISRUPTED).message
        assert "no time limit: the run is not stopped while new members fail" in words
        assert fault.get("waiting_message", "container proxy") in words
        mended = late.pod(2, waiting_reason="", waiting_message="", waiting_container="").after(5).settle()
        assert _stage(mended) is Stage.PREPARING
        assert _ranks(mended.ready().settle()) == {"0": 0, "2": 1}

    @pytest.mark.parametrize("at_work", [{"pulling": True}, {"initializing": "data"}])
    def test_while_its_node_sets_a_standby_up_the_run_trains_on(self, at_work: dict[str, Any]) -> None:
        here = _preparing().pod(2, **at_work).settle()
        words = here.condition(ConditionType.DISRUPTED).message
        assert "the run trains on while new members start, until 12:10:00Z" in words
        assert ("data" if "initializing" in at_work else "an image is being pulled for digits-ab12-2") in words
        late = here.after(500).settle()
        assert _stage(late) is Stage.PREPARING
        assert late.plan().requeue_after == 99
        assert _stage(late.after(99).settle()) is Stage.LEAVING

    def test_once_it_is_set_up_it_has_the_usual_time_and_no_more(self) -> None:
        here = _preparing().pod(2, pulling=True).settle().after(200).pod(2, pulling=False, phase="Running").settle()
        assert _stage(here.after(29).settle()) is Stage.PREPARING
        assert _stage(here.after(30).settle()) is Stage.LEAVING
        assert _ranks(here.after(29).ready().settle()) == {"0": 0, "2": 1}

    def test_a_node_that_is_announced_later_gives_its_replacement_as_long(self) -> None:
        here = _preparing(world=3).pod(3, pulling=True).settle().after(400).cordon("n3").settle().pod(4, pulling=True)
        here = here.settle()
        assert _stage(here.after(590).settle()) is Stage.PREPARING
        assert _stage(here.after(600).settle()) is Stage.LEAVING

    def test_a_standby_whose_node_is_cordoned_too_is_replaced_by_one_that_has_as_long(self) -> None:
        here = _preparing().after(25).settle().cordon("n3").settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)
        assert _stage(here.after(29).settle()) is Stage.PREPARING
        assert _ranks(here.after(29).ready().settle()) == {"0": 0, "3": 1}
        assert _stage(here.after(30).settle()) is Stage.LEAVING

    def test_that_ends_ten_minutes_after_the_node_under_a_member_was_announced(self) -> None:
        here = _preparing().pod(2, pulling=True).settle().after(590).settle().cordon("n3").settle()
        assert _stage(here.after(8).settle()) is Stage.PREPARING
        assert _stage(here.after(9).settle()) is Stage.LEAVING

    def test_a_lost_members_seat_is_held_no_longer_for_it(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.intent is not None
        until = here.intent.ready_by
        standby = next(pod for pod in here.living() if pod.name == here.next_member())
        here = here.after(25).settle().cordon(standby.node).settle()
        assert here.intent is not None
        assert here.intent.ready_by == until

    def test_before_a_deadline_a_pull_does_not_help(self) -> None:
        here = _running().taint("n2", "aws-node-termination-handler/spot-itn").settle().after(1).settle()
        assert _stage(here.pod(2, pulling=True).settle().after(60).settle()) is Stage.LEAVING

    def test_one_without_room_is_not_set_up(self) -> None:
        here = _preparing().pod(2, node="", unschedulable="0/3 nodes are available").settle().after(30).settle()
        assert _stage(here) is Stage.LEAVING

    def test_a_job_that_may_be_smaller_waits_no_longer_for_a_pull(self) -> None:
        here = _running(world=3).spec(elastic=Elastic(min_replicas=2, max_replicas=3)).settle()
        here = here.cordon("n2").settle().after(1).settle().pod(3, pulling=True).settle().after(30).settle()
        assert _ranks(here) == {"0": 0, "2": 1}

    def test_a_stuck_leaver_of_the_run_before_stops_no_run_that_trains(self) -> None:
        """The next run would wait for it as well."""
        here = _planned().deleted(1).settle().after(630).settle().ready().settle()
        here = here.cordon("n3").settle().after(1).settle().ready().settle().after(200).settle()
        assert _stage(here) is Stage.PREPARING
        assert here.condition(ConditionType.DISRUPTED).message.count("digits-ab12-1")
        assert _stage(here.after(300).settle()) is Stage.PREPARING

    def test_nor_does_one_whose_node_is_not_ready(self) -> None:
        here = _planned().spec(failure=FailurePolicy(lost_node_seconds=3600)).deleted(1).settle().after(630).settle()
        here = here.node("n2", ready=False).ready().settle()
        here = here.cordon("n3").settle().after(1).settle().ready().settle().after(200).settle()
        assert here.condition(ConditionType.DISRUPTED).message.count("waiting for the nodes of digits-ab12-1")
        assert _stage(here.after(300).settle()) is Stage.PREPARING

    def test_before_a_deadline_all_leave_though_a_pod_elsewhere_cannot_start(self) -> None:
        here = _running().taint("n2", "aws-node-termination-handler/spot-itn").settle().after(1).settle()
        late = here.pod(2, waiting_reason="ImagePullBackOff").settle().after(60).settle()
        assert _stage(late) is Stage.LEAVING

    def test_why_a_member_was_deleted_is_still_reported_once_it_has_saved_and_left(self) -> None:
        here = _running().taint("n2", "foo", "NoExecute").deleted(1).settle()
        here = here.ended(1, ExitKind.CHECKPOINTED, **SAVED).settle().after(1).settle()
        cause = "deleted: digits-ab12-1 (node n2 has the taint foo:NoExecute); digits-ab12-1 has saved and left"
        assert here.now.current is not None
        assert here.now.current.intent is not None
        assert here.now.current.intent.cause == cause

    def test_standbys_that_are_there_are_used_afterwards(self) -> None:
        here = _preparing().after(30).settle()
        here = here.ended(0, ExitKind.CHECKPOINTED, **SAVED).ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        assert here.members == ("digits-ab12-2", "digits-ab12-3")
        after = here.ready().settle()
        assert _ranks(after) == {"2": 0, "3": 1}
        assert after.now.run == 2

    def test_others_start_while_the_old_ones_save_where_nothing_but_time_was_missing(self) -> None:
        plan = _preparing().after(30).plan()
        assert creates(plan) == ["digits-ab12-3"]
        assert set(leaves(plan)) == {"digits-ab12-0", "digits-ab12-1"}

    def test_whatever_takes_those_that_started_early_is_not_fed_with_others_while_the_old_ones_save(self) -> None:
        here = _preparing().after(30).settle()
        assert _stage(here) is Stage.LEAVING
        assert creates(here.deleted(2).deleted(3).plan()) == []

    def test_no_other_pod_starts_where_there_is_no_room(self) -> None:
        here = _running(nodes=2).cordon("n2").settle().after(1).settle()
        here = here.pod(2, node="", unschedulable="0/2 nodes are available").after(30)
        assert creates(here.plan()) == []

    def test_it_looks_again_when_the_time_is_over(self) -> None:
        assert _preparing().plan().requeue_after == 30

    def test_suspending_releases_the_standbys_and_all_leave(self) -> None:
        here = _preparing().spec(suspend=True)
        plan = here.plan()
        assert set(leaves(plan)) == {"digits-ab12-0", "digits-ab12-1"}
        assert deletes(plan) == ["digits-ab12-2"]

    def test_when_all_have_to_leave_no_further_name_is_allotted_in_the_same_round(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle().spec(suspend=True)
        plan = here.plan()
        assert plan.status is not None
        assert plan.status.next_member == here.now.next_member

    def test_a_job_that_is_being_deleted_gets_no_standby(self) -> None:
        here = _running().having(deleting=True).cordon("n2").settle().after(1)
        assert creates(here.plan()) == []
        assert set(leaves(here.plan())) == {"digits-ab12-0", "digits-ab12-1"}


class TestABudgetOfASmallerRun:
    def test_is_raised_before_the_next_one_is_planned_where_its_end_and_its_successors_are_seen_at_once(self) -> None:
        here = _running(world=1).spec(replicas=3).cordon("n1").settle().after(1).settle()
        here = here.ready().pod(0, ready=False).ended(0, ExitKind.CHECKPOINTED, **SAVED).step()
        assert here.run_plan is None
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 3
        assert len(here.settle().members) == 3


class TestLost:
    def test_survivors_keep_their_pods_and_go_on_when_the_replacement_is_ready(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert _stage(here) is Stage.PREPARING
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)
        after = here.after(2).ready().settle()
        told = after.assignment(0)
        assert isinstance(told, Train)
        assert (told.run, told.rank, told.lost) == (2, 0, (1,))
        assert _ranks(after) == {"0": 0, "3": 1, "2": 2}
        assert after.now.failures.infrastructure == 1

    def test_a_replacement_gets_its_rank_before_it_is_warm_because_no_run_trains(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.settle().now.run == 1
        after = here.after(2).pod(3, phase="Running", ip="10.0.0.9").settle()
        for member in (0, 2, 3):
            told = after.assignment(member)
            assert isinstance(told, Train)
            assert (told.run, told.lost) == (2, (1,))
        assert after.condition(ConditionType.RUNNING).status == "False"
        assert after.ready().settle().condition(ConditionType.RUNNING).status == "True"

    def test_where_one_has_died_of_its_imports_the_next_has_to_be_warm(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        here = here.after(2).pod(3, phase="Running", ip="10.0.0.9").settle()
        here = here.ended(3, ExitKind.FAILED, error=raised()).settle().after(4)
        here = here.pod(4, phase="Running", ip="10.0.0.8").settle()
        assert here.now.run == 2
        assert here.ready().settle().now.run == 3

    def test_where_a_standby_has_died_the_next_has_to_be_warm(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        here = here.ended(3, ExitKind.FAILED, run=0, error=killed()).settle().after(4).settle()
        assert here.pod(4, phase="Running", ip="10.0.0.8").settle().now.run == 1

    def test_status_does_not_say_that_a_lost_run_saves(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle().after(2).ready()
        words = next(event.message for event in here.plan().events if event.reason == "RunPlanned")
        assert "run 1 is lost; the surviving members restart in their pods" in words

    def test_steps_that_who_stays_may_have_kept_are_not_said_to_be_lost(self) -> None:
        """The next run begins from an image of theirs, if there is one: none reports before it ends."""
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed(), step=12, commit=(2, 10)).settle()
        saved = here.after(2).ready().settle().condition(ConditionType.SAVED)
        assert saved.message.startswith(
            "run 1 ended at step 12: 2 steps are in no commit; "
            "whether members that stay have them is known when run 2 ends"
        )

    def test_nothing_trains_meanwhile_and_the_condition_says_so(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        assert here.now.phase is Phase.RECOVERING
        assert here.condition(ConditionType.RUNNING).status == "False"

    def test_the_next_run_begins_after_a_pause(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=raised()).settle().ready()
        assert here.plan().requeue_after == 1
        assert here.settle().run_plan == _running(world=3).run_plan
        after = here.after(1).settle()
        assert after.now.failures.code == 1
        assert after.now.run == 2

    def test_the_pause_is_that_of_the_costliest_end_though_another_member_ended_first(self) -> None:
        failures = Failures(infrastructure=3, consecutive=3, last_time=START)
        here = _running(world=3).status(failures=failures).after(100)
        here = here.ended(1, ExitKind.STOPPED).settle().after(5).ended(2, ExitKind.FAILED, error=killed()).settle()
        here = here.ready()
        assert here.after(7).settle().now.run == 1
        assert here.after(8).settle().now.run == 2

    def test_an_emptied_log_that_a_second_member_tells_of_ends_the_preparation(self) -> None:
        here = _running(world=3).ended(1, ExitKind.PEER_LOST).settle()
        assert _stage(here) is Stage.PREPARING
        lost = (ErrorKind.EXCEPTION, ErrorName.LOG_LOST, "no commit")
        assert _stage(here.ended(2, ExitKind.FAILED, error=lost).settle()) is Stage.LEAVING

    @pytest.mark.parametrize("patience", [1, 30, 3600])
    def test_it_is_waited_for_as_long_as_survivors_hold_their_seats_and_their_images(self, patience: int) -> None:
        here = job(disruption={"replacement_timeout_seconds": patience}).running(world=3)
        here = here.ended(1, ExitKind.FAILED, error=killed()).settle()
        assert _stage(here.after(594).settle()) is Stage.PREPARING
        assert _stage(here.after(595).settle()) is Stage.LEAVING

    @pytest.mark.parametrize(("lasted", "awaited"), [(5, 30), (200, 200), (7200, 595)])
    def test_where_standbys_die_too_it_is_waited_no_longer_than_the_run_has_lasted(
        self, lasted: int, awaited: int
    ) -> None:
        """A pod assigned before it is warm that dies while importing is a lost member: that must not cost ten
        minutes."""
        here = _running(world=2).after(lasted).ended(1, ExitKind.FAILED, error=killed()).settle()
        for number, pause in ((2, 0), (3, 1)):
            here = here.ended(number, ExitKind.FAILED, run=0, error=killed()).settle().after(pause).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-4",)
        assert _stage(here.after(awaited - 2).settle()) is Stage.PREPARING
        assert _stage(here.after(awaited - 1).settle()) is Stage.LEAVING

    def test_what_the_run_has_lasted_since_it_was_to_grow_counts_as_well(self) -> None:
        here = _running(world=2).after(60).spec(replicas=3).settle().after(1).settle().after(7200)
        here = here.ended(1, ExitKind.FAILED, error=killed()).settle()
        for number, pause in ((2, 0), (3, 1)):
            here = here.ended(number, ExitKind.FAILED, run=0, error=killed()).settle().after(pause).settle()
        assert here.now.next is not None
        assert here.now.next.replacements is not None
        assert here.now.next.replacements.count == 2
        assert _stage(here.after(590).settle()) is Stage.PREPARING

    def test_one_that_dies_while_another_is_to_be_replaced_is_waited_for_as_long(self) -> None:
        here = (
            job(disruption={"replacement_timeout_seconds": 30}).running(world=3).cordon("n1").settle().after(1).settle()
        )
        assert _stage(here) is Stage.PREPARING
        here = here.after(20).ended(2, ExitKind.FAILED, error=killed()).settle()
        assert _stage(here.after(300).settle()) is Stage.PREPARING

    def test_a_member_that_dies_meanwhile_is_replaced_too(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle()
        here = here.ended(2, ExitKind.PEER_LOST).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3", "digits-ab12-4")
        assert here.after(2).ready().settle().now.failures.infrastructure == 1

    def test_when_all_are_lost_none_is_waited_for(self) -> None:
        here = _running().all_ended(ExitKind.FAILED, error=killed()).settle()
        assert here.run_plan is None

    def test_a_job_out_of_failures_fails_at_once(self) -> None:
        here = job(disruption=PATIENT, failure={"max_code_failures": 0}).running(world=3)
        here = here.ended(1, ExitKind.FAILED, error=raised()).settle()
        assert _stage(here) is Stage.LEAVING

    def test_a_deleted_member_is_replaced_while_it_saves_within_its_grace(self) -> None:
        here = _running().deleted(1, grace=60).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_DELETED
        assert _stage(here) is Stage.PREPARING
        after = here.ready().settle()
        told = after.assignment(0)
        assert isinstance(told, Train)
        assert (told.seconds, told.lost) == (55, ())

    def test_one_that_has_saved_and_left_is_replaced_in_place(self) -> None:
        here = _running().deleted(1).settle().ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        after = here.ready().settle()
        assert _ranks(after) == {"0": 0, "2": 1}
        assert after.now.failures.infrastructure == 0
        assert after.condition(ConditionType.SAVED).reason == "Checkpointed"

    def test_a_standby_that_dies_between_plan_and_patch_is_a_lost_member_of_the_next_run(self) -> None:
        here = _preparing().ready().step(writes=1).ended(2, ExitKind.STOPPED, run=0).settle()
        assert here.now.current is not None
        assert here.now.current.run == 2
        left = here.ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        after = left.ready().settle()
        told = after.assignment(0)
        assert isinstance(told, Train)
        assert (told.run, told.rank, told.lost) == (3, 0, (2,))
        assert (after.now.failures.infrastructure, after.now.steps_lost) == (0, 0)

    def test_members_of_a_lost_run_that_never_began_have_time_to_save_the_one_before(self) -> None:
        here = _preparing().ready().step(writes=1).ended(2, ExitKind.STOPPED, run=0).settle().after(600).settle()
        assert here.intent is not None
        assert here.intent.leave
        assert (here.intent.seconds, here.intent.lost) == (600, (2,))


class TestTwoInARow:
    def test_a_node_that_leaves_after_the_plan_is_the_next_move(self) -> None:
        here = _planned().ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        after = here.cordon("n1").settle().after(1).settle().ready().settle()
        assert after.now.run == 3
        assert _ranks(after) == {"3": 0, "2": 1}

    def test_it_waits_for_the_leavers_of_the_move_before(self) -> None:
        here = _planned().cordon("n1").settle().after(1).settle().ready().settle()
        assert here.now.run == 2
        assert "of run 1" in here.condition(ConditionType.DISRUPTED).message
        left = here.ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        assert left.now.run == 3

    def test_suspending_after_the_plan_asks_the_new_members_and_waits_for_all(self) -> None:
        here = _planned().spec(suspend=True).settle()
        assert isinstance(here.assignment(0), Leave)
        here = here.ended(0, ExitKind.CHECKPOINTED, run=1, **SAVED).ended(2, ExitKind.STOPPED, run=2).settle()
        here = here.ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        assert here.now.phase is Phase.SUSPENDED
        assert here.names() == []


class TestSize:
    def test_growing_waits_for_the_new_members_for_start_timeout_seconds_while_the_old_ones_train(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle()
        assert here.names() == ["0", "1", "2"]
        limit = here.snapshot.spec.start_timeout_seconds
        assert here.plan().requeue_after == limit
        assert "until 12:10:" in here.condition(ConditionType.DISRUPTED).message
        after = here.after(limit - 1).ready().settle()
        assert _ranks(after) == {"0": 0, "2": 1, "1": 2}
        assert after.now.previous is None
        assert after.now.lost == ()

    def test_shrinking_needs_no_new_member_and_keeps_the_first_ranks(self) -> None:
        here = _running(world=3).spec(replicas=2).settle().after(1).settle()
        assert _ranks(here) == {"0": 0, "1": 1}
        assert isinstance(here.assignment(2), Leave)
        left = here.ended(2, ExitKind.CHECKPOINTED, run=1, **SAVED).settle()
        assert left.names() == ["0", "1"]
        assert left.snapshot.budget is not None
        assert left.snapshot.budget.min_available == 2

    def test_scaling_back_while_the_new_ones_start_is_a_withdrawal(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().spec(replicas=2).settle()
        assert _stage(here) is Stage.RUNNING

    def test_a_standby_that_is_not_wanted_any_more_goes_though_no_other_may_be_created_now(self) -> None:
        here = _running(world=3).cordon("n2", "n3").settle().after(1).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3", "digits-ab12-4")
        here = here.having(same_uri=("older",)).spec(replicas=2).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)

    def test_a_standby_that_is_not_wanted_any_more_goes_while_all_save_and_leave(self) -> None:
        here = (
            _running(world=3)
            .refused(4, message=FULL_QUOTA)
            .cordon("n2", "n3")
            .settle()
            .after(1)
            .step()
            .step()
            .after(30)
            .step()
        )
        assert _stage(here) is Stage.LEAVING
        here = here.spec(replicas=1).step()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)

    def test_a_node_that_leaves_while_growing_sets_a_limit(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().cordon("n1").settle()
        assert here.names() == ["0", "1", "2", "3"]
        assert here.plan().requeue_after == 30

    def test_other_processes_mean_new_members_for_all(self) -> None:
        here = _running().spec(processes_per_replica=2).settle().after(1).settle()
        assert here.names() == ["0", "1", "2", "3"]
        after = here.ready().settle()
        assert _ranks(after) == {"2": 0, "3": 2}


class TestASizeThatCannotBeHad:
    """No member has to leave for another size: failing members do not stop a run that trains.

    Nor with replacementTimeoutSeconds 0, which is about members that have to leave.
    """

    NO_CPU = "0/3 nodes are available: 3 Insufficient cpu."
    NO_NODE = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."

    def _edited(self, timeout: int = 30) -> Job:
        here = _running().spec(disruption={"replacement_timeout_seconds": timeout}).settle()
        return here.spec(processes_per_replica=2).settle().after(1).settle()

    @pytest.mark.parametrize("timeout", [0, 30])
    @pytest.mark.parametrize(
        "why",
        [
            {"waiting_reason": "ImagePullBackOff"},
            {"waiting_reason": "CreateContainerConfigError"},
            {"pulling": True},
            {},
            {"node": "", "unschedulable": NO_NODE},
            {"phase": "Failed", "reason": "UnexpectedAdmissionError"},
            {"terminated": Terminated(exit_code=1, reason="Error"), "phase": "Failed"},
        ],
        ids=lambda why: str(next(iter(why.values()), "slow"))[:20],
    )
    def test_the_run_trains_on_however_long_new_members_do_not_start(
        self, why: dict[str, object], timeout: int
    ) -> None:
        here = self._edited(timeout)
        for _ in range(4):
            for pod in here.living():
                here = here if pod.ready else here.pod(pod.name, **why)
            here = here.settle().after(200).settle()
        assert _stage(here) is Stage.PREPARING
        assert here.condition(ConditionType.RUNNING).status == "True"
        said = here.condition(ConditionType.DISRUPTED).message
        assert "no time limit: no member has to leave; waiting ends when 2 members of 1 process are" in said

    def test_nor_for_a_refusal_or_a_quota_that_would_not_admit_them_afterwards(self) -> None:
        denied = _running().spec(processes_per_replica=2).settle().after(1).step(writes=1)
        here = denied.refused(2, 3, message="admission webhook denied").settle().after(300).settle()
        assert _stage(here) is Stage.PREPARING

    @pytest.mark.parametrize(("timeout", "seconds"), [(30, 0), (30, 31), (0, 0), (0, 11)])
    def test_where_members_that_leave_make_room_they_leave_when_the_time_is_over(
        self, timeout: int, seconds: int
    ) -> None:
        here = self._edited(timeout)
        here = here.pod(2, node="", unschedulable=self.NO_CPU).pod(3, node="", unschedulable=self.NO_CPU)
        assert bool(leaves(here.after(seconds).plan())) == bool(seconds)

    @pytest.mark.parametrize("timeout", [0, 1, 9, 10, 30])
    def test_waiting_writes_status_at_most_every_ten_seconds(self, timeout: int) -> None:
        here = self._edited(timeout).after(100).settle()
        assert here.after(9.5).plan().status is None

    @pytest.mark.parametrize("timeout", [0, 30])
    @pytest.mark.parametrize("elastic", [None, Elastic(min_replicas=2, max_replicas=3)])
    def test_a_larger_run_for_which_there_is_no_room_stops_none(self, timeout: int, elastic: Elastic | None) -> None:
        here = _running().spec(disruption={"replacement_timeout_seconds": timeout}, elastic=elastic).settle()
        here = here.spec(replicas=3).settle().after(1).settle()
        here = here.pod(2, node="", unschedulable=self.NO_CPU).settle().after(100).settle()
        assert (_stage(here), leaves(here.plan())) == (Stage.PREPARING, {})

    def test_an_edit_that_is_taken_back_leaves_nothing(self) -> None:
        here = self._edited().settle().after(100).settle().spec(processes_per_replica=1).settle()
        assert (_stage(here), here.now.run) == (Stage.RUNNING, 1)

    @pytest.mark.parametrize("timeout", [0, 30])
    def test_while_the_api_server_refuses_the_template_or_has_not_answered_nothing_begins(self, timeout: int) -> None:
        here = job(disruption={"replacementTimeoutSeconds": timeout}).running(world=2).having(kept=())
        here = here.spec(processes_per_replica=2).having(template_hash="t2")
        asked = here.plan()
        assert written(asked) == (CheckTemplate(),)
        check = TemplateCheck(hash="t2", verdict=TemplateVerdict.BAD, message="no", time=here.snapshot.now)
        here = here.having(template_check=check).settle().after(5).settle()
        assert _stage(here) is Stage.RUNNING
        assert here.condition(ConditionType.TEMPLATE_ACCEPTED).status == "False"
        accepted = here.having(template_check=check.model_copy(update={"verdict": TemplateVerdict.GOOD})).settle()
        assert _stage(accepted.after(1).settle()) is Stage.PREPARING


class TestAnotherSizeAfterAFailedOffer:
    """It is not known which run trains: its members may wait for others that never come."""

    def _failed(self) -> Job:
        """Of a larger run of another template, for which run 1 was to save, as its offer had failed."""
        here = job(disruption=PATIENT).having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(5)))
        here = here.running(world=2).spec(replicas=3).settle().after(1).settle().ready().settle()
        assert _stage(here) is Stage.HANDING_OVER
        good = TemplateCheck(hash="t2", verdict=TemplateVerdict.GOOD, time=here.snapshot.now)
        here = here.having(template_hash="t2", template_check=good).settle()
        here = here.ended(2, ExitKind.HANDOVER_FAILED, run=2).settle()
        assert (_stage(here), here.now.next.attempts if here.now.next else 0) == (Stage.PREPARING, 1)
        return here

    def _failing(self) -> Job:
        here = self._failed()
        for pod in here.living():
            here = here if pod.ready else here.pod(pod.name, waiting_reason="ImagePullBackOff")
        return here.settle()

    def test_while_new_members_fail_those_that_there_are_begin_another_run_and_none_leaves(self) -> None:
        here = self._failing()
        assert _stage(here.after(29).settle()) is Stage.PREPARING, "the others have their time"
        here = here.after(31).settle()
        assert here.now.next is not None
        assert here.now.next.plan is not None
        assert [member.name for member in here.now.next.plan.members] == [here.name(0), here.name(1)]
        assert here.now.next.plan.leavers == ()

    def test_a_node_without_news_under_one_of_them_is_awaited_until_it_is_given_up(self) -> None:
        here = self._failing().node("n2", ready=False).pod(1, ready=False).settle().after(31).settle()
        assert (_stage(here), leaves(here.plan())) == (Stage.PREPARING, {})
        here = here.after(60).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_LOST

    def test_where_the_budget_would_not_protect_another_run_none_begins(self) -> None:
        here = self._failing().having(budget=None).refused("digits-ab12").after(31).step()
        assert (_stage(here), leaves(here.plan())) == (Stage.PREPARING, {})

    def test_a_member_that_is_not_ready_any_more_may_train_and_is_awaited(self) -> None:
        here = self._failing().pod(1, ready=False).settle().after(31).settle()
        assert (_stage(here), leaves(here.plan())) == (Stage.PREPARING, {})
        here = here.after(300).settle()
        assert (_stage(here), leaves(here.plan())) == (Stage.PREPARING, {})


class TestALostSaveIsAwaited:
    """Run 2 goes on in place, and the leaver of run 1 dies without its save: run 2 may wait for it, or train."""

    def _waiting(self) -> Job:
        here = _preparing().ready().settle().exited(1, code=137).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.RUN_LOST
        return here

    def test_a_larger_size_for_which_there_is_no_member_holds_the_others_up_no_longer(self) -> None:
        here = self._waiting().spec(replicas=3).settle().after(1).settle()
        assert here.now.run == 3
        assert _ranks(here) == {"0": 0, "2": 1}

    def test_members_for_it_that_the_api_server_refuses_end_no_run_that_may_train(self) -> None:
        here = self._waiting().spec(processes_per_replica=2).settle().after(1).step(writes=1)
        here = here.refused(3, 4, 5, 6, message="denied").after(100).step().step()
        assert _stage(here) is Stage.PREPARING
        words = here.condition(ConditionType.DISRUPTED).message
        assert "the run trains on, or waits for that save, while new members start, no time limit: " in words


def _asking() -> Job:
    return _running().cordon("n2").settle().after(1)


def _taking_over() -> Job:
    return _preparing().ready()


def _losing() -> Job:
    return _running(world=3).ended(1, ExitKind.FAILED, error=killed())


def _giving_up() -> Job:
    return _preparing().after(30)


def _closing() -> Job:
    return _planned().ended(1, ExitKind.CHECKPOINTED, run=1, **SAVED)


@pytest.mark.parametrize("moment", [_asking, _taking_over, _losing, _giving_up, _closing])
def test_after_a_crash_between_any_two_writes_the_successor_comes_to_the_same_end(moment: Callable[[], Job]) -> None:
    before = moment()
    undisturbed = before.settle()
    for writes in range(len(before.plan().actions) + 2):
        after = before.step(writes=writes).settle()
        assert stage_of(after.now) is stage_of(undisturbed.now)
        assert after.run_plan == undisturbed.run_plan
        assert after.now.failures == undisturbed.now.failures
        assert len(after.living()) == len(undisturbed.living())


class TestFound:
    """In histories of the simulation."""

    def test_a_member_on_a_node_given_up_gets_a_higher_run_and_its_own_as_lost(self) -> None:
        here = _running(world=3).node("n2", ready=False).settle().after(60).settle()
        assert here.assignment(1) == Leave(run=2, cause="written off", seconds=0, lost=(1,))

    def test_a_run_that_has_lost_a_member_has_nothing_to_save_when_the_job_is_suspended(self) -> None:
        here = _running(world=3).node("n2", ready=False).settle().after(60).settle().spec(suspend=True).settle()
        assert here.assignment(0) == Leave(run=2, cause="digits-ab12-1 ended: node n2 is unreachable", lost=(1,))
        stopped = here.ended(0, ExitKind.PEER_LOST).ended(2, ExitKind.PEER_LOST).settle()
        assert stopped.now.phase is Phase.SUSPENDED
        assert [pod.name for pod in stopped.living() if not pod.deleting] == []

    def test_no_standby_starts_in_the_pause_after_a_failure(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=raised()).settle().after(1).ready().settle()
        assert here.now.run == 2
        again = here.ended(0, ExitKind.FAILED, run=2, error=raised())
        assert creates(again.plan()) == []
        assert creates(again.settle().after(1).plan()) == ["digits-ab12-4"]
