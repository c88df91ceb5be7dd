"""How long the operator has no leader when the leader's node is drained: from the Lease's release to its next holder.

A cluster of its own, its operator drained off its node CHANGES times. The Lease is watched as by any client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from e2e.bench.report import Figure
from e2e.harness.drain import uncordon
from e2e.harness.evidence import NoEvidence
from e2e.harness.lab import Lab
from e2e.harness.operator import NAMESPACE
from e2e.harness.watching import Seen, Watch
from e2e.prepare import Progress

CLUSTER = "bench"
CHANGES = 5
SECONDS = 60.0
GAP_SECONDS = 0.5


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Boot, drain, measure; nothing remains."""
    with Lab.up(CLUSTER, progress, owner=os.getpid()) as lab:
        changes = [_change(lab, progress, number + 1) for number in range(CHANGES)]
    free, total = zip(*changes, strict=True)
    figures = [
        Figure("no leader", "s", free, GAP_SECONDS, "the target"),
        Figure("drain begun to led again", "s", total),
    ]
    return figures, {"changes": CHANGES, "cores": os.cpu_count()}


def _change(lab: Lab, progress: Progress, number: int) -> tuple[float, float]:
    leader = lab.operator.leader()
    name, node = str(leader["metadata"]["name"]), str(leader["spec"]["nodeName"])
    progress.say(f"kubectl drain {node} --ignore-daemonsets, which {name} leads from ({number} of {CHANGES})")
    with Watch(lab.kubectl, NAMESPACE, lambda: f"the Lease after {name}", ("leases",)) as watch:
        watch.wait("the Lease is seen", lambda history: bool(_held_by(history, name)), seconds=SECONDS)
        with lab.drain(node) as drain:
            watch.wait("another leads", lambda history: bool(_held_by_another(history, name)), seconds=SECONDS)
            drain.finish()
        history = watch.history
    uncordon(lab.kubectl, lab.cluster.nodes)
    lab.kubectl("rollout", "status", "deployment", "--namespace", NAMESPACE, f"--timeout={SECONDS:.0f}s")
    held = _held_by_another(history, name)[0].time
    given_back = [seen.time for seen in history if not _holder(seen) and drain.started <= seen.time <= held]
    if not given_back:
        raise NoEvidence(f"no watch saw the Lease of {name} given back")
    return held - given_back[0], held - drain.started


def _holder(seen: Seen) -> str:
    return str(seen.object["spec"].get("holderIdentity") or "").partition("_")[0]


def _held_by(history: Sequence[Seen], name: str) -> list[Seen]:
    return [seen for seen in history if _holder(seen) == name]


def _held_by_another(history: Sequence[Seen], name: str) -> list[Seen]:
    return [seen for seen in history if _holder(seen) not in ("", name)]
