"""A node is drained and training does not stop: the membership changes between two batches, in the living processes."""

from __future__ import annotations

import pytest

from e2e.harness.handover import Way
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

SLOW = Trouble(environ={"PACE_SECONDS": "0.3"})  # it still trains when the newcomer is warm
SAVES_BEHIND = Trouble(environ={"PACE_SECONDS": "0.3", "PERDURE_BACKGROUND_BYTES": "0"})
"""Its cadence comes while an upload is under way, or a node is drained."""
SLOW_TWICE = Trouble(environ={"PACE_SECONDS": "0.3", "PACED_RUNS": "2"})
IN_PLACE = Trouble(environ={"PACE_SECONDS": "0.3", "PERDURE_LIVE": "no"})
LONG = Config(epochs=6)


@pytest.mark.chaos  # test_tinygpt has the drain, with saves in the background, and test_signals moves rank 0 live, too
@pytest.mark.parametrize("rank", [pytest.param(1, id="a-rank-that-follows"), pytest.param(0, id="rank-0")])
def test_a_drained_member_is_replaced_while_everybody_trains(
    lab: Lab, train: Train, undisturbed: Undisturbed, rank: int
) -> None:
    with train(trouble=SAVES_BEHIND) as training:
        training.trains(steps=4)
        stays = training.member(1 - rank)["metadata"]["uid"]
        with lab.drain(training.node(rank)) as drain:
            drained = drain.finish()
        told = training.says("Disrupted", "the run trains on while new members start, until")
        training.completes()
    assert stays in training.planned(2)
    assert drained.status == 0, drained.output
    assert "Cannot evict pod as it would violate the pod's disruption budget" in drained.output
    assert told["status"] == "True"
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))


@pytest.mark.chaos
def test_both_nodes_drained_one_after_the_other(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train(LONG, SLOW_TWICE) as training:
        training.trains(steps=4)
        for rank, run in ((1, 1), (0, 2)):
            training.trains(steps=1, run=run)
            with lab.drain(training.node(rank)) as drain:
                drained = drain.finish()
            assert drained.status == 0, drained.output
        training.completes()
    assert training.ways() == [Way.LIVE, Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(LONG))


def test_a_script_that_cannot_be_handed_over_goes_on_in_place(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train(trouble=IN_PLACE) as training:
        training.trains(steps=4)
        stays = training.member(0)["metadata"]["uid"]
        with lab.drain(training.node(1)) as drain:
            drained = drain.finish()
        training.completes()
    assert drained.status == 0, drained.output
    assert stays in training.planned(2)
    assert training.ways() == [Way.IN_PLACE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))
