"""A HorizontalPodAutoscaler, Kubernetes' own, scales a training job by /scale and counts its members."""

from __future__ import annotations

import pytest

from e2e.harness.handover import Way
from e2e.harness.horizontal import Horizontal, Metric
from e2e.harness.lab import Lab
from e2e.harness.watching import Object
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import START_SECONDS, Config, Trouble

pytestmark = pytest.mark.cluster

TWO = Config(members=2, batch=48, epochs=12)
ELASTIC = Trouble(
    environ={"PACE_SECONDS": "0.3", "PACE_HOLDS": "5", "PACE_HOLD_SECONDS": "2", "PACED_RUNS": "9"},
    spec={"elastic": {"minReplicas": 2, "maxReplicas": 4}},
)
SCALED_SECONDS = 120


def test_a_training_follows_the_metric_of_a_horizontal_pod_autoscaler(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with Metric(lab, value=100) as metric, train(TWO, ELASTIC) as training:
        training.trains(steps=4)
        with Horizontal(training.job, least=2, most=4) as autoscaler, training.log(rank=0) as log:
            content = autoscaler.sees(2, seconds=SCALED_SECONDS)
            metric.value = 150  # half as many again as two
            autoscaler.wants(3, seconds=SCALED_SECONDS)
            metric.value = 100
            log.wait("PACE run 2: 4 steps", seconds=START_SECONDS)
            grown = autoscaler.sees(3, seconds=SCALED_SECONDS)
            metric.value = 60  # three fifths of three, and no less than a whole one
            autoscaler.wants(2, seconds=SCALED_SECONDS)
            metric.value = 100
            log.wait("PACE run 3: 4 steps", seconds=START_SECONDS)
            shrunk = autoscaler.sees(2, seconds=SCALED_SECONDS)
            training.has_pods(2)
            selected, members = training.selected(), training.members()
            training.hurries()
            training.completes()
    verdict = training.verdict()
    lost = (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated, verdict.steps_without_evidence)
    for status in (content, grown, shrunk):
        assert conditions(status) >= {("AbleToScale", "True"), ("ScalingActive", "True"), ("ScalingLimited", "False")}
    assert selected == members
    assert training.worlds() == [2, 3, 2]
    assert training.ways() == [Way.LIVE] * 2
    assert lost == (0, 0, 0, 0)
    assert training.batches() == undisturbed(TWO).batches


def conditions(status: Object) -> set[tuple[str, str]]:
    """Whether it could read and write the scale, had a metric, and was free to want what it wanted."""
    return {(found["type"], found["status"]) for found in status["conditions"]}
