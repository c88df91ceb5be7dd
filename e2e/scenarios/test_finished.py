"""A finished job stays finished, applied again or deleted and applied again; another goes on from a commit of it."""

from __future__ import annotations

import pytest

from e2e.harness import evidence
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

AT_ONCE = {"PACED_RUNS": "0"}
HELD = {"PACE_HOLDS": "4"}
"""Fewer steps are left than in the other scenarios."""
KEEPING = {"checkpoint": {"keep": 10}}
BEGINS_AT = 30
"""A step of the second epoch, of which there is a commit."""


@pytest.mark.chaos
def test_a_finished_job_trains_nothing_when_it_is_applied_again(train: Train, undisturbed: Undisturbed) -> None:
    with train(trouble=Trouble(environ=AT_ONCE)) as training:
        first = training.completes()
        traced = training.job.root.trace().steps
        training.job.apply()
        again = training.job.kubectl.json("get", "trainingjob", training.job.name, "-n", training.job.namespace)
        assert again["status"] == first
        training.keeps_its_pods()
        training.job.delete()
    with training:
        training.completes()
    assert training.job.root.trace().steps == traced
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert len(training.runs()) == 2


@pytest.mark.chaos
def test_a_job_that_begins_at_another_ones_commit_is_drained_and_ends_with_the_same_weights(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=Trouble(environ=AT_ONCE, spec=KEEPING)) as first:
        first.completes()
    begins = {"checkpoint": {"from": {"uri": f"s3://scenarios/{first.job.namespace}", "step": BEGINS_AT}}}
    with train(trouble=Trouble(environ=HELD, spec=begins)) as training:
        training.trains(steps=4)
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        status = training.completes()
    entries, trace = training.job.root.entries(), training.job.root.trace().steps
    assert drained.status == 0, drained.output
    assert sorted({step.step for step in trace}) == list(range(BEGINS_AT + 1, Config().steps + 1))
    assert (evidence.steps_lost(entries, trace), status["stepsLost"]) == (0, 0)
    assert training.job.root.weight_hash() == first.job.root.weight_hash() == undisturbed(Config()).weights
