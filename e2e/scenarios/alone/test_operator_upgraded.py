"""Helm replaces the operator under a training job, and puts the old one back: training does not notice."""

from __future__ import annotations

import pytest

from e2e.harness.lab import Lab
from e2e.scenarios.conftest import OPERATOR_VALUES, SIGNALS, Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

NEXT = "perdure-operator:next"
UPGRADE = {"image.tag": "next", "logLevel": "debug", "leaseSeconds": "10"}
PACE = {"PACE_SECONDS": "1", "PACE_HOLDS": "3", "PACE_HOLD_SECONDS": "4"}
LONG = Trouble(environ=PACE)  # it must still train when both moves are over
LEADER_SECONDS = 60.0


def test_an_operator_upgraded_and_rolled_back_disturbs_no_training(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    lab.cluster.operator_image(NEXT)
    old = lab.operator.leader_of("dev", seconds=LEADER_SECONDS)
    with train(trouble=LONG) as training:
        training.trains(steps=2)
        members = training.uids()
        lab.install(SIGNALS, **OPERATOR_VALUES, **UPGRADE)
        upgraded = lab.operator.leader_of("next", seconds=LEADER_SECONDS)
        lab.roll_back()
        back = lab.operator.leader_of("dev", seconds=LEADER_SECONDS)
        undrained = (training.runs(), training.uids())
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        status = training.completes()
    assert len({leader["metadata"]["uid"] for leader in (old, upgraded, back)}) == 3
    assert undrained == ([1], members)
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert training.runs() == [1, 2]
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)
