"""What a member shows itself, and not its node: a condition, a sick device."""

from __future__ import annotations

from perdure.wire import ExitKind, Leave
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import Reaction
from perdure_operator.api.status import Disruption
from perdure_operator.state.snapshot import Device, NodeView, PodCondition
from tests.support.jobs import Job, creates, deletes, job, leaves, trains

PREEMPTED = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
BROKEN = Device(resource="nvidia.com/gpu", id="GPU-7", health="Unhealthy")
CAUSE = "the scheduler takes the place of digits-ab12-0 for a pod of higher priority"


def preempted(here: Job, member: int = 0) -> Job:
    return here.pod(member, conditions=(PREEMPTED,))


def broken(here: Job, member: int = 0) -> Job:
    return here.pod(member, devices=(BROKEN,))


def wary(**disruption: object) -> Job:
    """A job for which a sick device is a fault."""
    return job(disruption={"signals": {"device-unhealthy": Reaction.FAULT}, **disruption})


class TestConditions:
    def test_only_the_member_that_shows_it_leaves_and_its_node_is_not_to_be_left(self) -> None:
        here = preempted(job(disruption={}).running(world=2)).settle()
        assert here.intent is not None
        assert (here.intent.cause, here.intent.nodes) == (CAUSE, ())
        here = here.after(1).settle()
        assert here.names() == ["0", "1", "2"]
        moved = here.ready().plan()
        assert set(leaves(moved)) == {"digits-ab12-0"}
        assert set(trains(moved)) == {"digits-ab12-1", "digits-ab12-2"}

    def test_where_it_is_deleted_at_last_the_cause_says_by_whom(self) -> None:
        here = preempted(job().running(world=2)).deleted(0, grace=60).settle()
        assert here.intent is not None
        assert here.intent.cause == f"deleted: {CAUSE}"

    def test_it_may_be_taken_back_as_a_nodes_may(self) -> None:
        here = preempted(job().running(world=2)).settle().pod(0, conditions=()).after(1).settle()
        assert here.intent is None
        assert here.now.withdrawals is not None
        assert here.now.withdrawals.count == 1

    def test_one_that_comes_and_goes_has_to_last(self) -> None:
        here = job().running(world=2)
        for _ in range(3):
            here = preempted(here).settle().pod(0, conditions=()).after(0.5).settle()
        here = preempted(here).settle().after(7)
        assert leaves(here.plan()) == {}
        assert "it has to last 8 s" in here.settle().condition(ConditionType.DISRUPTED).message
        assert len(leaves(here.after(1).plan())) == 2

    def test_a_node_and_a_pod_cost_one_move(self) -> None:
        here = preempted(job().running(world=2), 1).cordon("n1").settle()
        assert here.intent is not None
        assert here.intent.nodes == ("n1",)
        assert "node n1 is cordoned; the scheduler takes the place of digits-ab12-1" in here.intent.cause
        assert {said.run for said in leaves(here.after(1).plan()).values()} == {2}

    def test_what_its_node_shows_is_reported_first(self) -> None:
        here = preempted(job().running(world=2)).cordon("n1").settle()
        assert here.intent is not None
        assert here.intent.cause == "node n1 is cordoned"

    def test_a_job_may_ignore_it(self) -> None:
        here = preempted(job(disruption={"signals": {"pod-preempted": "Ignore"}}).running(world=2)).settle()
        assert here.intent is None


class TestDevices:
    def test_a_sick_device_counts_only_where_the_table_says_so(self) -> None:
        assert broken(job().running(world=2)).settle().intent is None

    def test_as_a_fault_it_ends_the_run_without_a_save(self) -> None:
        here = broken(wary().running(world=2))
        told = Leave(
            run=2, cause="digits-ab12-0: nvidia.com/gpu GPU-7 is Unhealthy", seconds=0, lost=(1,), suspect=True
        )
        assert leaves(here.plan()) == {"digits-ab12-0": told, "digits-ab12-1": told}
        after = here.settle()
        assert after.condition(ConditionType.DISRUPTED).reason == Disruption.NODE_FAULT
        assert after.now.failures.infrastructure == 0

    def test_a_member_that_has_died_of_it_leaves_no_image_with_the_others(self) -> None:
        here = broken(wary().running(world=2)).ended(0, ExitKind.FAILED)
        assert {said.lost for said in leaves(here.plan()).values()} == {(1,)}

    def test_the_next_members_may_use_the_other_devices_of_that_node(self) -> None:
        here = wary().having(nodes=(NodeView(name="n1"), NodeView(name="n2"))).running(world=2)
        here = broken(here).settle().all_ended(ExitKind.STOPPED, step=25, commit=(3, 20)).settle().ready().settle()
        assert here.run_plan is not None
        assert {member.node for member in here.run_plan.members} == {"n1", "n2"}

    def test_a_standby_with_one_is_replaced_and_holds_no_pod_off_its_node(self) -> None:
        here = broken(wary().starting(world=2).ready())
        plan = here.plan()
        assert (creates(plan), deletes(plan)) == (["digits-ab12-2"], ["digits-ab12-0"])
