"""Karpenter's deadline on a real API server: the claim of the node is got with the chart's right, or done without."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure.wire import Leave
from tests.api.conftest import REPOSITORY, SYSTEM, Installed
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, starts, until

pytestmark = pytest.mark.api

CLAIMS = "nodeclaims.karpenter.sh"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CLAIMS},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodeclaims", "singular": "nodeclaim", "kind": "NodeClaim"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""The only part of Karpenter's own that is read: metadata."""


@pytest.fixture
def release(api_server: ApiServer, tools: dict[str, Path], installed: Installed) -> Callable[..., Path]:
    """Grants the chart's rights under another name, beside those `installed` (and in their namespace): a kubeconfig.

    Refusals for these do not count against the chart, see `rbac`.
    """

    def install(name: str, *values: str) -> Path:
        argv = [str(tools["helm"] / "helm"), "template", name, str(REPOSITORY / "helm" / "perdure")]
        argv += [f"--namespace={SYSTEM}", *(f"--set={value}" for value in values)]
        argv += [f"--show-only=templates/{part}.yaml" for part in ("serviceaccount", "rbac")]
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
        api_server.kubectl("apply", "-f", "-", input=done.stdout)
        return api_server.kubeconfig_for_service_account(SYSTEM, f"{name}-operator")

    return install


@contextmanager
def operator(kubeconfig: Path, log: Path, release: str) -> Iterator[OperatorProcess]:
    more = ("--node-claims", f"--lease-name={release}-operator")
    with OperatorProcess(kubeconfig, log, more=more) as process:
        until("leading", lambda: process.leading)
        yield process


def taken_away(scene: Scene, node: str, seconds: int) -> None:
    """As Karpenter does, in its order: the time on the claim, then the taint on the node."""
    name, server = f"{node}-claim", scene.server
    server.kubectl("apply", "-f", "-", input=json.dumps(CRD))
    server.kubectl("wait", "--for=jsonpath={.status.acceptedNames.kind}=NodeClaim", f"crd/{CLAIMS}", "--timeout=120s")
    server.kubectl("wait", "--for=condition=Established", f"crd/{CLAIMS}", "--timeout=120s")
    ends = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    marks = {"karpenter.sh/nodeclaim-termination-timestamp": ends}
    claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name, "annotations": marks}}
    until("the claim", lambda: server.kubectl("apply", "-f", "-", input=json.dumps(claim)).stdout)
    uid = json.loads(server.kubectl("get", CLAIMS, name, "--output=json").stdout)["metadata"]["uid"]
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name, "uid": uid, "blockOwnerDeletion": True}
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    server.kubectl("patch", "node", node, "--type=merge", f"--patch={patch}")
    server.kubectl("taint", "node", node, "karpenter.sh/disrupted:NoSchedule")


def seconds_given(scene: Scene) -> set[int]:
    """How long members may save, once all were asked."""
    until("all leave", lambda: all(isinstance(said, Leave) for said in scene.assignments()))
    return {said.seconds for said in scene.assignments() if isinstance(said, Leave)}


def test_members_have_left_before_the_claim_ends(
    api_server: ApiServer, namespace: str, release: Callable[..., Path], tmp_path: Path
) -> None:
    scene = Scene(api_server, namespace)
    with operator(release("claims", "nodeClaims=true"), tmp_path / "log", "claims") as process:
        scene.apply(disruption={"replacementTimeoutSeconds": 0})
        nodes = [scene.node(name) for name in ("n1", "n2")]
        starts(scene, *nodes)
        taken_away(scene, nodes[0], 300)
        (seconds,) = seconds_given(scene)
        assert seconds <= 300 - 5
        assert "deadlines" not in process.log.read_text()


def test_without_the_right_they_leave_all_the_same_and_it_is_said_once(
    api_server: ApiServer, namespace: str, release: Callable[..., Path], tmp_path: Path
) -> None:
    scene = Scene(api_server, namespace)
    with operator(release("claimless"), tmp_path / "log", "claimless") as process:
        scene.apply(disruption={"replacementTimeoutSeconds": 0})
        nodes = [scene.node(name) for name in ("n1", "n2")]
        starts(scene, *nodes)
        taken_away(scene, nodes[0], 300)
        assert seconds_given(scene) == {600}
        said = [line for line in process.log.read_text().splitlines() if "deadlines of Karpenter's nodes" in line]
        assert len(said) == 1
        assert "forbidden" in said[0].lower()
