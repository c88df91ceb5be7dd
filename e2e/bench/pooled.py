"""What a pool brings: jobs of unlike noise on four devices, by policy Goodput, beside the same jobs of fixed sizes.

Their trainers take declared times for each part of a batch and each of its samples, and their gradients have declared
noise. So what a step is worth is known without what the jobs measure themselves. A job without noise gains little by
another device; a noisy one gains by each. A fourth job comes later, and gets its minimum. On a cluster of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from e2e.bench import endless, pool
from e2e.bench.pooled_trainer import INITIAL
from e2e.bench.report import Figure
from e2e.harness import evidence
from e2e.harness.evidence import NoEvidence, TracedStep
from e2e.harness.job import Job, merged, with_container
from e2e.harness.lab import Lab
from e2e.prepare import Progress

CLUSTER: Final = "bench-pooled"
NAMESPACE: Final = "bench-pooled"
NODES: Final = 4
RESOURCE: Final = "example.com/bench"
IMAGE: Final = "perdure-pooled:dev"
SCRIPT: Final = Path(__file__).with_name("pooled_trainer.py")
PART_SECONDS, SAMPLE_SECONDS = 0.1, 0.002
NOISE: Final[Mapping[str, float]] = {"noisy": 2500.0, "clean-1": 0.0, "clean-2": 0.0}
"""In samples, by job."""
FIXED: Final[Mapping[str, int]] = {"noisy": 2, "clean-1": 1, "clean-2": 1}
"""The sizes beside which the pool is judged: the devices in equal parts, and one more for the noisy job."""
SETTLES_SECONDS: Final = 200.0
"""Each job keeps a size for a minute, and a size is believed once half of it was measured."""
MEASURED_SECONDS: Final = 60.0
BOUND: Final = 1.3
WARM_UP_BOUND_SECONDS: Final = 5.0


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Boot, share, measure; nothing remains."""
    with ExitStack() as held:
        lab = held.enter_context(Lab.up(CLUSTER, progress, nodes=NODES + 1, owner=os.getpid()))
        home, *nodes = reversed(lab.cluster.nodes)
        lab.install(**{r"nodeSelector.kubernetes\.io/hostname": home})
        lab.image(IMAGE, [SCRIPT])
        held.enter_context(lab.devices(nodes, RESOURCE, each=1))
        pooled = {name: _job(lab, home, name, noise, fixed=0) for name, noise in NOISE.items()}
        fixed = {name: _job(lab, home, name, noise, fixed=FIXED[name]) for name, noise in NOISE.items()}
        newcomer = _job(lab, home, "late", 0.0, fixed=0)
        begun = time.time()
        for job in [*pooled.values(), *fixed.values()]:
            job.apply()
        first = [_begins(job) - begun for job in pooled.values()]
        _shows(pooled, SETTLES_SECONDS, progress)
        since = time.time()
        _shows(pooled, MEASURED_SECONDS, progress)
        until = time.time()
        newcomer.apply()
        late = _begins(newcomer) - until
        everything = [*pooled.values(), *fixed.values(), newcomer]
        _end(everything)
        gains = {name: _gain(pooled[name], fixed[name], NOISE[name], since, until) for name in NOISE}
        moves = [_moves(job) for job in pooled.values()]
        facts = {"cores": os.cpu_count(), "worlds": {name: _worlds(job) for name, job in pooled.items()}}
        for job in everything:
            job.delete()
    return list(_figures(gains, moves, late, first)), facts


def _job(lab: Lab, home: str, name: str, noise: float, *, fixed: int) -> Job:
    name = f"{name}-fixed" if fixed else name
    sizes = {"minReplicas": 1, "maxReplicas": NODES, "growAfterSeconds": 3, "policy": "Goodput", "pool": "bench"}
    placed = pool.one_a_node(name, home, None if fixed else sizes, fixed or 1)
    words = [str(word) for word in (noise, PART_SECONDS, SAMPLE_SECONDS, "fixed" if fixed else "adapts")]
    manifest = endless.manifest(name, placed, {})
    limits = {} if fixed else {"limits": {RESOURCE: 1}}
    asks = merged(manifest["spec"]["template"]["spec"]["containers"][0]["resources"], limits)
    return lab.job(
        with_container(manifest, {}, image=IMAGE, command=["python", SCRIPT.name, *words], resources=asks), NAMESPACE
    )


def _begins(job: Job) -> float:
    """When its first step was done."""
    return job.root.wait_for_step(1, seconds=endless.SECONDS).time


def _end(jobs: Sequence[Job]) -> None:
    """Suspend them: with the commits of their ends the log says which steps count."""
    for job in jobs:
        patch = json.dumps({"spec": {"suspend": True}})
        job.kubectl("patch", "trainingjob", job.name, "--namespace", NAMESPACE, "--type=merge", f"--patch={patch}")
    named = [f"trainingjob/{job.name}" for job in jobs]
    words = ["--namespace", NAMESPACE, "--for=jsonpath={.status.phase}=Suspended", f"--timeout={endless.SECONDS:g}s"]
    jobs[0].kubectl("wait", *named, *words, seconds=endless.SECONDS + 10)


def _shows(pooled: Mapping[str, Job], seconds: float, progress: Progress) -> None:
    """Say the sizes until so many seconds have passed."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(20.0, left))
        progress.say(", ".join(f"{name}: {_worlds(job)[-1]} ranks" for name, job in pooled.items()))


def _worlds(job: Job) -> list[int]:
    """Its ranks, run by run."""
    return list(evidence.worlds(job.root.entries()).values())


def _gain(pooled: Job, fixed: Job, noise: float, since: float, until: float) -> float:
    """The goodput of the one in goodputs of the other."""
    return _goodput(pooled, noise, since, until) / _goodput(fixed, noise, since, until)


def _goodput(job: Job, noise: float, since: float, until: float) -> float:
    """Samples per second, each counted by what it wins beside one in a step of the initial batch."""
    steps = _counted(job)
    batches: dict[tuple[int, int], int] = {}
    for step in steps:
        if since <= step.time < until:
            batches[step.run, step.step] = batches.get((step.run, step.step), 0) + len(step.ids)
    if not batches:
        raise NoEvidence(f"{job.name} has not trained in the time that is measured")
    won = sum(batch * (noise + INITIAL) / (noise + batch) for batch in batches.values())
    return won / (until - since)


def _counted(job: Job) -> Iterable[TracedStep]:
    trace, entries = job.root.trace(), job.root.entries()
    if lost := evidence.steps_lost(entries, trace.steps):
        raise NoEvidence(f"{job.name} has lost {lost} steps")
    return evidence.counted(entries, trace.steps)


def _moves(job: Job) -> Sequence[bool]:
    """Of each change of its size whether it was live."""
    entries = job.root.entries()
    return [evidence.took_over(entries, entry.run) for entry in entries if entry.kind == "Opened"][1:]


def _figures(
    gains: Mapping[str, float], moves: Sequence[Sequence[bool]], late: float, first: Sequence[float]
) -> Iterable[Figure]:
    for name, gain in gains.items():
        yield Figure(f"goodput, {name}", "of that of a fixed size", (gain,))
    mean = sum(gains.values()) / len(gains)
    yield Figure("goodput, mean of the three", "of that of fixed sizes", (mean,), BOUND, "the bound")
    changes = [live for some in moves for live in some]
    yield Figure("changes of size, live", "of all", (sum(changes) / len(changes),) if changes else (0.0,), 1.0, "all")
    yield Figure("a fourth job trains", "s after its manifest", (late,))
    yield Figure("  a first job, with free devices", "s", (max(first),), None, "")
    yield Figure("  later than that by", "s", (late - max(first),), WARM_UP_BOUND_SECONDS, "the bound")
