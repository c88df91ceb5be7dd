"""A sharded model whose parts are mirrored in another pod loses one: one finished step is trained again at most."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.harness import evidence, observed
from e2e.harness.job import Job
from e2e.harness.lab import Lab
from e2e.scenarios import tinygpt
from e2e.scenarios.training import STANDBY_SECONDS, START_SECONDS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
]  # tests/handover/test_mirrored kills ranks at each place of a step

NAMESPACE = "case-mirrored"
MEMBERS = 3
ARGUMENTS = ("--epochs=1", "--batch=24", "--fsdp")
PACE = {"PACE_SECONDS": "0.3", "PACED_RUNS": "1"}
FINISH_SECONDS = 300


@pytest.fixture
def job(lab: Lab, lane: str) -> Iterator[Job]:
    """Not applied yet; nothing of it stays behind. It saves at its end."""
    spec = {
        "replicas": MEMBERS,
        "checkpoint": {"everySteps": 1000, "mirror": {"everySteps": 1}},
        "disruption": {"replacementTimeoutSeconds": STANDBY_SECONDS},
    }
    job = lab.job(tinygpt.manifest(lane, NAMESPACE, ARGUMENTS, PACE, spec), NAMESPACE)
    yield job
    job.delete()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_member_costs_one_finished_step_at_most(lab: Lab, job: Job, rank: int) -> None:
    with job.watch() as watch:
        job.apply()
        watch.wait("run 1 assigned", lambda h: observed.training_run(h, 1), seconds=START_SECONDS)
        with job.log(observed.member_of_rank(watch.history, 0)["metadata"]["name"]) as log:
            log.wait(r"PACE run 1: 12 steps", seconds=START_SECONDS)
        lab.kill(observed.member_of_rank(watch.history, rank))
        status = watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
        told_last = job.describe()
    assert status["phase"] == "Completed", told_last
    undisturbed = tinygpt.undisturbed(lab, ARGUMENTS, MEMBERS)
    entries, trace = job.root.entries(), job.root.trace().steps
    opened = next(entry.body for entry in entries if (entry.kind, entry.run) == ("Opened", 2))
    assert opened["image"]["run"] == 1, told_last
    assert max(evidence.steps_lost(entries, trace), status["stepsLost"]) <= 1
    assert job.root.weight_hash() == undisturbed.weights
