"""Which nodes belong to which scenario, so that two scenarios on one cluster do not disturb each other.

A lane is a scenario's own nodes: its members run there and nowhere else, and it drains only these. The operator has a
lane of its own. Scenarios that concern all others (the operator killed, or replaced) take the whole cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.harness.drain import uncordon
from e2e.harness.lab import Lab
from e2e.harness.shared_run import SharedRun

LABEL = "lane"
OPERATORS = "operators"
LANES = {OPERATORS: 2, "a": 3, "b": 3, "c": 3}
NODES = sum(LANES.values())


def nodes(lab: Lab, lane: str) -> tuple[str, ...]:
    """The lane's nodes."""
    names = list(LANES)
    first = sum(LANES[name] for name in names[: names.index(lane)])
    return lab.cluster.nodes[first : first + LANES[lane]]


def label(lab: Lab) -> None:
    """Tells Kubernetes which node is whose."""
    for lane in LANES:
        lab.kubectl("label", "nodes", *nodes(lab, lane), f"{LABEL}={lane}")


@contextlib.contextmanager
def taken(lab: Lab, run: SharedRun, *, alone: bool) -> Iterator[str]:
    """A lane that is free, or one with the whole cluster; afterwards its nodes take pods again."""
    members = [lane for lane in LANES if lane != OPERATORS]
    with run.locked("whole-cluster", shared=not alone), run.one_of(members) as lane:
        yield lane
        uncordon(lab.kubectl, lab.cluster.nodes[:NODES] if alone else nodes(lab, lane))
