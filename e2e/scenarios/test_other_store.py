"""A job begins from another job's root in another S3 server, with the keys of that one in a Secret of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.cluster.s3 import S3
from e2e.harness.handover import Way
from e2e.harness.lab import Lab
from e2e.harness.shared_run import SharedRun
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble

pytestmark = pytest.mark.cluster

NAME = "s3-of-the-other-job"
PORT = 9002
SECRET = "their-keys"
UNSLOWED = {"PACE_SECONDS": "0", "PACE_HOLDS": "1000"}
FIRST = Config(epochs=2)
WHOLE = Config(epochs=4)
HELD = {"PACE_HOLDS": "3"}
"""Until the next run."""


@pytest.fixture
def theirs(lab: Lab) -> Iterator[S3]:
    """A server with other keys than the cluster's."""
    with SharedRun.current().locked(NAME):
        other = replace(lab.cluster.another_s3(NAME, PORT), access_key="their-access", secret_key="their-secret-words")
        other.start()
        yield other
        other.kill()


def test_a_job_begins_where_another_one_ended_in_another_store_and_needs_neither_store_nor_keys_afterwards(
    lab: Lab, train: Train, undisturbed: Undisturbed, theirs: S3
) -> None:
    with train(FIRST, Trouble(environ=UNSLOWED, s3=theirs)) as first:
        first.completes()
    uri = first.job.manifest["spec"]["checkpoint"]["uri"]
    there = {"endpoint": theirs.endpoint, "region": theirs.region, "pathStyle": True, "credentialsSecret": SECRET}
    begins = {"checkpoint": {"from": {"uri": uri, "s3": there}}}
    training = train(WHOLE, Trouble(environ=HELD, spec=begins))
    keys = {"AWS_ACCESS_KEY_ID": theirs.access_key, "AWS_SECRET_ACCESS_KEY": theirs.secret_key}
    metadata = {"name": SECRET, "namespace": training.job.namespace}
    lab.kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys})
    with training:
        training.trains(steps=1)
        said = lab.kubectl("logs", training.member(rank=0)["metadata"]["name"], "--namespace", training.job.namespace)
        theirs.freeze()
        lab.kubectl("delete", "secret", SECRET, "--namespace", training.job.namespace)
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        training.completes()
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    commit = next(entry.body for entry in training.job.root.entries() if entry.kind == "Committed")
    assert (commit["step"], commit["reason"]) == (FIRST.steps, f"from {uri}")
    assert f"begins with epoch {FIRST.epochs}; skips epochs 0 to {FIRST.epochs - 1}" in said
    assert theirs.secret_key not in said
    assert training.job.root.weight_hash() == undisturbed(WHOLE).weights
