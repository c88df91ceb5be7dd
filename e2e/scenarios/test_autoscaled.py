"""Karpenter adds and removes the nodes under a training job: it trains on, in the size that there is room for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.harness.handover import Way
from e2e.scenarios import lanes
from e2e.scenarios.conftest import MakePool, Train, Undisturbed
from e2e.scenarios.training import START_SECONDS, Config, Training, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

PACE = {"PACE_SECONDS": "0.3", "PACE_HOLDS": "5", "PACE_HOLD_SECONDS": "3"}
TWO = Config(members=2, epochs=6)
MOVING = Trouble(environ=PACE | {"PACED_RUNS": "9"})
THREE = Config(members=3, batch=48, epochs=12)
ELASTIC = Trouble(
    environ=PACE | {"PACED_RUNS": "9"},
    spec={
        "elastic": {"minReplicas": 3, "maxReplicas": 4, "growAfterSeconds": 120},  # all that find room come at once
        "disruption": {"replacementTimeoutSeconds": 10},
    },
)
LEAVE_SECONDS = 120
CONSOLIDATION_SECONDS = 180
GRACE = "300s"
REPLACED_SECONDS = 360
BLOCKED_SECONDS = 120
"""Karpenter reports the same about a node once a minute, whatever the reason."""


def test_a_node_that_karpenter_launches_takes_over_from_one_that_it_removes(
    pool: MakePool, train: Train, undisturbed: Undisturbed
) -> None:
    with pool(nodes=3) as nodes, train(TWO, MOVING, on=nodes.name) as training:
        training.trains(steps=4)
        leaves, first = training.node(rank=0), training.nodes()
        nodes.removes(leaves)
        training.trains(steps=4, run=2)
        nodes.loses(leaves, seconds=LEAVE_SECONDS)
        came = training.nodes() - first
        finishes(training)
    assert len(first) == 2
    assert len(came) == 1
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(TWO))


def test_a_training_follows_the_nodes_that_its_pool_may_have(
    pool: MakePool, train: Train, undisturbed: Undisturbed
) -> None:
    with pool(nodes=3) as nodes, train(THREE, ELASTIC, on=nodes.name) as training:
        training.trains(steps=4)
        training.may_shrink_to(2)
        leaves, stays = training.node(rank=2), training.node(rank=0)
        with training.log(rank=0) as log:  # no member reports a larger run: only its log shows that it is current
            nodes.allows(2)
            nodes.removes(leaves)
            log.wait("PACE run 2: 4 steps", seconds=START_SECONDS)
            nodes.loses(leaves, seconds=LEAVE_SECONDS)
            training.scales(replicas=4)
            nodes.allows(4)
            log.wait("PACE run 3: 4 steps", seconds=START_SECONDS)
            grown = nodes.nodes()
            training.scales(replicas=2)
            log.wait("PACE run 4: 4 steps", seconds=START_SECONDS)
        training.has_pods(2)
        emptied = grown - training.nodes()
        for node in emptied:
            nodes.loses(node, seconds=CONSOLIDATION_SECONDS)
        nodes.says(f"DisruptionBlocked: Pdb .*{training.job.namespace}/", stays, seconds=BLOCKED_SECONDS)
        finishes(training)
    verdict = training.verdict()
    lost = (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated, verdict.steps_without_evidence)
    assert len(emptied) == 2
    assert training.worlds() == [3, 2, 4, 2]
    assert training.ways() == [Way.LIVE] * 3
    assert lost == (0, 0, 0, 0)
    assert training.batches() == undisturbed(replace(THREE, members=2)).batches  # the same in every size


@pytest.mark.chaos
@pytest.mark.parametrize("ends", ["drift", "expiry"])
def test_a_training_leaves_nodes_that_karpenter_replaces_within_their_grace(
    pool: MakePool, train: Train, undisturbed: Undisturbed, ends: str
) -> None:
    expires = {"expireAfter": "60s"} if ends == "expiry" else {}
    with pool(nodes=4, terminationGracePeriod=GRACE, **expires) as nodes, train(TWO, MOVING, on=nodes.name) as training:
        training.trains(steps=4)
        first = nodes.nodes()
        nodes.changes(expireAfter="Never")  # of nodes that come from now on
        if ends == "drift":
            nodes.changes(labels={lanes.LABEL: nodes.name, "edition": "second"})
        for node in first:
            nodes.loses(node, seconds=REPLACED_SECONDS)
        finishes(training)
    assert len(first) == 2
    assert set(training.ways()) == {Way.LIVE}
    assert training.verdict() == nothing_lost(undisturbed(TWO))


@pytest.mark.chaos
def test_a_node_that_is_not_given_time_costs_no_step(pool: MakePool, train: Train, undisturbed: Undisturbed) -> None:
    with pool(nodes=3, terminationGracePeriod="30s") as nodes, train(TWO, MOVING, on=nodes.name) as training:
        training.trains(steps=4)
        leaves = training.node(rank=1)
        nodes.removes(leaves)  # its pods have a longer grace: Karpenter deletes them at once
        nodes.loses(leaves, seconds=LEAVE_SECONDS)
        training.trains(steps=4, run=2)
        finishes(training)
    assert training.verdict() == nothing_lost(undisturbed(TWO))


def finishes(training: Training) -> None:
    """Trains the rest without anything to wait for, and says what the changes have cost."""
    training.hurries()
    training.completes()
    for run, seconds in training.pauses().items():
        print(f"run {run} took over, and the member that waited longest stood still for {1000 * seconds:.0f} ms")
