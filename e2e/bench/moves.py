"""The cost of a drain: until the job knows, until the drain is over, and the parts of the training pause.

One job per way, on a cluster of their own, is drained again and again: live, in place, and with all leaving. Everything
is read from watches, traces and outcomes, like in the scenarios.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from e2e.bench import careful, endless, jobset, killed
from e2e.bench.report import Figure
from e2e.harness import evidence, observed, timeline
from e2e.harness.drain import Drained, uncordon
from e2e.harness.evidence import Entry, Gap, Mark, NoEvidence
from e2e.harness.handover import Way, way_of
from e2e.harness.job import Job, Manifest
from e2e.harness.lab import Lab
from e2e.harness.watching import Seen, Watch
from e2e.prepare import Progress

CLUSTER = "bench"
MOVES: Final[Mapping[Way, int]] = {Way.LIVE: 10, Way.IN_PLACE: 5, Way.RECREATE: 3}
STANDBY_BOUND = 1.5
ENVIRON: Final[Mapping[Way, Mapping[str, str]]] = {Way.IN_PLACE: {"PERDURE_LIVE": "no"}}
# The spread also counts those about to leave: on three nodes both new members would often share one.
APART = {
    "weight": 100,
    "podAffinityTerm": {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"perdure.dev/job": "digits", "perdure.dev/role": "standby"}},
    },
}
ALL_LEAVE = {
    "spec": {
        "disruption": {"replacementTimeoutSeconds": 0},
        "template": {
            "spec": {
                "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [APART]}},
            }
        },
    }
}


@dataclass(frozen=True)
class Measured:
    """The evidence of one job's drains."""

    history: Sequence[Seen]
    entries: Sequence[Entry]
    marks: Sequence[Mark]
    gaps: Sequence[Gap]
    drains: Sequence[Drained]
    cold: float
    """Seconds from the first the watch saw of the job to its first step."""


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Boot, drain, measure; nothing remains."""
    with Lab.up(CLUSTER, progress, owner=os.getpid()) as lab:
        found = {way: _moved(lab, way, progress) for way in MOVES}
        deaths = killed.measure(lab, progress)
        others = _under_jobset(lab, progress)
    moves = {way.value: number for way, number in MOVES.items()}
    facts = {"moves": moves, "kills": killed.KILLS, "members": 2, "cores": os.cpu_count()}
    return [*_figures(found), *_beside(found[Way.RECREATE], others), *deaths], facts


def manifest(way: Way) -> Manifest:
    """The digits job, training until it is deleted, saving only when it must, moved in this way."""
    return endless.manifest(way, _changes(way), dict(ENVIRON.get(way, {})))


def _changes(way: Way) -> Manifest:
    return ALL_LEAVE if way is Way.RECREATE else {}


def _moved(lab: Lab, way: Way, progress: Progress) -> Measured:
    job = lab.job(manifest(way), f"bench-{way}")
    watch = Watch(job.kubectl, job.namespace, job.describe, ("trainingjobs", "pods", "nodes"))
    with watch:
        job.apply()
        endless.trains(job, watch, 1)
        drains = []
        for run in range(1, MOVES[way] + 1):
            progress.say(f"kubectl drain of a member's node: {way}, {run} of {MOVES[way]}")
            drains.append(_drain(lab, job, watch, run))
        endless.suspend(job, watch)  # the last run's outcomes are reported at its end
    trace, entries = job.root.trace(), job.root.entries()
    job.delete()
    gaps = evidence.gaps(trace.steps)
    ways = [way_of(watch.history, entries, gap) for gap in gaps]
    if ways != [way] * len(drains):
        raise NoEvidence(f"{len(drains)} drains of a job that moves {way} went over {ways}")
    cold = min(step.time for step in trace.steps) - watch.history[0].time
    return Measured(watch.history, entries, trace.marks, gaps, drains, cold)


def _drain(lab: Lab, job: Job, watch: Watch, run: int) -> Drained:
    nodes = [str(observed.member_of_rank(watch.history, rank)["spec"]["nodeName"]) for rank in (1, 0)]
    leaders = lab.operator.leader()["spec"]["nodeName"]
    node = next(node for node in nodes if node != leaders)  # a change of leaders would be measured too
    with lab.drain(node) as drain:
        drained = drain.finish()
    endless.trains(job, watch, run + 1)
    uncordon(lab.kubectl, lab.cluster.nodes)
    return drained


def _figures(found: Mapping[Way, Measured]) -> Iterator[Figure]:
    everybody = found[Way.RECREATE]
    slowest = Figure("", "s", tuple(gap.seconds for gap in everybody.gaps)).median
    for way, measured in found.items():
        pauses = tuple(gap.seconds for gap in measured.gaps)
        yield Figure(f"training pause, {way}", "s", pauses, slowest, "everybody leaves, median of this run")
        yield from _parts(measured, way)
    for way, measured in found.items():
        seconds = tuple(drain.seconds for drain in measured.drains)
        yield Figure(f"drain, {way}", "s", seconds, 5.0, "kubectl's pause between two tries")
    live = found[Way.LIVE]
    created = tuple(_seconds_to_standby(live.history, drain) for drain in live.drains)
    yield Figure("cordon to standby created", "s", created, STANDBY_BOUND, "the bound, with its quiet second")
    yield Figure("apply to first step", "s", tuple(measured.cold for measured in found.values()))


def _under_jobset(lab: Lab, progress: Progress) -> tuple[float, ...]:
    if not jobset.is_built():
        progress.say("SKIPPED JobSet: it is not built: python3 -m e2e.prepare scale")
        return ()
    return careful.measure(lab, progress)


def _beside(everybody: Measured, others: tuple[float, ...]) -> Iterator[Figure]:
    """If all leave, from the same moment as JobSet's."""
    seconds = tuple(gap.resumed - drain.started for gap, drain in zip(everybody.gaps, everybody.drains, strict=True))
    theirs = [Figure("drain to next step, JobSet and a script that saves on SIGTERM", "s", others)] if others else []
    baseline = (theirs[0].median, "JobSet, median of this run") if theirs else (None, "")
    yield Figure("drain to next step, recreate", "s", seconds, *baseline)
    yield from theirs


def _parts(measured: Measured, way: Way) -> Iterator[Figure]:
    if way is Way.IN_PLACE:
        split = [timeline.in_place_parts(measured.entries, measured.marks, gap) for gap in measured.gaps]
    else:
        split = [timeline.pause_parts(measured.history, gap, measured.marks) for gap in measured.gaps]
    found = [{part.name: part.seconds for part in parts} for parts in split]
    names = dict.fromkeys(name for parts in found for name in parts)
    return (Figure(f"  {name}", "s", tuple(parts.get(name, 0.0) for parts in found)) for name in names)


def _seconds_to_standby(history: Sequence[Seen], drain: Drained) -> float:
    """From the cordon to the first pod that is created after it."""
    cordoned = observed.first(history, _cordons(drain))
    if cordoned is None:
        raise NoEvidence(f"no watch saw the cordon of {drain.node}")
    since = cordoned.time
    created = observed.first(history, lambda seen: seen.kind == "Pod" and seen.type == "ADDED" and seen.time > since)
    if created is None:
        raise NoEvidence(f"no pod was created after {drain.node} was cordoned")
    return created.time - since


def _cordons(drain: Drained) -> Callable[[Seen], bool]:
    """Whether an event is the cordon of that drain."""

    def matches(seen: Seen) -> bool:
        cordoned = seen.kind == "Node" and seen.name == drain.node and seen.object["spec"].get("unschedulable")
        return bool(cordoned) and seen.time >= drain.started

    return matches
