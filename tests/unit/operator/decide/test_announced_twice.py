"""Announcements beside others: what came first says nothing about how long a node lasts that announces its end now."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.state.snapshot import NodeCondition, NodeView, Taint
from tests.support.jobs import Job, job, killed, leaves

SIX = tuple(NodeView(name=f"n{number}") for number in range(1, 7))
SPOT = Taint(key="aws-node-termination-handler/spot-itn", effect="NoSchedule")


def _taint(here: Job, seconds: int) -> Taint:
    """As it was put on the node so long ago."""
    return SPOT.model_copy(update={"added": here.snapshot.now - timedelta(seconds=seconds)})


class TestADeadlineAfterSomethingElse:
    def test_it_counts_from_its_own_first_sight_after_a_wish(self) -> None:
        here = job(disruption={"on_cordon": "MoveIfRoom"}).running(world=2).cordon("n1").settle().after(1).settle()
        here = here.after(6000).settle().node("n1", taints=(SPOT,)).settle()
        assert leaves(here.plan()) == {}
        assert here.intent is not None
        assert here.intent.ready_by == here.snapshot.now + timedelta(seconds=30)
        assert {said.seconds for said in leaves(here.after(30).plan()).values()} == {120 - 30 - 5}

    def test_it_counts_from_its_own_first_sight_where_a_save_goes_on(self) -> None:
        here = job().running(world=2).leaving("n2").after(200).settle().node("n1", taints=(SPOT,)).settle()
        assert here.intent is not None
        assert here.intent.deadline == here.snapshot.now + timedelta(seconds=120 - 5 + 30)
        later = here.after(20).settle()
        assert later.intent == here.intent

    def test_one_that_is_withdrawn_is_forgotten(self) -> None:
        here = job(disruption={"on_cordon": "MoveIfRoom"}).running(world=2).cordon("n1").settle().after(1).settle()
        here = here.node("n1", taints=(SPOT,)).settle().after(5).node("n1", taints=()).settle()
        assert here.intent is not None
        assert here.intent.deadline_seen is None

    def test_it_counts_on_where_another_reason_comes_first(self) -> None:
        here = job(disruption={}).running(world=2).node("n1", taints=(SPOT,)).settle()
        announced = here.snapshot.now
        here = here.after(20).deleted(1, grace=600).settle().after(10).settle().after(1).settle()
        assert here.intent is not None
        assert here.intent.deadline_seen == announced

    @pytest.mark.parametrize("first", ["n1", "n2"])
    def test_of_two_nodes_the_one_that_goes_first_says_when_all_have_to_be_saved(self, first: str) -> None:
        here = job(disruption={}).running(world=2)
        for node in ("n1", "n2"):
            here = here.node(node, taints=(_taint(here, 80 if node == first else 20),))
        here = here.settle()
        assert leaves(here.plan()) == {}
        half = (120 - 80) // 2
        assert {said.seconds for said in leaves(here.after(half).plan()).values()} == {half - 5}

    @pytest.mark.parametrize("first", ["aws-node-termination-handler/spot-itn", "example.com/reclaimed"])
    def test_of_two_announcements_of_one_node_the_end_that_comes_first_says_when_all_have_to_be_saved(
        self, first: str
    ) -> None:
        """Whichever of them the node shows first."""
        ours = SignalRow.model_validate(
            {"name": "ours", "source": "Taint", "key": "example.com/reclaimed", "reaction": "VacateByDeadline"}
            | {"deadlineSeconds": 120}
        )
        here = job(disruption={}).running(world=2).having(signals=(ours,))
        now = here.snapshot.now
        shown = tuple(
            Taint(key=key, effect="NoSchedule", added=now - timedelta(seconds=80 if key == first else 20))
            for key in ("aws-node-termination-handler/spot-itn", "example.com/reclaimed")
        )
        here = here.node("n1", taints=shown).settle()
        half = (120 - 80) // 2
        assert {said.seconds for said in leaves(here.after(half).plan()).values()} == {half - 5}

    @pytest.mark.parametrize(("most", "seconds"), [(600, 120 - 80 - 1 - 5), (20, 20)])
    @pytest.mark.parametrize("nodes", [("n1", "n2"), ("n2", "n1")])
    def test_of_two_leavers_the_one_whose_node_ends_first_says_how_long_both_may_save_and_the_job_says_the_most(
        self, nodes: tuple[str, str], most: int, seconds: int
    ) -> None:
        here = job(disruption={"exit_timeout_seconds": most}).having(nodes=SIX).running(world=3)
        for node, ago in zip(nodes, (80, 20), strict=True):
            here = here.node(node, taints=(_taint(here, ago),))
        here = here.settle().after(1).settle().ready().settle()
        upcoming = here.now.next
        assert upcoming is not None
        assert upcoming.plan is not None
        assert upcoming.plan.seconds == seconds


class TestAMemberIsLostWhileAnotherNodeIsToBeLeft:
    """A node that need not be left: its member goes on with the others."""

    def _lost(self, world: int, **spec: object) -> Job:
        here = job(disruption={"on_cordon": "MoveIfRoom"}, **spec).running(world).cordon("n1").settle()
        here = here.after(1).settle().after(60).settle()
        return here.ended(1, ExitKind.FAILED, error=killed()).settle()

    def test_it_goes_on_in_its_pod_beside_the_replacement(self) -> None:
        here = self._lost(2)
        assert leaves(here.plan()) == {}
        after = here.after(5).ready().settle()
        assert after.run_plan is not None
        assert [member.name for member in after.run_plan.members] == ["digits-ab12-0", "digits-ab12-2"]

    def test_a_smaller_run_has_it_too(self) -> None:
        here = self._lost(3, elastic={"min_replicas": 1, "max_replicas": 4})
        assert here.run_plan is not None
        assert [member.name for member in here.run_plan.members] == ["digits-ab12-0", "digits-ab12-2"]
        assert here.intent is not None  # and the node is still to be left
        assert here.intent.cause == "node n1 is cordoned"


class TestAFalseAlarmOnEveryNode:
    def test_a_job_that_need_not_leave_does_not_come_to_hold_them_all(self) -> None:
        names = [f"n{number:02}" for number in range(1, 13)]
        restarts = (NodeCondition(type="FrequentKubeletRestart", status="True"),)
        here = job(disruption={}).having(nodes=tuple(NodeView(name=name) for name in names)).running(world=1)
        here = here.having(nodes=tuple(NodeView(name=name, conditions=restarts) for name in names))
        for _ in range(20):
            here = here.after(301).settle().ready().settle()
            assert len([pod for pod in here.living() if not pod.deleting]) <= 1 + 3 + 1
            assert leaves(here.plan()) == {}


class TestValues:
    @pytest.mark.parametrize("value", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "253402300799"])
    @pytest.mark.parametrize("timeout", [0, 30])
    def test_a_time_that_no_node_ends_at_stops_no_decision(self, value: str, timeout: int) -> None:
        ours = SignalRow.model_validate(
            {
                "name": "ours",
                "source": "Annotation",
                "key": "a/b",
                "reaction": "VacateByDeadline",
                "deadlineInValue": True,
            }
        )
        here = job(disruption={"replacement_timeout_seconds": timeout}).running(world=2).having(signals=(ours,))
        here = here.node("n1", annotations={"a/b": value}).settle().after(2).settle()
        here = here.after(31).settle()
        assert {said.seconds for said in leaves(here.plan()).values()} <= {600}
