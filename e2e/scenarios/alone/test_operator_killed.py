"""The operator's leader dies in the middle of a move: its successor finishes it, and nothing is lost."""

from __future__ import annotations

import pytest

from e2e.harness import observed
from e2e.harness.handover import Way
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

RECEIVING = "receiving newcomer 2"
HELD = {"HOLD": RECEIVING, "HOLD_SECONDS": "7", "PACE_SECONDS": "0.3"}
SLOW = Trouble(environ={"PACE_SECONDS": "0.5"}, heard=False)  # it must still train when the next leader takes over


@pytest.mark.parametrize(
    ("what", "moment"),
    [
        pytest.param("the intent in status", observed.has_intent, id="intent-in-status"),
        pytest.param("the first patched pod", observed.asked_to_leave, id="first-patched-pod", marks=pytest.mark.chaos),
    ],
)
def test_a_leader_killed_in_the_middle_of_a_move(
    lab: Lab, train: Train, undisturbed: Undisturbed, what: str, moment: observed.Condition
) -> None:
    with train(trouble=SLOW) as training:
        training.trains(steps=3)
        with lab.drain(training.node(rank=1)) as drain:
            training.watch.wait(what, moment, seconds=90)
            lab.operator.kill(lab.operator.leader())
            drained = drain.finish()
        training.completes()
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert len(training.runs()) == 2


@pytest.mark.chaos
def test_a_leader_killed_while_a_newcomer_receives(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train(trouble=Trouble(script="holding.py", environ=HELD, heard=False)) as training:
        training.trains(steps=4)
        with lab.drain(training.node(rank=1)) as drain:
            training.holds(RECEIVING, training.newcomer(run=2))
            lab.operator.kill(lab.operator.leader())
            drained = drain.finish()
        training.completes()
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))
