"""A digits job that trains until it is deleted and saves only when it must: cluster benches move and kill it.

Called by e2e.bench.moves and e2e.bench.killed.
"""

from __future__ import annotations

import json
from typing import Final

from e2e.harness import observed
from e2e.harness.job import Job, Manifest, merged, with_container
from e2e.harness.lab import digits
from e2e.harness.watching import Watch

SECONDS: Final = 180.0
_COMMAND: Final = ["python", "train.py", "--epochs", "1000000"]
_SAVES: Final = {"everySteps": None, "everySeconds": 3600}


def manifest(name: str, changes: Manifest, environ: dict[str, str]) -> Manifest:
    """With a root of this name."""
    changes = merged({"spec": {"checkpoint": {**_SAVES, "uri": f"s3://perdure/{name}"}}}, changes)
    return with_container(digits(changes), {"PERDURE_TRACE": "1", **environ}, command=_COMMAND)


def trains(job: Job, watch: Watch, run: int) -> None:
    """Wait for this run's members, and its first step."""
    watch.wait(f"run {run} assigned", lambda history: observed.training_run(history, run), seconds=SECONDS)
    job.root.wait_for_step(run, seconds=SECONDS)


def suspend(job: Job, watch: Watch) -> None:
    """End it, so that the last run's members report their measurements."""
    patch = json.dumps({"spec": {"suspend": True}})
    words = ["--namespace", job.namespace, "--type=merge", f"--patch={patch}"]
    job.kubectl("patch", "trainingjob", job.name, *words)
    watch.wait("the job is suspended", observed.in_phase("Suspended"), seconds=SECONDS)
