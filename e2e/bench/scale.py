"""The operator with up to 1,000 jobs on 200 fake nodes, and JobSet with the same pods in the same run.

The same pods created by hand, without a controller, show how fast this control plane could be at all. All figures of
the operator come from outside it: watches, the API server's audit log, /proc. JobSet gets its own control plane, as new
as ours, and no limit on its clients. `python -m e2e.bench scale --jobs 100 300 1000`.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.bench import jobset, scale_audit, scale_decide, scale_reports, scale_resync
from e2e.bench.report import Figure
from e2e.bench.scale_load import MEMBERS, bare_pods, create, job_sets, namespaces, training_jobs
from e2e.bench.scale_plane import Plane, plane, start_jobset, user_of
from e2e.bench.scale_watch import (
    RUNNING_PODS,
    TRAINING_JOBS,
    Count,
    NotInTime,
    cpu_seconds,
    in_phase_running,
    peak_mebibytes,
)
from e2e.prepare import Progress
from e2e.prepare.basics import REPOSITORY

NODES = 200
JOBS = (100, 300, 1000)
SECONDS = 900.0
BOOT_SECONDS = 60.0
SETTLE_SECONDS, IDLE_SECONDS = 15.0, 60.0
CORDONS, CORDON_SECONDS = 10, 4.0
OPERATOR = "operator"
P99_SECONDS, RSS_MIB = 1.0, 300.0
TIME_RATIO, CPU_RATIO = 1.0, 1.0


@dataclass(frozen=True)
class Started:
    """Times and CPU until all pods ran."""

    jobs: int
    submitted: float
    """Seconds until kubectl had created the last job."""
    pods: float
    """Seconds until the last pod ran."""
    ready: float
    """Seconds until the last job reported it; the same as `pods` if jobs report nothing."""
    cpu: float
    """Seconds of the controllers that made the pods."""
    controllers: float
    """Seconds of the other controllers of the control plane meanwhile."""

    @property
    def pod_count(self) -> int:
        return self.jobs * MEMBERS


@dataclass(frozen=True)
class Ours:
    """The operator's requests, by the witnesses."""

    started: Started
    calls: Counter[str]
    """Until all jobs ran."""
    idle: Counter[str]
    """In a minute afterwards."""
    reactions: tuple[float, ...]
    """Seconds from a cordon to the first write about each job on that node."""
    rss: float
    resync: Sequence[Figure]
    reports: Sequence[Figure]
    """Both of the largest number of jobs."""


def measure(progress: Progress, sizes: Sequence[int] = JOBS) -> tuple[list[Figure], dict[str, Any]]:
    """Every size, ours and JobSet's one after the other."""
    ours, theirs, bare = [], [], []
    for jobs in sizes:
        ours.append(_ours(progress, jobs, cordons=jobs == max(sizes)))
        theirs.append(_theirs(progress, jobs))
        bare.append(_bare(progress, jobs))
    rows = zip(ours, theirs, bare, strict=True)
    figures = [figure for one, other, none in rows for figure in _compared(one, other, none)]
    figures += [*_of_largest(max(ours, key=lambda one: one.started.jobs)), *_slopes(ours)]
    with plane(NODES) as where:
        _start_operator(where)
        figures += scale_decide.figures(where, progress)
    return figures, _facts(ours, theirs, bare)


def _ours(progress: Progress, jobs: int, *, cordons: bool) -> Ours:
    with plane(NODES) as where:
        server, takes_reports = where.server, scale_reports.endpoint(where)
        pid = _start_operator(where, *takes_reports.arguments)
        progress.say(f"Perdure: {jobs} jobs x {MEMBERS} members on {NODES} nodes")
        began = time.time()
        with Count(server, RUNNING_PODS) as pods, Count(server, TRAINING_JOBS, in_phase_running) as ready:
            started = _start(where, jobs, training_jobs(jobs), (pid,), pods=pods, ready=ready)
        progress.say(f"  all pods run after {started.pods:.1f} s, all jobs say so after {started.ready:.1f} s")
        seen = list(scale_audit.requests(server.audit_log, began))
        calls = scale_audit.calls(seen, user_of(OPERATOR))
        idle = _idle(where) if cordons else Counter[str]()
        reactions = _cordon(where, progress) if cordons else ()
        memory = peak_mebibytes(pid)
        resync = scale_resync.figures(where, jobs, progress) if cordons else []
        reports = scale_reports.figures(where, OPERATOR, pid, takes_reports, progress) if cordons else []
        return Ours(started, calls, idle, reactions, memory, resync, reports)


def _theirs(progress: Progress, jobs: int) -> Started:
    with plane(NODES) as where:
        manager = start_jobset(where)
        create(where.server, namespaces())
        _until("JobSet's webhooks answer", lambda: _accepts(where))
        progress.say(f"JobSet: {jobs} JobSets x {MEMBERS} pods")
        with Count(where.server, RUNNING_PODS) as pods:
            makers = manager, where.job_controller
            started = _start(where, jobs, job_sets(jobs), makers, pods=pods)
        progress.say(f"  all pods run after {started.pods:.1f} s")
        return started


def _bare(progress: Progress, jobs: int) -> Started:
    with plane(NODES) as where:
        create(where.server, namespaces())
        progress.say(f"nobody: {jobs * MEMBERS} pods")
        with Count(where.server, RUNNING_PODS) as pods:
            started = _start(where, jobs, bare_pods(jobs), (), pods=pods)
        progress.say(f"  all pods run after {started.pods:.1f} s")
        return started


def _start(
    where: Plane,
    jobs: int,
    objects: Sequence[dict[str, Any]],
    makers: Sequence[int],
    *,
    pods: Count,
    ready: Count | None = None,
) -> Started:
    before, others = sum(map(cpu_seconds, makers)), cpu_seconds(where.controllers)
    began = time.time()
    create(where.server, objects)
    submitted = time.time()
    run = pods.wait(jobs * MEMBERS, seconds=SECONDS)
    said = ready.wait(jobs, seconds=SECONDS) if ready else run
    cpu = sum(map(cpu_seconds, makers)) - before
    meanwhile = cpu_seconds(where.controllers) - others
    return Started(jobs, submitted - began, run - began, said - began, cpu, meanwhile)


def _start_operator(where: Plane, *more: str) -> int:
    server = where.server
    server.kubectl("apply", "--server-side", "-f", REPOSITORY / "crds")
    jobset.wait_for_crd(server.kubectl, "trainingjobs.perdure.dev", "TrainingJob")
    create(server, namespaces())
    argv = [sys.executable, "-m", "perdure_operator.cli.main", "run", "--all-namespaces", "--lease-namespace=default"]
    argv += [f"--kubeconfig={where.identity(OPERATOR)}", "--health-port=0", "--log-format=text", *more]
    pid = server.run(OPERATOR, argv, {"POD_NAME": OPERATOR})
    log = server.folder / f"{OPERATOR}.log"
    _until("the operator leads", lambda: "leading as" in log.read_text())
    return pid


def _accepts(where: Plane) -> bool:
    where.server.check()
    one = json.dumps(job_sets(1)[0])
    return where.server.kubectl("create", "--dry-run=server", "-f", "-", check=False, input=one).returncode == 0


def _until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise NotInTime(f"{what}: not within {BOOT_SECONDS:g} s")
        time.sleep(0.2)


def _idle(where: Plane) -> Counter[str]:
    """The operator's requests in a minute in which nothing happens."""
    time.sleep(SETTLE_SECONDS)
    began = time.time()
    time.sleep(IDLE_SECONDS)
    return scale_audit.calls(scale_audit.requests(where.server.audit_log, began), user_of(OPERATOR))


def _cordon(where: Plane, progress: Progress) -> tuple[float, ...]:
    """Cordon some nodes, one after the other, and measure how soon their jobs were written."""
    jobs_of = _jobs_by_node(where)
    progress.say(f"  kubectl cordon, {CORDONS} nodes of {len(jobs_of)}")
    began = time.time()
    chosen: list[tuple[str, set[tuple[str, str]]]] = []
    disturbed: set[tuple[str, str]] = set()
    for node in sorted(jobs_of)[:: max(1, len(jobs_of) // CORDONS)][:CORDONS]:
        where.server.kubectl("cordon", node)
        chosen.append((node, jobs_of[node] - disturbed))
        disturbed |= jobs_of[node]
        time.sleep(CORDON_SECONDS)
    seen = list(scale_audit.requests(where.server.audit_log, began))
    times = scale_audit.cordons(seen)
    found = [scale_audit.reactions(seen, user_of(OPERATOR), times[node], jobs) for node, jobs in chosen]
    missing = sum(len(jobs) for _, jobs in chosen) - sum(map(len, found))
    if missing:
        raise NotInTime(f"{missing} jobs on cordoned nodes were never written about")
    return tuple(seconds for reactions in found for seconds in reactions)


def _jobs_by_node(where: Plane) -> dict[str, set[tuple[str, str]]]:
    columns = "N:.spec.nodeName,NS:.metadata.namespace,J:.metadata.labels.perdure\\.dev/job"
    shown = where.server.kubectl("get", "pods", "-A", "--no-headers", f"--output=custom-columns={columns}", timeout=120)
    found: dict[str, set[tuple[str, str]]] = {}
    for line in shown.stdout.splitlines():
        node, namespace, job = line.split()
        found.setdefault(node, set()).add((namespace, job))
    return found


def _compared(ours: Ours, theirs: Started, bare: Started) -> list[Figure]:
    mine, jobs = ours.started, ours.started.jobs
    per_pod, their_per_pod = (1000 * one.cpu / one.pod_count for one in (mine, theirs))
    calls = sum(ours.calls.values())
    return [
        Figure(
            f"{jobs} jobs: all pods Running", "s", (mine.pods,), theirs.pods, _ratio(mine.pods, theirs.pods, TIME_RATIO)
        ),
        Figure(f"{jobs} jobs: the same pods by hand", "s", (bare.pods,), theirs.pods, "JobSet in the same run"),
        Figure(f"{jobs} jobs: all jobs Running", "s", (mine.ready,)),
        Figure(f"{jobs} jobs: CPU per pod", "ms", (per_pod,), their_per_pod, _ratio(per_pod, their_per_pod, CPU_RATIO)),
        Figure(f"{jobs} jobs: API calls per job", "", (calls / jobs,)),
        Figure(f"{jobs} jobs: operator's most memory", "MiB", (ours.rss,), RSS_MIB, "the target"),
    ]


def _ratio(mine: float, theirs: float, target: float) -> str:
    return f"JobSet in the same run: {mine / theirs:.2f} of it, target {target:.2f}"


def _of_largest(ours: Ours) -> list[Figure]:
    if not ours.reactions:
        return []
    ordered = sorted(ours.reactions)
    p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    jobs = ours.started.jobs
    return [
        Figure(f"{jobs} jobs: cordon to a job's first write", "s", ours.reactions),
        Figure("  p50", "s", (statistics.median(ordered),)),
        Figure("  p99", "s", (p99,), P99_SECONDS, "the target"),
        Figure(f"{jobs} idle jobs: API calls a minute", "", (float(sum(ours.idle.values())),), 0.0, "the target"),
        *ours.resync,
        *ours.reports,
    ]


def _slopes(ours: Sequence[Ours]) -> list[Figure]:
    """1 is linear: how CPU and time grow from the smallest to the largest size."""
    if len(ours) < 2:
        return []
    small, large = ours[0].started, ours[-1].started
    steps = math.log(large.jobs / small.jobs)
    return [
        Figure("slope of the operator's CPU", "", (math.log(large.cpu / small.cpu) / steps,), 1.0, "linear"),
        Figure("slope of the time", "", (math.log(large.pods / small.pods) / steps,), 1.0, "linear"),
    ]


def _facts(ours: Sequence[Ours], theirs: Sequence[Started], bare: Sequence[Started]) -> dict[str, Any]:
    return {
        "nodes": NODES,
        "members": MEMBERS,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "ours": [vars(one.started) | {"calls": one.calls, "idle": one.idle} for one in ours],
        "jobset": [vars(one) for one in theirs],
        "bare": [vars(one) for one in bare],
    }
