"""`kubectl scale` under a training job: other members, the same global batches, and a selector for the members only."""

from __future__ import annotations

import pytest

from e2e.harness.handover import Way
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import START_SECONDS, Config, Trouble

pytestmark = pytest.mark.cluster

THREE = Config(members=3, batch=48)
TWO = Config(members=2, batch=48, epochs=6)
THREE_PACED_RUNS = Trouble(environ={"PACE_SECONDS": "0.3", "PACED_RUNS": "3"})
ELASTIC_TWO = Config(members=2, batch=48, epochs=12)
ELASTIC = Trouble(
    environ={"PACE_SECONDS": "0.3", "PACE_HOLDS": "5", "PACE_HOLD_SECONDS": "2", "PACED_RUNS": "9"},
    spec={"elastic": {"minReplicas": 2, "maxReplicas": 4}},
)
TWO_PACED_RUNS = Trouble(environ={"PACED_RUNS": "2"})


@pytest.mark.chaos  # test_horizontal scales a training up and down
def test_a_training_scaled_down_and_up_trains_each_batch_as_if_nothing_had_happened(
    train: Train, undisturbed: Undisturbed
) -> None:
    with train(THREE, TWO_PACED_RUNS) as training:
        training.trains(steps=8)
        training.scales(replicas=2)
        training.trains(steps=8, run=2)
        training.has_pods(2)  # a leaver is a member until it has ended
        selected = training.selected()
        members = training.members()
        training.scales(replicas=3)
        status = training.completes()
    verdict = training.verdict()
    lost = (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated, verdict.steps_without_evidence)
    assert training.worlds() == [3, 2, 3]
    assert lost == (0, 0, 0, 0)
    assert training.batches() == undisturbed(THREE).batches
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)
    assert selected == members


@pytest.mark.chaos
def test_a_training_scaled_up_and_down_in_quick_succession_trains_each_batch_once(
    train: Train, undisturbed: Undisturbed
) -> None:
    with train(TWO, THREE_PACED_RUNS) as training:
        training.trains(steps=4)
        with training.log(rank=0) as log:  # no member reports a larger run: only its log shows that it is current
            for run, replicas in enumerate((4, 3, 2), 2):
                training.scales(replicas=replicas)
                log.wait(f"PACE run {run}: 1 steps", seconds=START_SECONDS)
        training.completes()
    verdict = training.verdict()
    lost = (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated, verdict.steps_without_evidence)
    assert training.worlds() == [2, 4, 3, 2]
    assert training.ways()[0] is Way.LIVE
    assert lost == (0, 0, 0, 0)
    assert training.batches() == undisturbed(TWO).batches


@pytest.mark.chaos
def test_an_elastic_training_changes_its_size_without_a_stop(train: Train, undisturbed: Undisturbed) -> None:
    with train(ELASTIC_TWO, ELASTIC) as training:
        training.trains(steps=4)
        with training.log(rank=0) as log:
            for run, replicas in enumerate((4, 3, 2), 2):
                training.scales(replicas=replicas)
                log.wait(f"PACE run {run}: 4 steps", seconds=START_SECONDS)
        training.has_pods(2)
        training.hurries()
        training.completes()
    verdict = training.verdict()
    lost = (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated, verdict.steps_without_evidence)
    assert training.worlds() == [2, 4, 3, 2]
    assert training.ways() == [Way.LIVE] * 3
    assert lost == (0, 0, 0, 0)
    assert training.batches() == undisturbed(ELASTIC_TWO).batches


@pytest.mark.chaos
def test_the_scale_subresource_selects_members_of_this_job_and_no_other_pod(train: Train) -> None:
    with train() as training:
        training.trains(steps=2)
        selector = training.selector()
        roles = training.roles_selected_by(selector)
        uid = training.uid
    assert roles == {"member"}
    assert uid in selector.values()
