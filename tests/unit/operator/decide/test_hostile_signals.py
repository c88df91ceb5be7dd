"""Unusual signals: wrong clocks, and one that comes and goes beside one that stays."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.api.spec import DisruptionPolicy, OnCordon
from perdure_operator.state.snapshot import NodeCondition, NodeView
from tests.support.jobs import PATIENT, Job, job

SICK = (NodeCondition(type="ReadonlyFilesystem", status="True"),)
NOTICE = SignalRow(
    name="ours",
    source=SignalSource.CONDITION,
    key="Leaving",
    reaction=Reaction.VACATE_BY_DEADLINE,
    deadline_seconds=120,
)


class TestClocks:
    """A notice of 120 s, whose beginning is given by the node's clock, or its writer's."""

    @pytest.mark.parametrize(
        ("ahead", "seconds"),
        [
            pytest.param(0, 115, id="right"),
            pytest.param(-60, 55, id="seen a minute late"),
            pytest.param(600, 115, id="ten minutes ahead: the node is gone long before that"),
            pytest.param(86_400, 115, id="a day ahead"),
            pytest.param(-600, 115, id="ten minutes behind: over before it was seen, and the node is there"),
            pytest.param(-(10**9), 115, id="no clock at all"),
        ],
    )
    def test_a_save_has_the_time_that_there_is(self, ahead: float, seconds: int) -> None:
        here = _noticed(job().running(world=2), ahead)
        assert here.intent is not None
        assert (here.intent.leave, here.intent.seconds) == (True, seconds)

    @pytest.mark.parametrize("ahead", [-600, 600])
    def test_the_deadline_does_not_move_while_it_is_looked_at(self, ahead: float) -> None:
        here = _noticed(job(disruption=PATIENT).running(world=2), ahead)
        assert here.intent is not None
        before = here.intent
        assert before.ready_by is not None
        after = here.after(20).settle().intent
        assert after is not None
        assert (after.ready_by, after.deadline_seen) == (before.ready_by, before.deadline_seen)


class TestBesideAnother:
    def test_a_signal_that_comes_and_goes_makes_no_member_each_time(self) -> None:
        here = _waits_for_room()
        before = here.now.next_member
        for _ in range(40):
            here = here.node("n2", conditions=SICK).settle().after(1).settle()
            here = here.node("n2", conditions=()).settle().after(1).settle()
        assert here.now.next_member - before <= 8

    def test_it_is_said_why_none_is_made(self) -> None:
        here = _waits_for_room()
        for _ in range(3):
            here = here.node("n2", conditions=SICK).settle().node("n2", conditions=()).settle()
        here = here.node("n2", conditions=SICK).settle()
        told = here.condition(ConditionType.DISRUPTED).message
        assert "signals like it were withdrawn 3 times in a row" in told

    def test_once_it_has_lasted_its_member_is_made(self) -> None:
        here = _waits_for_room()
        for _ in range(3):
            here = here.node("n2", conditions=SICK).settle().node("n2", conditions=()).settle()
        here = here.node("n2", conditions=SICK).settle()
        members = len(here.now.next.members) if here.now.next else 0
        assert members == 1
        assert (here.plan().requeue_after or 60) <= 8
        here = here.after(8).settle()
        assert here.now.next is not None
        assert len(here.now.next.members) == 2

    def test_a_deadline_waits_for_nothing(self) -> None:
        here = _waits_for_room()
        for _ in range(3):
            here = here.node("n2", conditions=SICK).settle().node("n2", conditions=()).settle()
        here = _noticed(here, 0, node="n2")
        assert here.now.next is not None
        assert len(here.now.next.members) == 2


def _noticed(here: Job, ahead: float, node: str = "n1") -> Job:
    since = here.snapshot.now + timedelta(seconds=ahead)
    shown = (NodeCondition(type="Leaving", status="True", since=since),)
    return here.having(signals=(NOTICE,)).node(node, conditions=shown).settle()


def _waits_for_room() -> Job:
    """A member need not leave its cordoned node, and its replacement does not start."""
    nodes = tuple(NodeView(name=f"n{number}") for number in range(1, 6))
    here = job(disruption=DisruptionPolicy(on_cordon=OnCordon.MOVE_IF_ROOM)).having(nodes=nodes).running(world=3)
    return here.cordon("n1").settle().after(1).settle()
