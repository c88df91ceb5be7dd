"""One real kube-apiserver for all API tests, a namespace for each. Needs the built tools, no root and no nodes."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.harness.shared_run import SharedRun
from e2e.prepare import tool_folders
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, until

REPOSITORY = Path(__file__).parents[2]
SYSTEM = "perdure-system"
_numbers = itertools.count()


@dataclass(frozen=True)
class Installed:
    """The chart's rights in force, without its Deployment: the tests start the operator themselves."""

    kubeconfig: Path
    rendered: str
    user: str = f"system:serviceaccount:{SYSTEM}:perdure-operator"


@pytest.fixture(scope="session")
def tools() -> dict[str, Path]:
    """Folders of the built tools."""
    folders = tool_folders()
    wanted = [folders["kubernetes"] / "kube-apiserver", folders["kubernetes"] / "etcd", folders["helm"] / "helm"]
    lacking = [path.name for path in wanted if not path.exists()]
    if lacking:
        pytest.skip(f"not built: {', '.join(lacking)}; run `make prepare`")
    return folders


@pytest.fixture(scope="session")
def api_server(tools: dict[str, Path]) -> Iterator[ApiServer]:
    """With the CRD."""
    run = SharedRun.current()
    with ApiServer(audit_log=run.audit_logs / f"{os.getpid()}.log") as server:
        server.kubectl("apply", "-f", REPOSITORY / "crds")
        # The names first: `kubectl wait` gives up on an object whose conditions are still null.
        for state in ("jsonpath={.status.acceptedNames.kind}=TrainingJob", "condition=Established"):
            server.kubectl("wait", f"--for={state}", "crd/trainingjobs.perdure.dev", "--timeout=30s")
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """Fresh, and with the ServiceAccount that a controller would have made."""
    name = f"test-{next(_numbers)}"
    api_server.kubectl("create", "namespace", name)
    api_server.kubectl("create", "serviceaccount", "default", f"--namespace={name}")
    return name


@pytest.fixture(scope="session")
def installed(api_server: ApiServer, tools: dict[str, Path]) -> Installed:
    """The chart's ServiceAccount with exactly the chart's rights."""
    chart = REPOSITORY / "helm" / "perdure"
    argv = [str(tools["helm"] / "helm"), "template", "perdure", str(chart), f"--namespace={SYSTEM}"]
    rights = [f"--show-only=templates/{name}.yaml" for name in ("serviceaccount", "rbac")]
    done = subprocess.run([*argv, *rights], check=True, capture_output=True, text=True)
    api_server.kubectl("create", "namespace", SYSTEM)
    api_server.kubectl("apply", "-f", "-", input=done.stdout)
    return Installed(api_server.kubeconfig_for_service_account(SYSTEM, "perdure-operator"), done.stdout)


@pytest.fixture(scope="module")
def operator(
    api_server: ApiServer, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One that leads, for all tests of a module."""
    log = tmp_path_factory.mktemp("operator") / "log"
    with OperatorProcess(installed.kubeconfig, log) as process:
        until("leading", lambda: process.leading)
        yield process


@pytest.fixture
def scene(api_server: ApiServer, namespace: str, operator: OperatorProcess) -> Scene:
    """A namespace without a job, which the operator watches."""
    return Scene(api_server, namespace)
