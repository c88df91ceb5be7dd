"""A member goes without a drain: deleted by name it saves; of one that is killed the others keep where they stood."""

from __future__ import annotations

import pytest

from e2e.harness import operator
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import AHEAD, Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster


@pytest.mark.chaos
def test_a_deleted_member_makes_all_ranks_save(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train() as training:
        training.trains(steps=12)
        name = training.member(rank=1)["metadata"]["name"]
        lab.kubectl("delete", "pod", name, "--namespace", training.job.namespace)
        status = training.completes()
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert len(training.runs()) == 2
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)


@pytest.mark.chaos  # tests/handover/test_images kills trainers at each place; below the whole pod is killed
def test_a_killed_trainer_costs_no_finished_step(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train(trouble=Trouble(environ={"PACE_SECONDS": "0.3"})) as training:
        training.trains(steps=13)  # the last commit is that of step 10, and the next is two seconds away
        operator.kill(lab.trainers(training.member(rank=1), "paced.py"))
        status = training.completes()
    verdict = training.verdict()  # only the killed trainer could have reported its last steps
    assert (training.steps_redone(rank=0), verdict.samples_repeated) == (0, 0)
    assert max(verdict.steps_lost, status["stepsLost"]) <= AHEAD
    assert verdict.weights == undisturbed(Config()).weights
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 1)


@pytest.mark.parametrize("spares", [1, pytest.param(0, marks=pytest.mark.chaos)])
def test_those_that_are_left_go_on_at_once_with_a_spare_or_alone(
    lab: Lab, train: Train, undisturbed: Undisturbed, spares: int
) -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 2, "spares": spares}
    paced = {"PACE_SECONDS": "0.3", "PACE_HOLDS": "10"}
    with train(trouble=Trouble(environ=paced, spec={"elastic": elastic})) as training:
        training.trains(steps=3)
        training.may_shrink_to(1)
        stay = {training.member(rank=0)["metadata"]["uid"]}
        if spares:
            stay |= {spare["metadata"]["uid"] for spare in training.has_warm_spares()}
        lab.kill(training.member(rank=1))
        status = training.completes()
    verdict = training.verdict()  # as above
    assert training.planned(2) == stay
    assert len(stay) == 1 + spares
    if spares:  # another number of ranks rounds differently
        assert verdict.weights == undisturbed(Config()).weights
    assert (training.steps_redone(rank=0), verdict.samples_repeated) == (0, 0)
    assert max(verdict.steps_lost, status["stepsLost"]) <= AHEAD
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 1)
