"""The cost of a change of size: digits with two to four members, as their nodes come and go.

Each node holds one member. Two come back at once (2->4), one is drained (4->3), another is drained (3->2), again and
again; then `goodput` changes capacity under jobs with a fixed time per sample. On a cluster of its own, with the
operator on a node that stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from e2e.bench import endless, goodput, pool
from e2e.bench.report import Figure
from e2e.harness import evidence
from e2e.harness.drain import Drained, uncordon
from e2e.harness.evidence import Gap, NoEvidence
from e2e.harness.handover import Way, way_of
from e2e.harness.job import Job
from e2e.harness.lab import Lab
from e2e.harness.watching import Seen, Watch
from e2e.prepare import Progress

CLUSTER: Final = "bench-elastic"
LEAST, MOST = 2, 4
CYCLES: Final = 4
SETTLED_SECONDS: Final = 35.0
"""A run does not grow in its first 30 s (docs/elastic.md): capacity that comes then would measure that rule."""
PAUSE_BOUND: Final = 0.5


@dataclass(frozen=True)
class Change:
    """One change of size, and its cause."""

    before: int
    after: int
    since: float
    """When the nodes came, or the drain began."""
    gap: Gap


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Boot, change capacity, measure; nothing remains."""
    with Lab.up(CLUSTER, progress, nodes=MOST + 1, owner=os.getpid()) as lab:
        home, *nodes = reversed(lab.cluster.nodes)
        lab.install(**{r"nodeSelector.kubernetes\.io/hostname": home})
        changes, drains = _cycles(lab, home, nodes, progress)
        shares, facts = goodput.measure(lab, home, nodes, progress)
    figures = [*_figures(changes), Figure("drain, to a smaller size", "s", tuple(drain.seconds for drain in drains))]
    return [*figures, *shares], {"cycles": CYCLES, "cores": os.cpu_count(), **facts}


def _cycles(lab: Lab, home: str, nodes: Sequence[str], progress: Progress) -> tuple[list[Change], list[Drained]]:
    sizes = {"minReplicas": LEAST, "maxReplicas": MOST, "growAfterSeconds": 3}
    job = lab.job(endless.manifest("elastic", pool.one_a_node("elastic", home, sizes, MOST), {}), "bench-elastic")
    watch = Watch(job.kubectl, job.namespace, job.describe, ("trainingjobs", "pods"))
    lab.kubectl("cordon", *nodes[LEAST:])
    since, drains = [], []
    with watch:
        job.apply()
        _trains(job, LEAST)
        for number in range(1, CYCLES + 1):
            progress.say(f"2 -> 4 -> 3 -> 2, {number} of {CYCLES}")
            time.sleep(SETTLED_SECONDS)
            since.append(time.time())
            uncordon(lab.kubectl, nodes)
            _trains(job, MOST)
            for left in (MOST - 1, LEAST):
                with lab.drain(nodes[left]) as drain:
                    drains.append(drain.finish())
                since.append(drains[-1].started)
                _trains(job, left)
        endless.suspend(job, watch)
    uncordon(lab.kubectl, nodes)
    changes = _changes(job, watch.history, since)
    job.delete()
    return changes, drains


def _trains(job: Job, members: int) -> None:
    """By the log: status knows a larger run only from a member's report, at its end."""
    opened = job.root.wait_for_world(members, seconds=endless.SECONDS)
    job.root.wait_for_step(opened.run, seconds=endless.SECONDS)


def _changes(job: Job, history: Sequence[Seen], since: Sequence[float]) -> list[Change]:
    trace, entries = job.root.trace(), job.root.entries()
    worlds = evidence.worlds(entries)
    gaps = evidence.gaps(trace.steps)
    lost = evidence.steps_lost(entries, trace.steps)
    ways = [way_of(history, entries, gap) for gap in gaps]
    if len(gaps) != len(since) or lost or set(ways) != {Way.LIVE}:
        raise NoEvidence(
            f"{len(since)} changes of capacity: training paused {len(gaps)} times, {lost} steps lost, {ways}"
        )
    return [Change(worlds[gap.before_run], worlds[gap.after_run], at, gap) for at, gap in zip(since, gaps, strict=True)]


def _figures(changes: Sequence[Change]) -> Iterator[Figure]:
    kinds = dict.fromkeys((change.before, change.after) for change in changes)
    for before, after in kinds:
        found = [change for change in changes if (change.before, change.after) == (before, after)]
        pauses = tuple(change.gap.seconds for change in found)
        yield Figure(f"training pause, {before} -> {after}", "s", pauses, PAUSE_BOUND, "the bound where it is live")
        taken = tuple(change.gap.resumed - change.since for change in found)
        what = "nodes come to training on them" if after > before else "drain begins to training without the node"
        yield Figure(f"  {what}", "s", taken)
