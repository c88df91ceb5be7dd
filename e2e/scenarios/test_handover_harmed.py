"""A hand-over fails, or something else comes in between: training is not harmed by it, and moves all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.harness import operator
from e2e.harness.handover import Way
from e2e.harness.lab import Lab
from e2e.scenarios import lanes
from e2e.scenarios.conftest import SCRIPT, TRAINERS, Train, Undisturbed
from e2e.scenarios.training import IMAGE, Config, Training, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

RECEIVING = "receiving newcomer 2"
SLOW = {"PACE_SECONDS": "0.3"}
PATIENT = {"disruption": {"replacementTimeoutSeconds": 240}}


def held(moment: str, *, paced_runs: int = 1, seconds: int = 7) -> Trouble:
    """A training that stands still at this moment of a hand-over, usually for less time than the others would wait."""
    hold = {"HOLD": moment, "HOLD_SECONDS": str(seconds), "PACED_RUNS": str(paced_runs)}
    return Trouble(script="holding.py", environ=SLOW | hold)


@pytest.fixture
def images(lab: Lab) -> Iterator[Lab]:
    """Every node has all images again afterwards."""
    yield lab
    gives_back_the_image(lab)


def gives_back_the_image(lab: Lab) -> None:
    lab.image(IMAGE, [SCRIPT, *TRAINERS.glob("*.py")])


def costs_nothing(training: Training) -> tuple[int, int]:
    """What the job has used up of its budgets."""
    failures = training.completes()["failures"]
    return int(failures["code"]), int(failures["infrastructure"])


def test_a_newcomer_killed_while_it_receives_is_replaced_by_another(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=held(RECEIVING, seconds=90)) as training:  # it must not go on before it is killed
        training.trains(steps=4)
        with lab.drain(training.node(rank=1)) as drain:
            newcomer = training.newcomer(run=2)
            training.holds(RECEIVING, newcomer)
            operator.kill(lab.trainers(newcomer, "holding.py"))
            drained = drain.finish()
        cost = costs_nothing(training)
    assert drained.status == 0, drained.output
    assert training.runs() == [1, 3]
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert cost == (0, 0)


@pytest.mark.chaos
def test_a_standby_whose_image_is_not_to_be_had_is_waited_for_while_everybody_trains(
    images: Lab, lane: str, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=Trouble(environ=SLOW, spec=PATIENT)) as training:
        training.trains(steps=4)
        drained_node = training.node(rank=1)
        for node in set(lanes.nodes(images, lane)) - {drained_node}:
            images.cluster.forget_image(IMAGE, node)
        with images.drain(drained_node) as drain, training.log(rank=0) as log:
            told = training.is_disrupted_by("ErrImagePull|ImagePullBackOff")
            log.wait(r"PACE run 1: \d+ steps", times=log.count(r"PACE run 1: \d+ steps") + 3, seconds=60)
            waited = drain.still_waits()
            gives_back_the_image(images)
            drained = drain.finish(seconds=240)
        cost = costs_nothing(training)
    assert "the run trains on while new members start" in told
    assert waited
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert cost == (0, 0)


@pytest.mark.chaos
def test_the_newcomers_node_is_drained_in_the_middle_of_the_hand_over(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    config = Config(epochs=6)
    with train(config, held(RECEIVING, paced_runs=2)) as training:
        training.trains(steps=4)
        with lab.drain(training.node(rank=1)) as first:
            newcomer = training.newcomer(run=2)
            training.holds(RECEIVING, newcomer)
            with lab.drain(newcomer["spec"]["nodeName"]) as second:
                drained = first.finish(), second.finish(seconds=180)
        cost = costs_nothing(training)
    assert [drain.status for drain in drained] == [0, 0], drained
    assert training.ways()[0] is Way.LIVE
    assert training.verdict() == nothing_lost(undisturbed(config))
    assert cost == (0, 0)


@pytest.mark.chaos
def test_a_job_suspended_in_the_middle_of_a_hand_over_goes_on_at_the_next_step(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=held(RECEIVING)) as training:
        training.trains(steps=4)
        with lab.drain(training.node(rank=1)) as drain:
            training.holds(RECEIVING, training.newcomer(run=2))
            training.suspends(suspend=True)
            drained = drain.finish()
        training.suspends(suspend=False)
        cost = costs_nothing(training)
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert cost == (0, 0)


@pytest.mark.chaos
def test_a_template_edited_in_the_middle_of_a_hand_over_moves_no_member(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=held(RECEIVING)) as training:
        training.trains(steps=4)
        with lab.drain(training.node(rank=1)) as drain:
            training.holds(RECEIVING, training.newcomer(run=2))
            training.edits_its_template()
            drained = drain.finish()
        cost = costs_nothing(training)
    assert drained.status == 0, drained.output
    assert training.runs() == [1, 2]
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert cost == (0, 0)
