"""The node that is drained is the operator's too: its leader goes first, and the next one finishes the move."""

from __future__ import annotations

import pytest

from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.lanes import OPERATORS
from e2e.scenarios.training import Config, nothing_lost

pytestmark = pytest.mark.cluster


@pytest.mark.chaos
def test_the_drained_node_is_the_operators_too(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    leaders_node = lab.operator.leader()["spec"]["nodeName"]
    with train(on=OPERATORS) as training:
        training.trains(steps=12)
        assert leaders_node in (training.node(rank=0), training.node(rank=1))
        with lab.drain(leaders_node) as drain:
            drained = drain.finish()
        training.completes()
    assert drained.status == 0, drained.output
    assert lab.operator.leader()["spec"]["nodeName"] != leaders_node
    assert training.verdict() == nothing_lost(undisturbed(Config()))
