"""How much of a changing capacity a job trains with: elastic, and of a fixed size, beside the ideal.

All jobs live on the same nodes at the same time, so they meet the same drains. Their trainers take a fixed time for
each sample, so twice as many members take half as long. A node is drained, and later uncordoned. Called by
e2e.bench.elastic, on its cluster.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.bench import capacity, endless, pool
from e2e.bench.capacity import Change
from e2e.bench.report import Figure
from e2e.harness import evidence
from e2e.harness.drain import Drain, uncordon
from e2e.harness.evidence import NoEvidence
from e2e.harness.job import Job, Manifest, with_container
from e2e.harness.lab import DIGITS, Lab
from e2e.harness.watching import Watch
from e2e.prepare import Progress

SEED: Final = 7
SECONDS: Final = 600.0
DWELL: Final = (35.0, 90.0)
LOW, HIGH = 2, 4
SECONDS_PER_SAMPLE: Final = 0.005
"""Of 64 samples: 160 ms a step with two members, 80 ms with four."""
BOUND: Final = 0.95
IMAGE: Final = "perdure-paced:dev"
SCRIPT: Final = Path(__file__).with_name("elastic_trainer.py")
SIZES: Final[Mapping[str, tuple[Manifest | None, int]]] = {
    "elastic": ({"minReplicas": LOW, "maxReplicas": HIGH, "growAfterSeconds": 3}, HIGH),
    "fixed-4": (None, HIGH),
    "fixed-2": (None, LOW),
}


@dataclass(frozen=True)
class Running:
    """A job and its observations."""

    name: str
    job: Job
    watch: Watch


def measure(lab: Lab, home: str, nodes: Sequence[str], progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """The share of the ideal that each job has trained."""
    lab.image(IMAGE, [SCRIPT, DIGITS / "train.py"])
    drawn = capacity.draw(SEED, seconds=SECONDS, low=LOW, high=HIGH, dwell=DWELL)
    with contextlib.ExitStack() as open_until_here:
        running = [open_until_here.enter_context(_begun(lab, home, name)) for name in SIZES]
        for one in running:
            endless.trains(one.job, one.watch, 1)
        changes, end = _played(lab, nodes, drawn, progress)
        for one in running:
            endless.suspend(one.job, one.watch)
        shares = {one.name: _share(one.job, changes, end) for one in running}
    facts = {
        "seed": SEED,
        "seconds": SECONDS,
        "nodes": [[change.at - changes[0].at, change.nodes] for change in changes],
    }
    return list(_figures(shares)), facts


@contextlib.contextmanager
def _begun(lab: Lab, home: str, name: str) -> Iterator[Running]:
    changes = pool.one_a_node(name, home, *SIZES[name])
    paced = with_container(
        endless.manifest(f"paced-{name}", changes, {}),
        {},
        image=IMAGE,
        command=["python", SCRIPT.name, str(SECONDS_PER_SAMPLE)],
    )
    job = lab.job(paced, f"bench-{name}")
    watch = Watch(job.kubectl, job.namespace, job.describe, ("trainingjobs", "pods"))
    with watch:
        job.apply()
        yield Running(name, job, watch)
        job.delete()


def _played(lab: Lab, nodes: Sequence[str], drawn: Sequence[Change], progress: Progress) -> tuple[list[Change], float]:
    """The changes with their actual times, and the end."""
    begin = time.time()
    found = [Change(begin, drawn[0].nodes)]
    with contextlib.ExitStack() as drains:
        for change in drawn[1:]:
            time.sleep(max(0.0, begin + change.at - time.time()))
            progress.say(f"{change.at:.0f} s: {change.nodes} nodes")
            if change.nodes < found[-1].nodes:
                found.append(Change(time.time(), change.nodes))
                drains.enter_context(Drain(lab.kubectl, nodes[change.nodes]))
            else:
                drains.close()  # those that have not left by now stay
                found.append(Change(time.time(), change.nodes))
                uncordon(lab.kubectl, [nodes[found[-2].nodes]])
        time.sleep(max(0.0, begin + SECONDS - time.time()))
    uncordon(lab.kubectl, nodes)
    return found, begin + SECONDS


def _share(job: Job, changes: Sequence[Change], end: float) -> float:
    trace, entries = job.root.trace(), job.root.entries()
    if lost := evidence.steps_lost(entries, trace.steps):
        raise NoEvidence(f"{job.name} has lost {lost} steps")
    counted = evidence.counted(entries, trace.steps)
    return capacity.used(changes, end, counted, evidence.worlds(entries)) / capacity.ideal(
        changes, end, SECONDS_PER_SAMPLE
    )


def _figures(shares: Mapping[str, float]) -> Iterator[Figure]:
    for name, share in shares.items():
        bound = (BOUND, "the bound, of the right size at once and no pause") if name == "elastic" else (None, "")
        yield Figure(f"goodput, {name}", "of the ideal", (share,), *bound)
