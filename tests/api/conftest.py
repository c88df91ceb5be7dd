"""One real kube-apiserver for all API tests, a namespace for each. Needs the built tools, no root and no nodes."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.harness.shared_run import SharedRun
from e2e.prepare import tool_folders
from e2e.prepare.debian import PROMETHEUS
from e2e.prepare.requirements import missing_for_prometheus
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


def audit_log() -> Path:
    """One that the test of the chart's rights reads."""
    return SharedRun.current().audit_logs / f"{os.getpid()}-{next(_numbers)}.log"


def apply_crd(server: ApiServer) -> None:
    """Once it returns the API server takes jobs."""
    server.kubectl("apply", "-f", REPOSITORY / "crds")
    # The names first: `kubectl wait` gives up on an object whose conditions are still null.
    for state in ("jsonpath={.status.acceptedNames.kind}=TrainingJob", "condition=Established"):
        server.kubectl("wait", f"--for={state}", "crd/trainingjobs.perdure.dev", "--timeout=120s")
    # It may serve them a moment after it has said so.
    until(
        "jobs are served",
        lambda: server.kubectl("get", "trainingjobs", "--all-namespaces", check=False).returncode == 0,
    )


def new_namespace(server: ApiServer) -> str:
    """Fresh, and with the ServiceAccount that a controller would have made."""
    name = f"test-{next(_numbers)}"
    server.ask("/api/v1/namespaces", "POST", {"metadata": {"name": name}})
    server.ask(f"/api/v1/namespaces/{name}/serviceaccounts", "POST", {"metadata": {"name": "default"}})
    return name


def install_rights(
    server: ApiServer, tools: dict[str, Path], *values: str, namespace: str = SYSTEM, release: str = "perdure"
) -> Installed:
    """The chart's ServiceAccount in that namespace with exactly the chart's rights, and the Secret that it keeps."""
    chart = REPOSITORY / "helm" / "perdure"
    argv = [str(tools["helm"] / "helm"), "template", release, str(chart), f"--namespace={namespace}"]
    argv += [f"--set={one}" for one in values]
    names = ("serviceaccount", "rbac") if "reports.enabled=false" in values else ("serviceaccount", "rbac", "reports")
    rights = [f"--show-only=templates/{name}.yaml" for name in names]
    done = subprocess.run([*argv, *rights], check=True, capture_output=True, text=True)
    server.kubectl("create", "namespace", namespace)
    server.kubectl("apply", "-f", "-", input=done.stdout)
    return Installed(server.kubeconfig_for_service_account(namespace, f"{release}-operator"), done.stdout)


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
def api_server(tools: dict[str, Path], for_the_unit: ExitStack) -> ApiServer:
    """With the CRD."""
    server = for_the_unit.enter_context(ApiServer(audit_log=audit_log()))
    apply_crd(server)
    return server


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Debian's; the test is skipped where there is none."""
    lacks = missing_for_prometheus()
    if lacks:
        pytest.skip("; ".join(lacks))
    return PROMETHEUS.folder() / "promtool"


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """See `new_namespace`."""
    return new_namespace(api_server)


@pytest.fixture(scope="session")
def installed(api_server: ApiServer, tools: dict[str, Path]) -> Installed:
    """See `install_rights`. Without reports, whose rights `test_operator_reports` uses."""
    return install_rights(api_server, tools, "reports.enabled=false")


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
