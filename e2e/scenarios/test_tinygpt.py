"""The second example, drained: accumulation, schedule, dropout, evaluation and export go on to the last digit."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from e2e.harness import evidence, observed
from e2e.harness.job import Job, Manifest
from e2e.harness.lab import Lab
from e2e.scenarios import tinygpt
from e2e.scenarios.training import STANDBY_SECONDS, START_SECONDS

pytestmark = pytest.mark.cluster

NAMESPACE = "case-tinygpt"
MEMBERS = 2
ARGUMENTS = ("--epochs=1", "--export=/dev/shm/tinygpt.safetensors")
PACE = {"PACE_SECONDS": "0", "PACE_HOLDS": "12", "PACE_HOLD_SECONDS": "2"}
"""It still trains when the newcomer is warm, without computing for that."""
FINISH_SECONDS = 300


def manifest(lane: str) -> Manifest:
    """Two members, who save in the background."""
    spec = {
        "replicas": MEMBERS,
        "checkpoint": {"everySteps": 4},
        "disruption": {"replacementTimeoutSeconds": STANDBY_SECONDS},
    }
    return tinygpt.manifest(lane, NAMESPACE, ARGUMENTS, {"PERDURE_BACKGROUND_BYTES": "0", **PACE}, spec)


def told(lines: list[str]) -> list[str]:
    """A run's report of its training: losses of steps and evaluations, and the hash of the export."""
    return [line for line in lines if re.match(r"step \d+ loss|evaluation loss|exported", line)]


@pytest.fixture
def job(lab: Lab, lane: str) -> Iterator[Job]:
    """Not applied yet; nothing of it stays behind."""
    job = lab.job(manifest(lane), NAMESPACE)
    yield job
    job.delete()


@pytest.mark.chaos  # test_sharded drains it too, in parts, and compares its losses
def test_a_drained_tinygpt_has_the_undisturbed_ones_losses_one_by_one(lab: Lab, job: Job) -> None:
    with job.watch() as watch:
        job.apply()
        watch.wait("run 1 assigned", lambda h: observed.training_run(h, 1), seconds=START_SECONDS)
        first = observed.member_of_rank(watch.history, 0)
        with job.log(first["metadata"]["name"]) as log:
            log.wait(r"step 10 loss", seconds=START_SECONDS)
            with lab.drain(str(observed.member_of_rank(watch.history, 1)["spec"]["nodeName"])) as drain:
                drained = drain.finish()
            said = told(log.whole(seconds=FINISH_SECONDS))  # rank 0 keeps its pod
        status = watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
        told_last = job.describe()
        assert status["phase"] == "Completed", told_last
    undisturbed = tinygpt.undisturbed(lab, ARGUMENTS, MEMBERS)
    entries, trace = job.root.entries(), job.root.trace().steps
    assert drained.status == 0, drained.output
    assert [entry.run for entry in entries if entry.kind == "Opened"] == [1, 2]
    assert evidence.took_over(entries, 2), told_last  # training did not stop
    assert said == told(undisturbed.said.splitlines())
    assert (evidence.steps_lost(entries, trace), evidence.untraced(entries, trace)) == (0, [])
    assert tuple(evidence.batches(entries, trace)) == undisturbed.batches
    assert job.root.weight_hash() == undisturbed.weights
