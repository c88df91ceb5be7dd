"""What a drain costs: until every trainer knows, until the drain is over, and how long training pauses, part by part.

One job on a cluster of its own is drained MOVES times. Everything is read from watches, traces and outcomes, like in
the scenarios.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from e2e.bench.report import Figure
from e2e.harness import evidence, observed, timeline
from e2e.harness.drain import Drained, uncordon
from e2e.harness.evidence import Gap, Mark, NoEvidence
from e2e.harness.job import Job, Manifest, with_container
from e2e.harness.lab import Lab, digits
from e2e.harness.watching import Seen, Watch
from e2e.prepare import Progress

CLUSTER = "bench"
MOVES = 3
SECONDS = 180.0
SEEN_BOUND = 1.5
ENDLESS = ["python", "train.py", "--epochs", "1000000"]
SAVES = {"everySteps": None, "everySeconds": 3600}


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Boots, drains, measures; nothing stays behind."""
    with Lab.up(CLUSTER, progress, owner=os.getpid()) as lab:
        job = lab.job(manifest(), "bench")
        watch = Watch(job.kubectl, job.namespace, job.describe, ("trainingjobs", "pods", "nodes"))
        with watch:
            job.apply()
            _trains(job, watch, 1)
            drains = [_drain(lab, job, watch, run, progress) for run in range(1, MOVES + 1)]
            _suspend(job, watch)  # the last run's outcomes are told when it ends
            return _figures(job, watch.history, drains), {"moves": MOVES, "members": 2, "cores": os.cpu_count()}


def manifest() -> Manifest:
    """The digits job, training until it is deleted, saving only when it must."""
    return with_container(digits({"spec": {"checkpoint": SAVES}}), {"PERDURE_TRACE": "1"}, command=ENDLESS)


def _trains(job: Job, watch: Watch, run: int) -> None:
    watch.wait(f"run {run} assigned", lambda history: observed.training_run(history, run), seconds=SECONDS)
    job.root.wait_for_step(run, seconds=SECONDS)


def _drain(lab: Lab, job: Job, watch: Watch, run: int, progress: Progress) -> Drained:
    nodes = [str(observed.member_of_rank(watch.history, rank)["spec"]["nodeName"]) for rank in (1, 0)]
    leaders = lab.operator.leader()["spec"]["nodeName"]
    node = next(node for node in nodes if node != leaders)  # a change of leaders would be measured too
    progress.say(f"kubectl drain {node} --ignore-daemonsets ({run} of {MOVES})")
    with lab.drain(node) as drain:
        drained = drain.finish()
    _trains(job, watch, run + 1)
    uncordon(lab.kubectl, lab.cluster.nodes)
    return drained


def _suspend(job: Job, watch: Watch) -> None:
    patch = json.dumps({"spec": {"suspend": True}})
    words = ["--namespace", job.namespace, "--type=merge", f"--patch={patch}"]
    job.kubectl("patch", "trainingjob", job.name, *words)
    watch.wait("the job is suspended", observed.in_phase("Suspended"), seconds=SECONDS)


def _figures(job: Job, history: Sequence[Seen], drains: Sequence[Drained]) -> list[Figure]:
    trace = job.root.trace()
    gaps = evidence.gaps(trace.steps)
    if len(gaps) != len(drains):
        raise NoEvidence(f"{len(drains)} drains and {len(gaps)} pauses in the trace")
    seen = [_seconds_until_all_know(trace.marks, history, drain, gap) for drain, gap in zip(drains, gaps, strict=True)]
    agreed = [timeline.seconds_of(history, gap.before_run).get("agree", 0.0) for gap in gaps]
    cold = min(step.time for step in trace.steps) - history[0].time
    return [
        Figure("cordon to request seen by all", "s", tuple(seen), SEEN_BOUND, "the bound, with its quiet second"),
        Figure("drain", "s", tuple(drain.seconds for drain in drains), 5.0, "kubectl's pause between two tries"),
        Figure("agree, while training", "s", tuple(agreed)),
        Figure("training pause", "s", tuple(gap.seconds for gap in gaps), cold, "apply to first step, the same job"),
        *_parts(history, gaps),
    ]


def _parts(history: Sequence[Seen], gaps: Sequence[Gap]) -> list[Figure]:
    split = [timeline.pause_parts(history, gap) for gap in gaps]
    names = dict.fromkeys(part.name for parts in split for part in parts)
    found = [{part.name: part.seconds for part in parts} for parts in split]
    return [Figure(f"  {name}", "s", tuple(parts.get(name, 0.0) for parts in found)) for name in names]


def _seconds_until_all_know(marks: Sequence[Mark], history: Sequence[Seen], drain: Drained, gap: Gap) -> float:
    known = [mark.time for mark in marks if mark.name == "request-seen" and mark.run == gap.before_run]
    cordoned = observed.first(history, _cordons(drain))
    if not known or cordoned is None:
        raise NoEvidence(f"no trainer of run {gap.before_run} has noted the request, or no watch saw the cordon")
    return max(known) - cordoned.time


def _cordons(drain: Drained) -> Callable[[Seen], bool]:
    """Whether an event is the cordon of that drain."""

    def matches(seen: Seen) -> bool:
        cordoned = seen.kind == "Node" and seen.name == drain.node and seen.object["spec"].get("unschedulable")
        return bool(cordoned) and seen.time >= drain.started

    return matches
