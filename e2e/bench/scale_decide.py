"""How long one decision takes: the real `decide` on the operator's own snapshot of a job with 4 and with 512 members.

The snapshots are recorded from a real API server by `perdure-operator snapshot`; then the same with a cordoned node.
CPU time counts, because other load is no part of a decision.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from e2e.bench.report import Figure
from e2e.bench.scale_load import create, training_jobs
from e2e.bench.scale_plane import Plane
from e2e.bench.scale_watch import TRAINING_JOBS, Count, in_phase_running
from e2e.prepare import Progress
from perdure_operator.decide import decide
from perdure_operator.state.snapshot import Snapshot

ROUNDS = 30
MILLI = 1000.0
TARGETS = {4: 1.5, 512: 30.0}
SECONDS = 300.0


def figures(where: Plane, progress: Progress) -> list[Figure]:
    """Every size, at rest and with a cordoned node; the plane's operator must be running."""
    return [figure for members in TARGETS for figure in _of_size(where, members, progress)]


def _of_size(where: Plane, members: int, progress: Progress) -> list[Figure]:
    job = training_jobs(1, members)[0]
    job["metadata"]["name"] = f"members-{members}"
    job["spec"]["checkpoint"]["uri"] += f"-{members}"
    with Count(where.server, TRAINING_JOBS, lambda seen: _is_running(seen, job["metadata"]["name"])) as running:
        create(where.server, [job])
        running.wait(1, seconds=SECONDS)
    progress.say(f"deciding about a job with {members} members")
    resting = _recorded(where, f"{job['metadata']['namespace']}/{job['metadata']['name']}")
    first, *others = resting.nodes
    cordoned = resting.model_copy(update={"nodes": (first.model_copy(update={"cordoned": True}), *others)})
    target = TARGETS[members]
    return [
        Figure(f"decide, {members} members, at rest", "ms", _timed(resting), target, "the target for a round"),
        Figure(f"decide, {members} members, a node cordoned", "ms", _timed(cordoned), target, "the target for a round"),
    ]


def _is_running(seen: dict[str, Any], name: str) -> bool:
    return seen["metadata"]["name"] == name and in_phase_running(seen)


def _recorded(where: Plane, job: str) -> Snapshot:
    argv = [
        sys.executable,
        "-m",
        "perdure_operator.cli.main",
        "snapshot",
        job,
        f"--kubeconfig={where.server.kubeconfig}",
    ]
    done = subprocess.run(argv, env=where.server.env, capture_output=True, text=True, check=True)
    return Snapshot.model_validate(json.loads(done.stdout))


def _timed(snapshot: Snapshot) -> tuple[float, ...]:
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        decide(snapshot)
        found.append(MILLI * (time.process_time() - began))
    return tuple(found)
