"""A job's straight path: start, run, drain, go on, complete; suspend, resize, time out, delete."""

from __future__ import annotations

import pytest

from perdure.wire import AFTER_COMPLETION_SECONDS, ExitKind, Leave, Standby, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Autoscaler
from perdure_operator.api.status import Disruption, Phase
from perdure_operator.state.decision import CheckTemplate, CreatePod, Decision, DeleteBudget, DeleteJob, Mark, SetBudget
from perdure_operator.state.snapshot import TemplateCheck
from tests.support.jobs import (
    PATIENT,
    START,
    assigns,
    creates,
    deletes,
    intent_of,
    job,
    leaves,
    members_of,
    plan_of,
    trains,
    written,
)


class TestStart:
    def test_the_template_is_tried_before_anything_is_created_or_said(self) -> None:
        plan = job().plan()
        assert written(plan) == (CheckTemplate(),)
        assert (plan.status, plan.events) == (None, ())

    def test_a_dry_run_without_an_answer_is_said_and_tried_again(self) -> None:
        plan = job().having(template_check=TemplateCheck(hash="t1", time=START)).plan()
        assert written(plan) == (CheckTemplate(),)
        assert plan.status is not None
        assert members_of(plan.status) == ()
        assert "CheckingTemplate" in [condition.reason for condition in plan.status.conditions]

    def test_names_go_to_status_and_the_budget_comes_before_the_pods(self) -> None:
        plan = job().step().plan()
        assert plan.status is not None
        assert members_of(plan.status) == ("digits-ab12-0", "digits-ab12-1")
        assert plan.status.next_member == 2
        assert [type(action) for action in plan.actions] == [SetBudget, CreatePod, CreatePod]
        assert written(plan)[0] == SetBudget(min_available=2)

    def test_members_wait_as_standbys_until_all_are_up(self) -> None:
        here = job().starting(world=2)
        one = here.pod(0, phase="Running", ready=True, ip="10.0.0.1").settle()
        assert one.run_plan is None
        assert isinstance(one.assignment(0), Standby)
        assert "digits-ab12-1" in one.condition(ConditionType.RUNNING).message

    @pytest.mark.parametrize("late", [{"phase": "Pending"}, {"ip": ""}], ids=["not started", "no address"])
    def test_no_member_gets_a_rank_before_the_last_has_started_and_has_an_address(self, late: dict[str, str]) -> None:
        here = job().starting(world=2)
        for number in (0, 1):
            here = here.pod(number, phase="Running", ip=f"10.0.0.{number + 1}")
        waits = here.pod(0, **late).settle()
        assert waits.run_plan is None
        assert waits.pod(0, phase="Running", ip="10.0.0.1").settle().now.run == 1

    def test_members_get_the_plan_before_they_are_warm_and_the_job_runs_once_all_are(self) -> None:
        here = job().starting(world=2)
        for number in (0, 1):
            here = here.pod(number, phase="Running", ip=f"10.0.0.{number + 1}")
        told = here.settle()
        assert told.now.run == 1
        assert isinstance(told.assignment(1), Train)
        condition = told.condition(ConditionType.RUNNING)
        assert (told.now.phase, condition.status, condition.reason) == (Phase.STARTING, "False", "StartingMembers")
        assert told.pod(0, ready=True).plan().status is None  # one of a thousand is no news
        after = told.ready().settle()
        assert after.condition(ConditionType.RUNNING).status == "True"
        assert after.now.phase is Phase.RUNNING

    def test_all_ready_means_the_plan_in_status_and_the_patches_in_the_same_round(self) -> None:
        plan = job(processes_per_replica=2).starting(world=2).ready().plan()
        assert plan.status is not None
        assert plan_of(plan.status) is not None
        assert plan.status.run == 1
        told = trains(plan)
        assert [(name, said.rank, said.world) for name, said in told.items()] == [
            ("digits-ab12-0", 0, 4),
            ("digits-ab12-1", 2, 4),
        ]
        assert {said.master for said in told.values()} == {"10.0.0.1:29501"}
        assert {said.wait for said in told.values()} == {0}

    def test_running_is_said_once_every_member_shows_its_ranks(self) -> None:
        here = job().running(world=2)
        assert here.now.phase is Phase.RUNNING
        assert here.condition(ConditionType.RUNNING).status == "True"
        assert here.condition(ConditionType.PROTECTED).status == "True"
        assert here.now.replicas == 2

    def test_a_running_job_needs_nothing(self) -> None:
        here = job().running(world=2)
        assert here.plan() == here.plan()
        assert here.plan().status is None
        assert here.plan().actions == ()
        assert here.plan().requeue_after is None

    def test_an_ipv6_master_is_put_in_brackets(self) -> None:
        here = job().starting(world=1).ready().pod(0, ip="fd00::1").settle()
        said = here.assignment(0)
        assert isinstance(said, Train)
        assert said.master == "[fd00::1]:29501"


class TestDrain:
    def test_a_cordon_is_only_noted_in_the_quiet_second(self) -> None:
        plan = job().running(world=2).cordon("n1").plan()
        assert plan.status is not None
        intent = intent_of(plan.status)
        assert intent is not None
        assert intent.disruption is Disruption.NODE_LEAVING
        assert not intent.leave
        assert plan.actions == ()
        assert plan.requeue_after == 1

    def test_after_the_quiet_second_every_member_is_asked_to_leave(self) -> None:
        plan = job().running(world=2).cordon("n1").settle().after(1).plan()
        assert leaves(plan) == {
            f"digits-ab12-{n}": Leave(run=2, cause="node n1 is cordoned", seconds=600) for n in (0, 1)
        }
        assert plan.status is not None
        assert plan.status.run == 2

    def test_the_condition_names_whose_exit_save_is_awaited_and_until_when(self) -> None:
        message = job().running(world=2).leaving("n1").condition(ConditionType.RUNNING).message
        assert message.startswith(
            "waiting for the exit save of digits-ab12-0 (node n1), digits-ab12-1 (node n2) until 12:10:01Z; "
        )

    def test_a_member_that_has_left_is_no_longer_named(self) -> None:
        here = job().running(world=2).leaving("n1").ended(0, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert "digits-ab12-0" not in here.condition(ConditionType.RUNNING).message
        assert here.now.phase is Phase.VACATING

    def test_new_members_with_new_numbers_start_while_the_others_save(self) -> None:
        here = job().running(world=2).cordon("n1").settle().after(1)
        plan = here.plan()
        assert creates(plan) == ["digits-ab12-2", "digits-ab12-3"]
        assert deletes(plan) == []
        there = here.settle().ready().settle()
        assert there.now.next is not None
        assert there.now.next.plan is None  # who saves may still fail
        assert isinstance(there.assignment(2), Standby)

    def test_when_all_have_left_the_next_run_begins_and_nothing_is_lost(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        plan = here.plan()
        assert deletes(plan) == ["digits-ab12-0", "digits-ab12-1"]
        after = here.settle()
        assert after.now.lost == ()
        assert (after.now.step, after.now.steps_lost) == (20, 0)
        assert after.now.failures.infrastructure == 0
        assert after.condition(ConditionType.SAVED).reason == "Checkpointed"
        assert all(pod.node != "n1" for pod in after.living())

    def test_the_next_run_takes_the_number_that_the_leavers_got(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        after = here.settle().ready().settle()
        said = after.assignment(2)
        assert isinstance(said, Train)
        assert (said.run, said.rank, said.wait, said.lost) == (2, 0, 615, ())
        assert said.master.endswith(":29502")
        assert said.cause == "node n1 is cordoned"
        assert after.intent is None
        assert after.condition(ConditionType.DISRUPTED).status == "False"

    def test_pods_that_an_autoscaler_removed_at_once_still_count_as_saved(self) -> None:
        here = job().running(world=2).leaving("n1").ended(0, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        after = here.missing(0).ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert after.now.lost == ()
        assert after.now.failures.infrastructure == 0

    def test_a_node_that_no_member_is_on_does_not_matter(self) -> None:
        assert job().running(world=2).cordon("n3").plan().status is None


class TestCompletion:
    def test_one_completed_outcome_completes_the_job_whatever_the_others_do(self) -> None:
        here = job().running(world=2).ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert here.now.phase is Phase.COMPLETED
        assert here.now.completion_time == START
        assert here.now.step == 100
        assert here.names() == ["0", "1"]

    def test_it_wins_over_an_open_intent(self) -> None:
        here = job().running(world=2).leaving("n1").ended(1, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert here.now.phase is Phase.COMPLETED
        assert here.intent is None

    def test_a_finished_job_does_nothing_when_applied_again(self) -> None:
        here = job().running(world=2).all_ended(ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        again = here.spec(replicas=3).having(pods=()).settle()
        assert again.names() == []
        assert again.now.phase is Phase.COMPLETED

    def test_its_budget_goes_and_its_pods_stay_until_the_time_to_live_is_over(self) -> None:
        here = job(ttl_seconds_after_finished=60).running(world=2)
        done = here.all_ended(ExitKind.COMPLETED, step=100, commit=(9, 100))
        assert DeleteBudget(uid="budget") in written(done.plan())
        assert done.settle().plan().requeue_after == 60
        assert done.settle().names() == ["0", "1"]
        assert written(done.settle().after(60).plan()) == (DeleteJob(uid=done.snapshot.uid),)

    def test_with_no_time_to_live_it_goes_at_once(self) -> None:
        here = job(ttl_seconds_after_finished=0).running(world=1)
        assert here.all_ended(ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().snapshot.deleting

    def test_a_script_that_goes_on_after_completion_is_protected_for_an_exit_save_and_has_an_hour(self) -> None:
        here = job().running(world=2).ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().after(30)
        assert here.settle().plan().requeue_after == 600
        assert here.snapshot.budget is not None
        unprotected = here.after(600)
        assert written(unprotected.plan()) == (DeleteBudget(uid="budget"),)
        assert unprotected.settle().plan().requeue_after == AFTER_COMPLETION_SECONDS + 30 - 630
        assert deletes(here.after(AFTER_COMPLETION_SECONDS - 1).plan()) == []
        assert deletes(here.after(AFTER_COMPLETION_SECONDS).plan()) == ["digits-ab12-1"]

    def test_scripts_that_end_one_after_another_after_completion_write_no_status_each(self) -> None:
        here = job().running(world=3).ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert here.plan().requeue_after == 30
        assert here.after(29).ended(1, ExitKind.COMPLETED, step=100, commit=(9, 100)).plan().status is None

    def test_scripts_that_go_on_after_completion_are_counted_and_named(self) -> None:
        here = (
            job().running(world=3).ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().after(30).settle()
        )
        words, until = "the job is finished", "until 13:00:30Z at the latest"
        named = f"{words}; 2 scripts still run, {until}: digits-ab12-1, digits-ab12-2"
        assert (here.condition(ConditionType.RUNNING).message, here.now.replicas) == (named, 2)
        one = here.ended(1, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert one.condition(ConditionType.RUNNING).message == f"{words}; 1 script still runs, {until}: digits-ab12-2"
        going = one.deleted(2).settle()
        assert (going.condition(ConditionType.RUNNING).message, going.now.replicas) == (words, 1)
        assert going.ended(2, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().now.replicas == 0

    def test_a_script_that_goes_on_keeps_no_autoscaler_from_its_node_once_it_is_not_protected(self) -> None:
        here = job(disruption=PATIENT.model_copy(update={"autoscaler": Autoscaler.NEVER})).running(world=3)
        here = here.ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().deleted(2)
        assert _marked(here.after(629).plan()) == {}
        assert _marked(here.after(630).plan()) == {"digits-ab12-1": {}}
        assert here.after(630).settle().plan().actions == ()

    def test_a_script_that_goes_on_still_says_that_its_node_may_go_if_its_job_says_so(self) -> None:
        here = job(disruption=PATIENT.model_copy(update={"autoscaler": Autoscaler.COOPERATIVE})).running(world=2)
        here = here.ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().after(630)
        assert _marked(here.plan()) == {}

    def test_the_time_to_live_of_a_job_cuts_no_script_that_goes_on_after_completion(self) -> None:
        here = job(ttl_seconds_after_finished=60).running(world=2)
        here = here.ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().after(1000).settle()
        assert not here.snapshot.deleting
        late = here.after(AFTER_COMPLETION_SECONDS).settle()
        assert late.snapshot.deleting
        ended = here.ended(1, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert ended.snapshot.deleting

    def test_a_standby_of_the_next_run_is_dropped_when_a_written_off_member_had_completed(self) -> None:
        here = job().running(world=2).leaving("n1")
        here = here.ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle().node("n1", ready=False).settle()
        moved = here.after(60).settle()
        assert moved.members == ("digits-ab12-2", "digits-ab12-3")
        done = moved.ended(0, ExitKind.COMPLETED, run=1, step=100, commit=(9, 100)).settle()
        assert done.now.phase is Phase.COMPLETED
        too_late = moved.ready().settle().ended(0, ExitKind.COMPLETED, run=1, step=100, commit=(9, 100)).settle()
        assert too_late.now.phase is Phase.RUNNING

    def test_a_pod_that_was_in_no_run_completes_nothing(self) -> None:
        here = job().starting(world=2).ended(0, ExitKind.COMPLETED, run=0).settle()
        assert here.now.phase is not Phase.COMPLETED


class TestSuspend:
    def test_all_members_leave_at_once_and_none_comes_back(self) -> None:
        here = job().running(world=2).spec(suspend=True)
        assert set(leaves(here.plan())) == {"digits-ab12-0", "digits-ab12-1"}
        stopped = here.settle().all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert stopped.names() == []
        assert stopped.now.phase is Phase.SUSPENDED
        assert stopped.condition(ConditionType.SUSPENDED).status == "True"

    def test_resuming_uses_the_number_that_leavers_got(self) -> None:
        here = job().running(world=2).spec(suspend=True).settle()
        stopped = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        again = stopped.spec(suspend=False).settle().ready().settle()
        assert again.run_plan is not None
        assert again.run_plan.run == 2
        assert again.condition(ConditionType.SUSPENDED).reason == "Resumed"

    def test_a_job_created_suspended_creates_nothing(self) -> None:
        assert job(suspend=True).settle().names() == []

    def test_suspending_releases_standbys(self) -> None:
        here = job().starting(world=2).spec(suspend=True)
        assert deletes(here.plan()) == ["digits-ab12-0", "digits-ab12-1"]


class TestSize:
    def test_another_size_that_has_no_room_beside_means_leave_and_come_back_at_that_size(self) -> None:
        here = job().running(world=2).spec(processes_per_replica=2).settle().after(1).settle()
        for new in (2, 3):
            here = here.pod(new, node="", unschedulable="0/3 nodes are available: 3 Insufficient cpu.")
        here = here.after(10).settle()
        assert here.now.phase is Phase.RESCALING
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        for new in (2, 3):
            here = here.pod(new, node="n3", unschedulable="")
        after = here.ready().settle()
        assert after.run_plan is not None
        assert after.run_plan.world == 4

    def test_a_budget_is_raised_before_labels_and_lowered_after_them(self) -> None:
        here = job().running(world=3).cordon("n1").spec(replicas=1).settle().after(1).settle()
        left = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        assert left.step().snapshot.budget == left.snapshot.budget
        after = left.settle()
        assert after.snapshot.budget is not None
        assert after.snapshot.budget.min_available == 1
        after = after.ready().settle()
        assert after.run_plan is not None
        here = after.cordon(after.run_plan.members[0].node).uncordon("n1")
        grown = here.spec(replicas=4).settle().after(1).settle()
        assert grown.snapshot.budget is not None
        assert grown.snapshot.budget.min_available == 4
        assert len(trains(grown.ready().all_ended(ExitKind.CHECKPOINTED, step=30, commit=(5, 30)).plan())) == 4

    def test_while_starting_members_are_added_and_released_without_a_run(self) -> None:
        here = job().starting(world=3)
        assert deletes(here.spec(replicas=2).plan()) == ["digits-ab12-2"]
        assert here.spec(replicas=2).settle().members == ("digits-ab12-0", "digits-ab12-1")
        assert creates(here.spec(replicas=4).plan()) == ["digits-ab12-3"]


class TestDeadline:
    def test_when_it_is_over_members_save_and_leave_and_the_job_fails(self) -> None:
        here = job(active_deadline_seconds=3600).running(world=2)
        assert here.plan().requeue_after == 3600
        over = here.after(3600).settle()
        assert over.intent is not None
        assert over.intent.disruption is Disruption.STOP
        failed = over.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert failed.condition(ConditionType.FAILED).reason == "DeadlineExceeded"
        assert failed.names() == ["0", "1"]

    def test_a_job_that_never_got_its_members_fails_and_keeps_none(self) -> None:
        here = job(active_deadline_seconds=60).starting(world=2).after(60)
        assert deletes(here.plan()) == ["digits-ab12-0", "digits-ab12-1"]
        assert here.settle().now.phase is Phase.FAILED

    def test_suspending_restarts_it(self) -> None:
        here = job(active_deadline_seconds=60).starting(world=2).spec(suspend=True).settle().after(100)
        assert here.spec(suspend=False).settle().now.phase is Phase.STARTING

    def test_a_run_that_has_to_end_for_both_reasons_is_suspended(self) -> None:
        over = job(active_deadline_seconds=60).running(world=2).spec(suspend=True).after(60).settle()
        assert over.intent is not None
        assert over.intent.disruption is Disruption.SUSPEND


class TestDeletion:
    """Another owner's finalizer may keep a deleted job for long: its members still block drains."""

    def test_members_train_on_and_the_condition_says_that_nothing_follows(self) -> None:
        here = job().running(world=2).having(deleting=True)
        assert here.plan().actions == ()
        running = here.settle().condition(ConditionType.RUNNING)
        assert (running.status, running.reason) == ("True", "Assigned")
        assert "being deleted" in running.message

    def test_members_still_save_and_leave_a_node_that_goes_and_none_comes_back(self) -> None:
        here = job().running(world=2).having(deleting=True).leaving("n1")
        assert {type(here.assignment(number)) for number in (0, 1)} == {Leave}
        gone = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert (gone.names(), gone.members, gone.now.step) == ([], (), 20)
        running = gone.condition(ConditionType.RUNNING)
        assert (running.status, running.reason) == ("False", "BeingDeleted")
        assert gone.after(3600).plan().actions == ()

    def test_standbys_are_released_and_none_is_created(self) -> None:
        here = job().starting(world=2).missing(0).having(deleting=True)
        assert (creates(here.plan()), deletes(here.plan())) == ([], ["digits-ab12-1"])
        assert here.plan().events == ()
        assert here.settle().members == ()

    def test_a_failure_is_counted_and_no_run_follows(self) -> None:
        here = job().running(world=2).having(deleting=True).missing(0).settle()
        ended = here.ended(1, ExitKind.PEER_LOST).settle()
        assert ended.now.failures.infrastructure == 1
        assert ended.after(60).settle().names() == []

    def test_another_size_ends_no_run_for_none_could_follow(self) -> None:
        assert job().running(world=2).having(deleting=True).spec(replicas=3).settle().intent is None

    def test_a_finished_one_is_not_deleted_again(self) -> None:
        here = job(ttl_seconds_after_finished=60).running(world=2)
        done = here.all_ended(ExitKind.COMPLETED, step=100, commit=(9, 100)).settle().after(60).having(deleting=True)
        assert done.plan().actions == ()

    def test_pods_that_the_garbage_collector_deletes_save_within_their_grace(self) -> None:
        here = job().running(world=2).having(deleting=True).deleted(0).deleted(1).settle()
        assert deletes(here.plan()) == []
        assert here.now.lost == ()

    @pytest.mark.parametrize("orphaned", [(0,), (0, 1)])
    def test_pods_that_an_orphaning_delete_sets_free_are_left_alone(self, orphaned: tuple[int, ...]) -> None:
        here = job().running(world=2).having(deleting=True)
        for number in orphaned:
            here = here.pod(number, owner_uid="")
        assert (here.plan().actions, here.plan().status) == ((), None)


@pytest.mark.parametrize("view", ["pods_complete", "nodes_complete"])
def test_with_half_a_view_it_only_waits(view: str) -> None:
    plan = job().running(world=2).missing(0).having(**{view: False}).plan()
    assert plan.status is None
    assert plan.actions == ()
    assert plan.requeue_after == 1


def test_a_changed_template_counts_from_the_next_run() -> None:
    here = job().running(world=2).having(template_hash="t2")
    assert written(here.plan()) == (CheckTemplate(),)
    here = here.settle()
    assert here.run_plan == job().running(world=2).run_plan
    after = here.leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
    assert {pod.template_hash for pod in after.living()} == {"t2"}


def test_assignments_are_written_again_from_the_plan_alone() -> None:
    here = job().running(world=2)
    forgotten = here.pod(1, assignment='{"v":1,"standby":true}', role="standby")
    assert list(assigns(forgotten.plan())) == ["digits-ab12-1"]
    assert forgotten.settle().assignment(1) == here.assignment(1)


def test_being_ready_one_after_another_writes_no_status_for_each_pod() -> None:
    here = job().starting(world=3)
    for member in (0, 1):
        here = here.pod(member, ready=True, phase="Running", ip=f"10.0.0.{member}")
        assert here.plan().status is None
    assert here.ready().plan().status is not None


def _marked(plan: Decision) -> dict[str, dict[str, str]]:
    return {action.name: action.new for action in plan.actions if isinstance(action, Mark)}
