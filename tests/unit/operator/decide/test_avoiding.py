"""A node where no new member should train: present ones stay, and new pods there are kept idle, or not used."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import LiveRefused
from perdure_operator.decide.draft import clock
from perdure_operator.state.snapshot import NodeCondition, NodeView
from tests.support.jobs import Job, job, leaves

AVOID = SignalRow.model_validate({"name": "ours", "source": "Label", "key": "example.com/old", "reaction": "Avoid"})
OLD = {"example.com/old": "yes"}


def avoiding(world: int, *nodes: str, of: int = 4, **spec: Any) -> Job:
    """Runs on the first nodes; then these have the label."""
    there = tuple(NodeView(name=f"n{number + 1}") for number in range(of))
    elastic = Elastic(**{"min_replicas": 1, "max_replicas": 8, "grow_after_seconds": 0, **spec.pop("elastic", {})})
    here = job(disruption=spec.pop("disruption", {}), elastic=elastic, **spec).having(nodes=there, signals=(AVOID,))
    here = here.status(live_refused=LiveRefused(template="t1", why="its model is sharded"))
    here = here.running(world).after(60).settle().ready().settle()
    for name in nodes:
        here = here.node(name, labels=OLD)
    return here.settle()


def nodes_of(here: Job) -> list[str]:
    return sorted(member.node for member in here.run_plan.members) if here.run_plan else []


class TestWhoTrainsThere:
    def test_stays(self) -> None:
        here = avoiding(2, "n1")
        assert here.settle().after(600).settle().intent is None
        assert here.condition(ConditionType.DISRUPTED).status == "False"

    def test_stays_where_another_member_leaves(self) -> None:
        here = avoiding(2, "n1").cordon("n2").settle().after(1).settle().ready().settle()
        assert nodes_of(here) == ["n1", "n3"]

    def test_a_job_begins_there_sooner_than_not_at_all(self) -> None:
        here = job().having(signals=(AVOID,)).starting(2).node("n1", labels=OLD).ready().settle()
        assert nodes_of(here) == ["n1", "n2"]
        assert here.intent is None


class TestWhoIsNew:
    def test_who_makes_the_run_larger_does_not_train_there_and_its_successor_keeps_off(self) -> None:
        here = avoiding(2, "n3").spec(replicas=3).settle().after(1).settle()
        roles = {pod.name.rpartition("-")[2]: (pod.role, pod.node) for pod in here.living()}
        assert roles["2"] == ("former", "n3")
        assert roles["3"] == ("standby", "n4")
        here = here.ready().settle().after(5).settle()
        assert nodes_of(here) == ["n1", "n2", "n4"]
        assert [pod.name for pod in here.living() if pod.node == "n3" and not pod.deleting] == []

    def test_without_another_node_the_run_trains_on_as_it_is_and_holds_nothing(self) -> None:
        here = avoiding(2, "n1", "n2", "n3", of=3).spec(replicas=3).settle().after(1).settle()
        for _ in range(30):
            here = here.ready().after(60).settle()
        assert nodes_of(here) == ["n1", "n2"]
        assert here.now.growth is not None
        assert len([pod for pod in here.living() if not pod.deleting]) <= 2 + 3 + 1

    def test_where_no_other_node_has_room_the_message_says_why_and_what_ends_the_wait(self) -> None:
        here = avoiding(2, "n3", of=3).spec(replicas=3, elastic=None).settle().after(1).settle()
        until = clock(here.snapshot.now + timedelta(seconds=here.snapshot.spec.start_timeout_seconds))
        here = here.pod(3, node="", unschedulable="0/3 nodes are available: anti-affinity").settle()
        why = "no node for digits-ab12-3: 0/3 nodes are available: anti-affinity"
        held = "pods of this job keep it off nodes where no member may start: node n3 has the label example.com/old=yes"
        said = here.condition(ConditionType.DISRUPTED).message
        assert said == f"3 members are wanted; the run trains on while new members start, until {until}: {why}; {held}"

    def test_once_the_label_is_gone_it_trains_there(self) -> None:
        here = avoiding(2, "n1", "n2", "n3", of=3).spec(replicas=3).settle().after(1).settle().ready().settle()
        assert nodes_of(here) == ["n1", "n2"]
        for name in ("n1", "n2", "n3"):
            here = here.node(name, labels={})
        for _ in range(5):
            here = here.settle().ready().after(60)
        assert len(nodes_of(here.settle())) == 3
        assert [pod.name for pod in here.living() if pod.role == "former" and not pod.deleting] == []

    def test_who_takes_the_place_of_a_member_that_need_not_leave_does_not_train_there(self) -> None:
        here = avoiding(2, "n3", disruption={"on_cordon": "MoveIfRoom"}).cordon("n1").settle().after(1).settle()
        here = here.ready().settle().after(1).settle()
        assert nodes_of(here.ready().settle()) == ["n2", "n4"]

    def test_who_takes_the_place_of_one_that_must_trains_there_sooner_than_that_all_stop(self) -> None:
        here = avoiding(2, "n3", of=3, elastic={"min_replicas": 2}).cordon("n1").settle().after(1).settle()
        here = here.ready().settle()
        assert leaves(here.plan()) == {}
        assert nodes_of(here) == ["n2", "n3"]

    def test_who_takes_the_place_of_one_that_is_lost_trains_there(self) -> None:
        here = avoiding(2, "n3", of=3, elastic={"min_replicas": 2}).deleted(0, grace=0).pod(0, gone=True)
        here = here.cordon("n1").settle().ready().settle().after(5).settle()
        assert nodes_of(here) == ["n2", "n3"]


class TestSpares:
    def test_one_there_stays_and_is_reported(self) -> None:
        here = avoiding(2, "n3", elastic={"spares": 1})
        assert here.names() == ["0", "1", "2"]
        for _ in range(5):
            here = here.after(301).settle()
        assert here.names() == ["0", "1", "2"]
        said = here.condition(ConditionType.SIZED).message
        assert said.endswith("0 of 1 spares are warm: digits-ab12-2: node n3 has the label example.com/old=yes")

    def test_it_does_not_make_the_run_larger(self) -> None:
        here = avoiding(2, "n3", elastic={"spares": 1}).spec(replicas=3).settle().after(1).settle()
        assert here.now.next is not None
        assert here.now.next.members == ("digits-ab12-3",)
        assert nodes_of(here.ready().settle().after(5).settle()) == ["n1", "n2", "n4"]


class TestChoosing:
    def test_a_job_may_choose_it_and_then_no_member_leaves(self) -> None:
        sick = (NodeCondition(type="KernelDeadlock", status="True"),)
        here = job(disruption={"signals": {"npd-kernel-deadlock": "Avoid"}}).running(2).node("n1", conditions=sick)
        assert here.settle().after(60).settle().intent is None

    def test_what_makes_members_leave_counts_more(self) -> None:
        here = avoiding(2, "n1").cordon("n1").settle()
        assert here.intent is not None
        assert here.intent.cause == "node n1 is cordoned"
