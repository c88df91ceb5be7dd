"""The CRD gets into a cluster, and a newer one over it, in every way that people use. An API server of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from tests.api.conftest import REPOSITORY, SYSTEM
from tests.api.manifests import job
from tests.api.scene import until

pytestmark = pytest.mark.api

CRD = "trainingjobs.perdure.dev"


@pytest.fixture
def bare(tools: dict[str, Path]) -> Iterator[ApiServer]:
    """Without the CRD."""
    with ApiServer() as server:
        yield server


def established(server: ApiServer) -> bool:
    """Whether the API server serves the CRD, which it does not where it finds the schema wanting."""
    for state in ("jsonpath={.status.acceptedNames.kind}=TrainingJob", "condition=Established"):
        server.kubectl("wait", f"--for={state}", f"crd/{CRD}", "--timeout=120s")
    stored = json.loads(server.kubectl("get", "crd", CRD, "--output=json").stdout)
    conditions = {one["type"]: one["status"] for one in stored["status"]["conditions"]}
    return "NonStructuralSchema" not in conditions


def usable(server: ApiServer) -> bool:
    """Whether it takes a job: it may serve a CRD a moment after it has said so."""
    done = server.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job()), check=False)
    return done.returncode == 0


def test_helm_installs_it_and_kubectl_replaces_it_on_either_side(bare: ApiServer, tools: dict[str, Path]) -> None:
    argv = [str(tools["helm"] / "helm"), "install", "perdure", str(REPOSITORY / "helm" / "perdure")]
    argv += [f"--namespace={SYSTEM}", "--create-namespace", f"--kubeconfig={bare.kubeconfig}"]
    subprocess.run(argv, check=True, capture_output=True, text=True, env=bare.env)
    assert established(bare)
    until("a job is taken", lambda: usable(bare))
    bare.kubectl("apply", "--server-side", "--force-conflicts", "-f", REPOSITORY / "crds")
    bare.kubectl("apply", "--server-side", "-f", REPOSITORY / "crds")
    assert usable(bare)


def test_it_is_applied_on_the_clients_side_twice(bare: ApiServer) -> None:
    for _ in range(2):
        bare.kubectl("apply", "-f", REPOSITORY / "crds")
    assert established(bare)
    annotations = json.loads(bare.kubectl("get", "crd", CRD, "--output=json").stdout)["metadata"]["annotations"]
    assert sum(len(key) + len(value) for key, value in annotations.items()) < 262_144
