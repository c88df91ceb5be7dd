"""One cluster and one operator for all scenarios, and the undisturbed trainings they are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.requirements import require_cluster
from e2e.harness.drain import uncordon_all
from e2e.harness.lab import DIGITS, Lab
from e2e.harness.skips import pytest_runtest_makereport
from e2e.prepare import Progress
from e2e.scenarios.training import IMAGE, Config, Training, Trouble

__all__ = ["pytest_runtest_makereport"]

CLUSTER = "scenarios"
LAST = "test_rbac.py"
TRAINERS = Path(__file__).parent / "trainers"
NUMBERS = itertools.count(1)
UNHURRIED = {"PACE_SECONDS": "0"}

Undisturbed = Callable[[Config], str]
Train = Callable[..., Training]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The audit of permissions comes last: it judges the whole run."""
    items.sort(key=lambda item: item.path.name == LAST)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The cluster, with the operator installed."""
    require_cluster()
    with Lab.up(CLUSTER, Progress()) as found:
        found.image(IMAGE, [DIGITS / "train.py", *TRAINERS.glob("*.py")])
        yield found


@pytest.fixture(scope="session")
def undisturbed(lab: Lab) -> Undisturbed:
    """The weights at the end of a training that nobody disturbs; each Config is trained once."""
    known: dict[Config, str] = {}

    def weights(config: Config) -> str:
        if config not in known:
            name = f"undisturbed-{len(known) + 1}"
            with Training(lab, name, config, Trouble(environ=UNHURRIED)) as training:
                training.completes()
            verdict = training.verdict()
            assert (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated) == (0, 0, 0)
            known[config] = verdict.weights
        return known[config]

    return weights


@pytest.fixture
def train(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Train]:
    """Starts a training in a namespace of its own; afterwards every node takes pods again."""

    def start(config: Config | None = None, trouble: Trouble | None = None) -> Training:
        name = f"case-{next(NUMBERS)}-{request.node.originalname.removeprefix('test_').replace('_', '-')[:40]}"
        return Training(lab, name.rstrip("-"), config or Config(), trouble or Trouble())

    yield start
    uncordon_all(lab.kubectl)
