"""`kubectl drain` under a training job: it comes back with 0, and the training ends as if nothing had happened."""

from __future__ import annotations

import pytest

from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, nothing_lost

pytestmark = pytest.mark.cluster

TWO = Config(members=2)
THREE = Config(members=3, batch=48, epochs=2, deterministic=True)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TWO, id="two-members", marks=pytest.mark.chaos),  # test_tinygpt has the same drain
        pytest.param(THREE, id="three-deterministic", marks=pytest.mark.chaos),
    ],
)
def test_a_drained_training_goes_on_at_the_next_step(
    lab: Lab, train: Train, undisturbed: Undisturbed, config: Config
) -> None:
    with train(config) as training:
        training.trains(steps=12)
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        status = training.completes()
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(config))
    assert len(training.runs()) == 2
    assert status["failures"]["infrastructure"] + status["failures"]["code"] == 0


def test_two_nodes_drained_at_once(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train(TWO) as training:
        training.trains(steps=12)
        nodes = training.node(rank=0), training.node(rank=1)
        assert nodes[0] != nodes[1]
        training.shows_steps(1)
        with lab.drain(nodes[0]) as first, lab.drain(nodes[1]) as second:
            assert first.still_waits()
            drained = first.finish(), second.finish()
        training.completes()
    assert [drain.status for drain in drained] == [0, 0], drained
    assert training.verdict() == nothing_lost(undisturbed(TWO))
