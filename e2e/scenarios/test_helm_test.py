"""`helm test` of the release that is installed: its pod runs in the cluster, with the operator's image and rights."""

from __future__ import annotations

import pytest

from e2e.harness import operator
from e2e.harness.lab import Lab

pytestmark = pytest.mark.cluster

POD = f"{operator.RELEASE}-operator-test"
SECONDS = 300.0


@pytest.mark.usefixtures("lane")  # so that nobody kills the operator meanwhile
def test_the_installed_chart_passes_its_own_test_and_leaves_nothing_behind(lab: Lab) -> None:
    words = ["test", operator.RELEASE, "--namespace", operator.NAMESPACE, f"--timeout={SECONDS:.0f}s"]
    done = lab.cluster.helm(*words, timeout=SECONDS + 30)
    assert f"TEST SUITE:     {POD}" in done.stdout
    assert "Phase:          Succeeded" in done.stdout
    pods = lab.kubectl.json("get", "pods", "--namespace", operator.NAMESPACE)["items"]
    assert POD not in [pod["metadata"]["name"] for pod in pods]
