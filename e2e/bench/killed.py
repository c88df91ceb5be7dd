"""The cost of a member killed without notice: every process of its pod gets SIGKILL, in the middle of training.

Until its replacement is warm a run of the same size is impossible; the rest of the time is ours. With a warm spare, or
if the job may continue in a smaller size, no member waits for a replacement. No finished step is lost. Called by
e2e.bench.moves, on its cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from e2e.bench import endless
from e2e.bench.report import Figure
from e2e.harness import evidence, observed, timeline
from e2e.harness.evidence import Gap, NoEvidence
from e2e.harness.job import Manifest
from e2e.harness.lab import Lab
from e2e.harness.watching import Seen, Watch
from e2e.prepare import Progress

KILLS: Final = 3
BOUND: Final = 1.0
AT_ONCE: Final[Mapping[str, Manifest]] = {
    "a spare": {"spec": {"elastic": {"minReplicas": 2, "maxReplicas": 2, "spares": 1}}},
    "a smaller run": {"spec": {"elastic": {"minReplicas": 1, "maxReplicas": 2}}},
}
"""Jobs that do not wait, by which members continue."""
AIM: Final = 3.0


@dataclass(frozen=True)
class Killed:
    """One member's death, and its consequences."""

    at: float
    """When its processes were killed."""
    warm: float
    """When its replacement was Ready."""
    assigned: float
    """When the last member of the next run was assigned."""
    gap: Gap
    seconds: Mapping[str, float]
    """A next run's member's own measurements of its start."""


@dataclass(frozen=True)
class GoneOn:
    """One member's death, after which the others continued with the available members."""

    at: float
    assigned: float
    """When the last member of the next run was assigned."""
    gap: Gap
    lost: int
    """Finished steps."""


def measure(lab: Lab, progress: Progress) -> list[Figure]:
    """Kill rank 1 repeatedly, of each kind of job; returns the figures."""
    figures = _awaiting(lab, progress)
    for who in AT_ONCE:
        gone_on = []
        for number in range(1, KILLS + 1):
            progress.say(f"kill -9 of a member, {who} goes on, {number} of {KILLS}")
            gone_on.append(_at_once(lab, who, f"{who.replace(' ', '-')}-{number}"))
        figures += _of_those(who, gone_on)
    return figures


def _at_once(lab: Lab, who: str, name: str) -> GoneOn:
    """A job for each, because failures in a row have pauses."""
    job = lab.job(endless.manifest(f"killed-{name}", AT_ONCE[who], {}), f"bench-killed-{name}")
    watch = Watch(job.kubectl, job.namespace, job.describe, ("trainingjobs", "pods"))
    with watch:
        job.apply()
        endless.trains(job, watch, 1)
        if "spares" in AT_ONCE[who]["spec"]["elastic"]:
            watch.wait("a warm spare", observed.has_warm_spares, seconds=endless.SECONDS)
        at = time.time()
        lab.kill(observed.member_of_rank(watch.history, 1))
        endless.trains(job, watch, 2)
        endless.suspend(job, watch)
    trace, entries = job.root.trace(), job.root.entries()
    job.delete()
    gap = evidence.gaps(trace.steps)[0]
    assigned = _assigned_at(watch.history, gap.after_run)
    if assigned.keys() != observed.planned_in(watch.history, gap.after_run):
        raise NoEvidence(f"no watch saw how run {gap.after_run} began")
    return GoneOn(at, max(assigned.values()), gap, evidence.steps_lost(entries, trace.steps))


def _of_those(who: str, gone_on: Sequence[GoneOn]) -> Iterator[Figure]:
    seconds = tuple(one.gap.resumed - one.at for one in gone_on)
    lost = tuple(float(one.lost) for one in gone_on)
    yield Figure(f"kill -9 to the next step, {who} goes on", "s", seconds, AIM, "the aim")
    yield Figure("  kill to its plan assigned", "s", tuple(one.assigned - one.at for one in gone_on))
    yield Figure(
        "  plan assigned to next step",
        "s",
        tuple(one.gap.resumed - one.assigned for one in gone_on),
        BOUND,
        "the bound",
    )
    yield Figure("  finished steps lost", "steps", lost, 0.0, "the bound")


def _awaiting(lab: Lab, progress: Progress) -> list[Figure]:
    """Of a job that waits for a replacement."""
    job = lab.job(endless.manifest("killed", {}, {}), "bench-killed")
    watch = Watch(job.kubectl, job.namespace, job.describe, ("trainingjobs", "pods"))
    moments = []
    with watch:
        job.apply()
        endless.trains(job, watch, 1)
        for run in range(1, KILLS + 1):
            progress.say(f"kill -9 of a member, {run} of {KILLS}")
            moments.append(time.time())
            lab.kill(observed.member_of_rank(watch.history, 1))
            endless.trains(job, watch, run + 1)
        endless.suspend(job, watch)
    trace, entries = job.root.trace(), job.root.entries()
    job.delete()
    gaps = evidence.gaps(trace.steps)
    if len(gaps) != len(moments):
        raise NoEvidence(f"{len(moments)} members were killed, and training paused {len(gaps)} times")
    deaths = [_death(watch.history, at, gap) for at, gap in zip(moments, gaps, strict=True)]
    return list(_figures(deaths, evidence.steps_lost(entries, trace.steps)))


def _death(history: Sequence[Seen], at: float, gap: Gap) -> Killed:
    members = observed.planned_in(history, gap.after_run)
    pods = [seen for seen in history if seen.kind == "Pod" and seen.uid in members]
    before = {seen.uid for seen in pods if seen.time < at}
    warm = next((seen for seen in pods if seen.uid not in before and observed.ready(seen.object)), None)
    assigned = _assigned_at(pods, gap.after_run)
    if warm is None or assigned.keys() != members:
        raise NoEvidence(f"no watch saw how run {gap.after_run} began")
    return Killed(at, warm.time, max(assigned.values()), gap, timeline.seconds_of(history, gap.after_run))


def _assigned_at(history: Sequence[Seen], run: int) -> dict[str, float]:
    """By uid, when each pod was seen to have its rank in this run."""
    pods = (seen for seen in reversed(history) if seen.kind == "Pod")
    return {seen.uid: seen.time for seen in pods if _is_assigned(seen.object, run)}


def _is_assigned(pod: Mapping[str, Any], run: int) -> bool:
    return bool(observed.assignment(pod).get("run") == run)


def _figures(deaths: Sequence[Killed], lost: int) -> Iterator[Figure]:
    steps = tuple(death.gap.resumed - death.warm for death in deaths)
    yield Figure("kill -9 to the next step", "s", tuple(death.gap.resumed - death.at for death in deaths))
    yield Figure("  kill to replacement warm", "s", tuple(death.warm - death.at for death in deaths))
    yield Figure("  replacement warm to next step", "s", steps, BOUND, "the bound")
    yield Figure("    its plan assigned", "s", tuple(death.assigned - death.warm for death in deaths))
    for part in timeline.STARTING:
        yield Figure(f"    {part}", "s", tuple(death.seconds.get(part, 0.0) for death in deaths))
    yield Figure("  finished steps lost", "steps", (float(lost),), 0.0, "the bound, of all of them together")
