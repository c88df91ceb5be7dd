"""One cluster and one operator for all scenarios, and the undisturbed trainings they are compared with."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster, autoscaler
from e2e.cluster.requirements import require_autoscaler, require_cluster
from e2e.harness import twin
from e2e.harness.lab import DIGITS, TINYGPT, Lab
from e2e.harness.pool import Pool
from e2e.harness.shared_run import SharedRun
from e2e.prepare import Environments, Progress
from e2e.scenarios import lanes
from e2e.scenarios.training import IMAGE, Config, Training, Trouble
from tests.support.forked import ForkedRank

CLUSTER = "scenarios"
TINYGPT_IMAGE = "perdure-tinygpt:dev"
SCRIPT = DIGITS / "train.py"
TRAINERS = Path(__file__).parent / "trainers"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
OPERATOR_VALUES = {f"nodeSelector.{lanes.LABEL}": lanes.OPERATORS}
NOTICE_SECONDS = 15
SIGNALS = ({"name": "aws-spot-interruption", "deadlineSeconds": NOTICE_SECONDS},)
"""AWS gives two minutes, for which no test waits."""
NUMBERS = itertools.count(1)
OTHERS_SECONDS = 600.0

Undisturbed = Callable[[Config], twin.Twin]
Train = Callable[..., Training]
MakePool = Callable[..., Pool]


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The cluster, with the operator installed: the first process that asks boots it, the run's end removes it."""
    require_cluster()
    run = SharedRun.current()
    run.once("lab", lambda: boot(run))
    return Lab(Cluster.attach(CLUSTER))


def boot(run: SharedRun) -> str:
    """Boots it; the run removes it at its end."""
    found = Lab(Cluster.up(CLUSTER, lanes.NODES, Progress(), owner=run.owner))
    run.add_cluster(CLUSTER)  # not before: where another run's is up, this one gets none, and must not take that away
    lanes.label(found)
    found.install(SIGNALS, **OPERATOR_VALUES)
    found.image(IMAGE, [SCRIPT, *TRAINERS.glob("*.py")])
    found.image(TINYGPT_IMAGE, [TINYGPT / "train.py", TRAINERS / "paced.py"])
    return CLUSTER


@pytest.fixture(scope="session")
def undisturbed(lab: Lab) -> Undisturbed:
    """An undisturbed training, outside the cluster; the test run trains each Config once."""
    python = Environments(Path(lab.cluster.facts.environments)).trainer / "bin" / "python"

    def found(config: Config) -> twin.Twin:
        return twin.trained_once(python, SCRIPT, config.arguments(), world=config.members, start=ForkedRank.start)

    return found


@pytest.fixture
def alone() -> bool:
    """Whether a scenario has the cluster to itself; those in the folder `alone` do."""
    return False


@pytest.fixture
def lane(lab: Lab, alone: bool) -> Iterator[str]:
    """The scenario's nodes."""
    with lanes.taken(lab, SharedRun.current(), alone=alone) as name:
        yield name


@pytest.fixture(scope="module")
def karpenter(lab: Lab, request: pytest.FixtureRequest) -> None:
    """The cluster's autoscaler; with its nodes and those of the tests of the cluster tool inotify is at its limit."""
    require_autoscaler()
    run = SharedRun.current()
    others = [item.nodeid for item in request.session.items if item.nodeid.startswith("tests/cluster/")]
    left = run.wait_for(others, seconds=OTHERS_SECONDS)
    assert not left, f"not over after {OTHERS_SECONDS:g} s, and their clusters take what new nodes need: {left}"
    run.once("karpenter", lambda: autoscaler.start(lab.cluster))


@pytest.fixture
def pool(lab: Lab, karpenter: None, lane: str) -> MakePool:  # noqa: ARG001 - prerequisites, and the order
    """Makes a NodePool whose nodes are a lane of their own, of its name."""

    def make(nodes: int, **template: Any) -> Pool:
        name = f"p{WORKER}{next(NUMBERS)}"
        return Pool(lab.kubectl, name, nodes=nodes, labels={lanes.LABEL: name}, **template)

    return make


@pytest.fixture
def train(lab: Lab, lane: str, request: pytest.FixtureRequest) -> Train:
    """Starts a training on the scenario's nodes, or others, in a namespace of its own."""

    def start(config: Config | None = None, trouble: Trouble | None = None, on: str = lane) -> Training:
        words = ["case", f"{WORKER}{next(NUMBERS)}", request.node.originalname.removeprefix("test_")]
        name = "-".join(words).replace("_", "-")[:50]
        return Training(lab, name.rstrip("-"), config or Config(), trouble or Trouble(), on)

    return start
