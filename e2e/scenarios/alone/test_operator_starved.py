"""The machine has far too little CPU for what runs on it: the leader keeps its Lease, and no operator ends itself."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from e2e.harness.lab import Lab
from e2e.harness.operator import NAMESPACE
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

HUNGRY: Final = 32
"""Processes that want all of a core each."""
HUNGER: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"


def test_an_operator_on_a_starved_machine_keeps_its_lease(lab: Lab, train: Train, undisturbed: Undisturbed) -> None:
    with train(trouble=Trouble(heard=False)) as training:
        training.trains(steps=3)
        leader, restarts = lab.operator.leader()["metadata"]["name"], restarts_of_operators(lab)
        with hungry(HUNGRY):
            drained = lab.drain(training.node(rank=1)).finish()
            training.completes()
        logs = lab.kubectl.run("logs", "--namespace", NAMESPACE, leader).stdout
    print(*[line for line in logs.splitlines() if "event loop was" in line], sep="\n")
    assert drained.status == 0, drained.output
    assert (lab.operator.leader()["metadata"]["name"], restarts_of_operators(lab)) == (leader, restarts)
    assert training.verdict() == nothing_lost(undisturbed(Config()))


def restarts_of_operators(lab: Lab) -> int:
    pods = lab.kubectl.json("get", "pods", "--namespace", NAMESPACE)["items"]
    return sum(one["restartCount"] for pod in pods for one in pod["status"]["containerStatuses"])


@contextlib.contextmanager
def hungry(processes: int) -> Iterator[None]:
    """Processes that compute until the end of the block, or of this process."""
    started = [subprocess.Popen([sys.executable, "-S", "-c", HUNGER]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()
