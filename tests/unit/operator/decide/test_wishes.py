"""A node that need not be left: beside one that must be, a change of size, spares; and announcements with an end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import Leave
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import Disruption, LiveRefused
from perdure_operator.state.snapshot import NodeCondition, NodeView, Taint, Toleration
from tests.support.jobs import PATIENT, START, Job, creates, job, leaves

WISH = {"on_cordon": "MoveIfRoom"}
KARPENTER = "karpenter.sh/disrupted"
SICK = (NodeCondition(type="KernelDeadlock", status="True"),)
SPOILT = (NodeCondition(type="GpuBroken", status="True"),)
FAULT = SignalRow.model_validate(
    {"name": "ours", "source": "NodeCondition", "key": "GpuBroken", "reaction": "Fault"},
)


def wished(world: int, nodes: int = 3, **spec: Any) -> Job:
    """Runs with a member on each of the first nodes; n1 is cordoned, and there is no room elsewhere."""
    there = tuple(NodeView(name=f"n{number + 1}") for number in range(nodes))
    here = job(disruption=WISH, **spec).having(nodes=there).running(world)
    here = here.status(live_refused=LiveRefused(template="t1", why="its model is sharded"))
    return here.cordon("n1").settle().after(1).settle().after(600).settle()


def nodes_of(here: Job) -> list[str]:
    return [member.node for member in here.run_plan.members] if here.run_plan else []


class TestAnotherNodeMustBeLeft:
    def test_at_the_limit_only_its_member_goes(self) -> None:
        here = wished(3, elastic=Elastic(min_replicas=1, max_replicas=4)).taint("n2", KARPENTER).settle()
        assert leaves(here.plan()) == {}
        here = here.after(30).settle()
        assert nodes_of(here) == ["n1", "n3"]
        assert here.intent is not None  # and n1 is still to be left, if there is room
        assert (here.intent.cause, here.intent.ready_by) == ("node n1 is cordoned", None)
        assert leaves(here.after(600).settle().plan()) == {}

    def test_one_replacement_is_enough_then_for_a_job_of_one_size(self) -> None:
        """The one that is Ready, and not the one that was named first."""
        here = wished(3).taint("n2", KARPENTER).settle().after(1)
        assert here.now.next is not None
        assert len(here.now.next.members) == 2
        here = here.pod(here.now.next.members[1], node="n9", ready=True, phase="Running", ip="10.0.0.9")
        here = here.having(nodes=(*here.snapshot.nodes, NodeView(name="n9"))).settle()
        assert here.now.run == 1
        here = here.after(29).settle()
        assert sorted(nodes_of(here)) == ["n1", "n3", "n9"]

    def test_where_the_smaller_run_would_be_too_small_all_save_and_leave(self) -> None:
        here = wished(3, elastic=Elastic(min_replicas=3, max_replicas=4)).taint("n2", KARPENTER).settle()
        assert len(leaves(here.after(30).plan())) == 3


class TestSinceWhen:
    """Metrics tell a drain that waits for long from what came before it."""

    def test_a_wish_that_becomes_an_order_counts_from_the_order(self) -> None:
        here = wished(2)
        assert here.intent is not None
        assert here.intent.since < here.snapshot.now - timedelta(minutes=5)
        here = here.taint("n1", KARPENTER).settle()
        assert here.intent is not None
        assert (here.intent.disruption, here.intent.since) == (Disruption.NODE_LEAVING, here.snapshot.now)
        ordered = here.intent.since
        here = here.after(5).settle()
        assert here.intent is not None
        assert here.intent.since == ordered

    def test_a_node_that_leaves_as_the_job_grows_counts_from_its_own_signal(self) -> None:
        elastic = Elastic(min_replicas=1, max_replicas=4, grow_timeout_seconds=3600)
        there = (NodeView(name="n1"), NodeView(name="n2"), NodeView(name="n3"))
        here = job(disruption=PATIENT, elastic=elastic).having(nodes=there).running(2)
        here = here.spec(replicas=3).settle().after(1).settle().after(600).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.SIZE_CHANGE
        here = here.taint("n1", KARPENTER).settle()
        assert here.intent is not None
        assert (here.intent.disruption, here.intent.since) == (Disruption.NODE_LEAVING, here.snapshot.now)

    def test_a_member_that_is_deleted_after_a_wish_counts_from_its_deletion(self) -> None:
        here = wished(2).deleted(0).settle()
        assert here.intent is not None
        assert (here.intent.disruption, here.intent.since) == (Disruption.MEMBER_DELETED, here.snapshot.now)


class TestAScaleDown:
    ELASTIC = Elastic(min_replicas=1, max_replicas=4)

    @pytest.mark.parametrize("elastic", [None, ELASTIC])
    def test_it_does_not_wait_for_room(self, elastic: Elastic | None) -> None:
        here = wished(4, nodes=4, elastic=elastic).cordon("n2").settle().after(1).settle()
        here = here.spec(replicas=3).settle().after(1).settle()
        assert len(nodes_of(here)) == 3
        assert here.run_plan is not None
        assert here.run_plan.cause.startswith("3 members")

    def test_the_member_that_is_to_leave_goes_first(self) -> None:
        here = wished(3, elastic=self.ELASTIC).spec(replicas=2).settle().after(1).settle()
        assert nodes_of(here) == ["n2", "n3"]
        assert here.intent is None

    def test_another_number_of_processes_does_not_wait_for_it_either(self) -> None:
        here = wished(3).spec(processes_per_replica=2).settle().after(1).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.SIZE_CHANGE
        for new in (3, 4, 5):
            here = here.pod(new, node="", unschedulable="0/3 nodes are available: 3 Insufficient cpu.")
        assert len(leaves(here.after(30).plan())) == 3

    def test_a_larger_run_begins_with_the_pods_that_get_room(self) -> None:
        here = wished(2, nodes=2, elastic=self.ELASTIC).spec(replicas=3).settle().after(1).settle()
        assert here.intent is not None
        assert here.intent.ready_by is None
        assert here.now.run == 1


class TestSpares:
    def _spared(self) -> Job:
        there = tuple(NodeView(name=f"n{number + 1}") for number in range(4))
        elastic = Elastic(min_replicas=1, max_replicas=4, spares=1)
        here = job(disruption={}, elastic=elastic).having(nodes=there)
        here = here.status(live_refused=LiveRefused(template="t1", why="its model is sharded"))
        return here.running(2).after(5).settle().ready().settle()

    def test_one_on_a_sick_node_is_not_recreated_in_a_loop(self) -> None:
        here = self._spared().node("n3", conditions=SICK)
        for _ in range(10):
            here = here.settle().after(301)
        assert here.settle().names() == ["0", "1", "2"]

    def test_status_says_that_it_waits_there(self) -> None:
        here = self._spared().node("n3", conditions=SICK).settle()
        words = here.condition(ConditionType.SIZED).message
        assert words.endswith("; 0 of 1 spares are warm: digits-ab12-2: node n3 has the condition KernelDeadlock=True")

    def test_it_takes_no_training_members_place(self) -> None:
        here = self._spared().node("n3", conditions=SICK).cordon("n1").settle().after(1).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)

    def test_but_of_one_that_is_lost(self) -> None:
        here = self._spared().node("n3", conditions=SICK).deleted(0, grace=0).pod(0, gone=True).settle()
        assert sorted(nodes_of(here)) == ["n2", "n3"]

    def test_one_on_a_node_that_must_be_left_goes(self) -> None:
        here = self._spared().cordon("n3").settle().after(1).settle()
        assert "digits-ab12-2" not in here.spares()


class TestATaintThatIsToleratedForAWhile:
    def _tainted(self, *tolerations: Toleration, added: float | None = 0, grace: int = 120) -> Job:
        when = START - timedelta(seconds=added) if added is not None else None
        told = Taint(key="maintenance", effect="NoExecute", added=when)
        here = job(disruption={"replacement_timeout_seconds": 600}).running(world=2)
        return here.pod(0, tolerations=tolerations, grace=grace).node("n1", taints=(told,))

    def _for(self, seconds: int | None, key: str = "maintenance") -> Toleration:
        return Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=seconds)

    @pytest.mark.parametrize(("seconds", "added", "half"), [(60, 0, 90), (60, 40, 70), (60, None, 90), (3600, 0, 600)])
    def test_its_pod_is_killed_when_its_grace_is_over_after_that(
        self, seconds: int, added: float | None, half: int
    ) -> None:
        here = self._tainted(self._for(seconds), added=added).settle()
        assert here.intent is not None
        assert here.intent.cause == "node n1 has the taint maintenance:NoExecute"
        assert here.intent.ready_by == START + timedelta(seconds=half)

    def test_the_save_is_over_before(self) -> None:
        here = self._tainted(self._for(20), grace=5)
        assert {said.seconds for said in leaves(here.plan()).values()} == {20 + 5 - 5}

    @pytest.mark.parametrize(
        "tolerations",
        [
            [(None, "maintenance")],
            [(None, "maintenance"), (10, "maintenance")],
            [(10, "other"), (None, "maintenance")],
        ],
    )
    def test_one_that_is_tolerated_for_ever_is_none(self, tolerations: list[tuple[int | None, str]]) -> None:
        """Of several tolerations Kubernetes counts the first that matches the taint."""
        here = self._tainted(*(self._for(seconds, key) for seconds, key in tolerations)).settle().after(10)
        assert here.settle().intent is None

    def test_nor_does_a_run_count_seconds_for_a_taint_that_ends_no_pod(self) -> None:
        here = job(disruption={}).running(world=2)
        here = here.pod(0, tolerations=(Toleration(operator="Exists", toleration_seconds=5),))
        assert here.taint("n1", "maintenance", "NoSchedule").settle().intent is None


class TestAFaultDuringAHandOver:
    """The leaver has had a part in the hand-over."""

    def _handing(self) -> Job:
        here = job(disruption={}).having(signals=(FAULT,)).running(world=2)
        here = here.cordon("n1").settle().after(1).settle().ready().settle()
        assert here.now.next is not None
        assert here.now.next.plan is not None
        return here

    def test_one_on_the_leavers_node_ends_both_runs_without_a_save(self) -> None:
        here = self._handing().node("n1", cordoned=True, conditions=SPOILT).settle()
        assert here.intent is not None
        assert (here.intent.disruption, here.intent.leave) == (Disruption.NODE_FAULT, True)
        assert {number: said.lost for number in (0, 1, 2) if isinstance(said := here.assignment(number), Leave)} == {
            0: (1, 2),
            1: (1, 2),
            2: (1, 2),
        }

    def test_the_next_run_is_one_of_new_members(self) -> None:
        here = self._handing().node("n1", cordoned=True, conditions=SPOILT).settle()
        assert creates(here.history[-1]) == [] or here.names()[-1] != "2"
        assert here.now.next is not None
        assert not set(here.now.next.members) & {"digits-ab12-1", "digits-ab12-2"}

    def test_one_on_a_node_without_a_training_member_is_none(self) -> None:
        here = self._handing()
        here = here.having(nodes=(*here.snapshot.nodes, NodeView(name="n7", conditions=SPOILT))).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.NODE_LEAVING
