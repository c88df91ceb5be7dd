"""Reasons to end a run: nodes that leave, pods that are deleted; when members are asked, and when it may be
withdrawn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from perdure.wire import ExitKind, Leave
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Disruption
from perdure_operator.decide.signals import AUTOSCALER_TAINT, KARPENTER_TAINT
from perdure_operator.state.snapshot import NodeView, TemplateCheck, TemplateVerdict, Toleration
from tests.support.jobs import Job, creates, deletes, job, leaves, plan_of, raised

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"


def _cause(here: Job) -> str:
    intent = here.settle().intent
    return intent.cause if intent else ""


class TestNodes:
    @pytest.mark.parametrize(
        ("key", "effect", "cause"),
        [
            (AUTOSCALER_TAINT, "NoSchedule", "cluster-autoscaler removes node n1"),
            (KARPENTER_TAINT, "NoSchedule", "Karpenter removes node n1"),
            ("maintenance", "NoExecute", "node n1 has the taint maintenance:NoExecute"),
            ("maintenance", "NoSchedule", ""),
            (NOT_READY, "NoExecute", ""),
            (UNREACHABLE, "NoExecute", ""),
        ],
    )
    def test_a_taint_that_announces_the_end_of_a_node_is_a_signal(self, key: str, effect: str, cause: str) -> None:
        assert _cause(job().running(world=2).taint("n1", key, effect)) == cause

    @pytest.mark.parametrize(
        ("toleration", "stays"),
        [
            (Toleration(key="maintenance", value="", effect="NoExecute"), True),
            (Toleration(key="maintenance", operator="Exists"), True),
            (Toleration(operator="Exists"), True),
            (Toleration(key="maintenance", operator="Exists", toleration_seconds=300), False),
            (Toleration(key="maintenance", operator="Exists", toleration_seconds=0), False),
            (Toleration(key="maintenance", operator="Exists", effect="NoSchedule"), False),
            (Toleration(key="maintenance", value="other"), False),
            (Toleration(key="other", operator="Exists"), False),
        ],
    )
    def test_a_tolerated_taint_is_none(self, toleration: Toleration, stays: bool) -> None:
        here = job().running(world=2).taint("n1", "maintenance", "NoExecute").pod(0, tolerations=(toleration,))
        assert (_cause(here) == "") is stays

    def test_one_that_holds_up_jobs_is_left_only_if_somebody_wants_that(self) -> None:
        wanted = {"signals": {"node-stragglers": "Vacate"}}
        assert _cause(job().running(world=2).node("n1", slows_jobs=True)) == ""
        here = job(disruption=wanted).running(world=2)
        assert _cause(here) == ""
        assert _cause(here.node("n1", slows_jobs=True)) == "node n1 holds up jobs of several namespaces"

    def test_an_autoscaler_does_not_care_for_tolerations(self) -> None:
        here = job().running(world=2).pod(0, tolerations=(Toleration(operator="Exists"),))
        assert _cause(here.taint("n1", AUTOSCALER_TAINT)) == "cluster-autoscaler removes node n1"

    def test_a_node_being_deleted_is_a_signal(self) -> None:
        assert _cause(job().running(world=2).node("n1", deleting=True)) == "node n1 is being deleted"

    def test_a_node_that_is_gone_is_a_signal(self) -> None:
        assert _cause(job().running(world=2).node("n1", exists=False, ready=False)) == "node n1 was deleted"

    def test_a_node_that_the_snapshot_does_not_have_is_unknown(self) -> None:
        here = job().running(world=2)
        assert here.having(nodes=here.snapshot.nodes[1:]).plan().status is None


class TestQuiet:
    def test_a_signal_withdrawn_in_the_quiet_second_moves_no_member(self) -> None:
        here = job().running(world=2).cordon("n1").settle().uncordon("n1").after(1).settle()
        assert here.intent is None
        assert here.now.run == 1
        assert here.assignment(0) == job().running(world=2).assignment(0)

    def test_a_second_node_within_the_quiet_second_joins_the_same_move(self) -> None:
        here = job().running(world=2).cordon("n1").settle().after(0.8).cordon("n2").settle()
        assert here.intent is not None
        assert here.intent.nodes == ("n1", "n2")
        assert here.plan().requeue_after == 1
        assert {said.run for said in leaves(here.after(1).plan()).values()} == {2}

    def test_quiet_ends_after_five_seconds_whatever_follows(self) -> None:
        nodes = tuple(NodeView(name=f"n{number}") for number in range(1, 9))
        here = job().having(nodes=nodes).running(world=8)
        for number in range(1, 6):
            here = here.cordon(f"n{number}").settle().after(0.9)
            assert here.plan().actions == ()
        here = here.cordon("n6").settle()
        assert here.plan().requeue_after == pytest.approx(0.5)
        assert len(leaves(here.after(0.5).plan())) == 8

    def test_a_late_look_counts_as_quiet_over(self) -> None:
        here = job().running(world=2).cordon("n1").settle().after(30)
        assert len(leaves(here.plan())) == 2

    def test_once_members_have_their_ranks_the_move_is_finished_even_if_the_signal_goes(self) -> None:
        here = job().running(world=2).leaving("n1").uncordon("n1").settle()
        assert here.intent is not None
        assert here.intent.leave

    def test_a_second_drain_after_the_request_moves_everybody_once(self) -> None:
        here = job().running(world=2).leaving("n1").after(2).cordon("n2").settle()
        assert here.now.next is not None
        assert here.now.next.run == 2
        after = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert {pod.node for pod in after.living() if not pod.deleting} == {"n3"}


class TestDeletedPod:
    def test_all_ranks_save_within_the_deleted_pods_own_grace(self) -> None:
        here = job().running(world=2).deleted(0, grace=60)
        assert leaves(here.plan()) == {
            "digits-ab12-1": Leave(run=2, cause="deleted: digits-ab12-0 (node n1)", seconds=55)
        }
        assert here.settle().now.lost == ()

    def test_the_exit_timeout_still_bounds_it(self) -> None:
        here = (
            job(disruption={"exit_timeout_seconds": 15, "replacement_timeout_seconds": 0})
            .running(world=2)
            .deleted(0, grace=60)
        )
        assert [said.seconds for said in leaves(here.plan()).values()] == [15]

    def test_a_deletion_during_a_drain_shortens_the_others_time_once(self) -> None:
        here = job().running(world=2).leaving("n1").deleted(0, grace=60)
        assert [said.seconds for said in leaves(here.plan()).values()] == [55]
        later = here.settle().after(3)
        assert later.plan().actions == ()
        assert later.plan().status is None

    def test_members_count_from_the_first_request_so_the_time_gone_by_is_part_of_the_shorter_one(self) -> None:
        here = job().running(world=2).leaving("n1").after(200).deleted(0, grace=120)
        assert [said.seconds for said in leaves(here.plan()).values()] == [200 + 115]

    def test_a_deleted_pod_that_left_before_anybody_looked_has_saved_for_all(self) -> None:
        here = job().running(world=2).ended(0, ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        here = here.pod(0, gone=True).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_DELETED
        assert here.intent.lost == ()
        after = here.ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert after.now.failures.infrastructure == 0


class TestLostWhileLeaving:
    def _leaving(self) -> Job:
        return job().running(world=2).leaving("n1").after(200)

    @pytest.mark.parametrize(
        "lost",
        [
            lambda here: here.missing(0),
            lambda here: here.exited(0, "", code=137),
            lambda here: here.ended(0, ExitKind.FAILED, error=raised()),
            lambda here: here.ended(0, ExitKind.PEER_LOST),
        ],
    )
    def test_the_others_wait_half_a_minute_for_a_save_that_cannot_end(self, lost: Callable[[Job], Job]) -> None:
        here = lost(self._leaving())
        assert [said.seconds for said in leaves(here.plan()).values()] == [200 + 30]
        later = here.settle().after(10)
        assert (later.plan().actions, later.plan().status) == ((), None)
        assert deletes(later.after(50).plan()) == ["digits-ab12-1"]

    def test_a_deleted_member_that_goes_without_a_word_shortens_it_once_more(self) -> None:
        here = self._leaving().deleted(0, grace=120).settle()
        assert [said.seconds for said in leaves(here.pod(0, gone=True).plan()).values()] == [200 + 30]

    @pytest.mark.parametrize(
        "left",
        [
            lambda here: here.ended(0, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)),
            lambda here: here.ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).missing(0),
            lambda here: here.ended(0, ExitKind.STOPPED),
            lambda here: here.ended(0, ExitKind.EXIT_TIMEOUT),
            lambda here: here.after(380).missing(0),
        ],
    )
    def test_a_member_that_leaves_as_asked_takes_no_time_from_the_others(self, left: Callable[[Job], Job]) -> None:
        assert leaves(left(self._leaving()).plan()) == {}


class TestLate:
    def test_members_that_outlive_their_time_are_deleted(self) -> None:
        here = (
            job(disruption={"exit_timeout_seconds": 15, "replacement_timeout_seconds": 0})
            .running(world=2)
            .leaving("n1")
        )
        assert here.after(4).settle().plan().requeue_after == 11
        assert here.after(16).settle().plan().requeue_after == 29
        late = here.after(45)
        assert deletes(late.plan()) == ["digits-ab12-0", "digits-ab12-1"]
        assert late.settle().condition(ConditionType.RUNNING).reason == "DeletingMembers"
        assert late.settle().plan().actions == ()

    def test_an_exit_timeout_costs_no_failure_and_its_steps_are_counted(self) -> None:
        here = (
            job(disruption={"exit_timeout_seconds": 15, "replacement_timeout_seconds": 0})
            .running(world=2)
            .leaving("n1")
            .after(15)
        )
        after = here.all_ended(ExitKind.EXIT_TIMEOUT, step=20, commit=(3, 10)).settle()
        saved = after.condition(ConditionType.SAVED)
        assert (saved.status, saved.reason) == ("False", "ExitTimeout")
        assert "run 1 ended at step 20: 10 steps lost" in saved.message
        assert (after.now.steps_lost, after.now.step) == (10, 10)
        assert (after.now.failures.code, after.now.failures.infrastructure) == (0, 0)
        assert after.now.lost == (1,)
        assert any(event.reason == "ExitTimeout" for plan in after.history for event in plan.events)


class TestUnreachable:
    def test_nothing_happens_before_lost_node_seconds(self) -> None:
        here = job().running(world=2).node("n1", ready=False).settle()
        assert here.run_plan is not None
        assert here.intent is None
        assert here.plan().requeue_after == 60

    def test_the_condition_says_when_its_members_are_given_up(self) -> None:
        here = job().running(world=2).node("n1", ready=False).pod(0, ready=False).settle()
        running = here.condition(ConditionType.RUNNING)
        assert running.reason == "NodeUnreachable"
        assert "digits-ab12-0 (node n1)" in running.message
        assert "12:01:00Z" in running.message

    def test_a_node_that_comes_back_starts_the_clock_over(self) -> None:
        here = job().running(world=2).node("n1", ready=False).settle().after(50).node("n1", ready=True).settle()
        assert here.now.unready == ()
        assert here.node("n1", ready=False).settle().plan().requeue_after == 60

    def test_so_does_one_that_came_back_while_no_operator_looked(self) -> None:
        here = job().running(world=2).node("n1", ready=False).settle().after(600)
        here = here.node("n1", ready=False, unready_since=here.snapshot.now - timedelta(seconds=20))
        assert deletes(here.plan()) == []
        assert here.plan().requeue_after == 40

    @pytest.mark.parametrize("behind", [timedelta(seconds=-30), timedelta(seconds=120)], ids=["to come", "long past"])
    def test_a_clock_that_is_wrong_delays_nothing(self, behind: timedelta) -> None:
        here = job().running(world=2).node("n1", ready=False).settle().after(60)
        here = here.node("n1", ready=False, unready_since=here.snapshot.now - behind)
        assert deletes(here.plan()) == ["digits-ab12-0"]

    def test_after_it_members_are_written_off_and_the_others_are_stopped(self) -> None:
        here = job().running(world=2).node("n1", ready=False).settle().after(60)
        plan = here.plan()
        assert deletes(plan) == ["digits-ab12-0"]
        told = leaves(plan)
        assert told["digits-ab12-1"] == Leave(
            run=2, cause="digits-ab12-0 ended: node n1 is unreachable", seconds=0, lost=(1,)
        )
        roles = {pod.name: pod.role for pod in here.settle().snapshot.pods}
        assert roles == {"digits-ab12-0": "former", "digits-ab12-1": "member"}

    def test_the_job_goes_on_without_waiting_for_the_dead_node(self) -> None:
        here = job().running(world=2).node("n1", ready=False).settle().after(60).settle()
        gone = here.ended(1, ExitKind.PEER_LOST, step=20, commit=(3, 10)).settle()
        assert gone.now.failures.infrastructure == 1
        after = gone.after(1).settle().ready().settle()
        assert after.run_plan is not None
        assert [member.name for member in after.run_plan.members] == ["digits-ab12-2", "digits-ab12-3"]
        assert after.run_plan.lost == (1,)

    def test_a_standby_there_is_replaced(self) -> None:
        here = job().starting(world=2).node("n1", ready=False).settle().after(60)
        assert creates(here.plan()) == ["digits-ab12-2"]
        assert deletes(here.plan()) == ["digits-ab12-0"]


class TestStandbys:
    def test_one_on_a_node_that_is_cordoned_is_replaced_by_a_new_number(self) -> None:
        here = job().starting(world=2).ready().cordon("n1")
        plan = here.plan()
        assert creates(plan) == ["digits-ab12-2"]
        assert deletes(plan) == ["digits-ab12-0"]
        assert plan.status is not None
        assert plan_of(plan.status) is None

    def test_one_that_tolerates_the_cordon_keeps_its_successor_from_landing_there_again(self) -> None:
        here = job().starting(world=2).ready().pod(0, tolerations=(Toleration(operator="Exists"),)).cordon("n1")
        assert creates(here.plan()) == ["digits-ab12-2"]
        assert deletes(here.plan()) == []

    @pytest.mark.parametrize("away", ["deleting", "gone", "missing"])
    def test_one_that_is_gone_is_replaced_and_costs_nothing(self, away: str) -> None:
        here = job().starting(world=2)
        here = {
            "deleting": lambda: here.deleted(0),
            "gone": lambda: here.pod(0, gone=True),
            "missing": lambda: here.missing(0),
        }[away]()
        assert creates(here.plan()) == ["digits-ab12-2"]
        assert here.settle().now.failures.infrastructure == 0

    def test_many_replaced_in_one_round_share_one_event(self) -> None:
        good = TemplateCheck(hash="t2", verdict=TemplateVerdict.GOOD)
        here = job().starting(world=12).having(template_hash="t2", template_check=good)
        replaced = [event for event in here.plan().events if event.reason == "MemberReplaced"]
        assert len(replaced) == 1
        assert "digits-ab12-0 was made from an older template, digits-ab12-1 was" in replaced[0].message
        assert "4 more" in replaced[0].message

    def test_one_made_from_an_older_template_is_replaced(self) -> None:
        here = job().starting(world=1).having(template_hash="t2").settle()
        assert here.members == ("digits-ab12-1",)
