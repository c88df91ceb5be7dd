"""A finished job stays finished: applied again, or deleted and applied again, it trains nothing."""

from __future__ import annotations

import pytest

from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster


@pytest.mark.chaos
def test_a_finished_job_trains_nothing_when_it_is_applied_again(train: Train, undisturbed: Undisturbed) -> None:
    with train(trouble=Trouble(environ={"PACED_RUNS": "0"})) as training:
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
