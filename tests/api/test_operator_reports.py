"""An operator as a process, with the chart's rights, and members of a real API server that report to it."""

from __future__ import annotations

import http.client
import itertools
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.harness.local_run import free_port
from perdure.wire import ANNOTATION_REPORT
from perdure.wire.report import REPORT_PATH, Report, TrainerPhase, read_channel, write_report
from perdure_operator.api.reasons import ConditionType
from perdure_operator.serving.certificate import make
from tests.api.conftest import install_rights
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, starts, until

pytestmark = pytest.mark.api

SYSTEM = "reporting-system"


@dataclass(frozen=True)
class Listening:
    """An operator that leads and takes reports."""

    port: int
    ca: str

    def post(self, token: str, report: Report) -> int:
        """The status of the answer; the certificate is checked as a member checks it."""
        trusting = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection("localhost", self.port, context=trusting, timeout=60)
        try:
            connection.request("POST", REPORT_PATH, write_report(report), {"Authorization": f"Bearer {token}"})
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def listening(
    api_server: ApiServer, tools: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listening]:
    rights = install_rights(api_server, tools, "reports.enabled=true", namespace=SYSTEM, release="reporting")
    folder, port = tmp_path_factory.mktemp("reports"), free_port()
    certificate, key = make(["localhost"], datetime.now(UTC))
    for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", certificate)):
        (folder / name).write_bytes(content)
    more = (
        f"--reports-port={port}",
        f"--reports-url=https://localhost:{port}",
        f"--reports-certificate={folder}",
        "--lease-name=reporting-operator",
    )
    with OperatorProcess(
        rights.kubeconfig, folder / "log", "reporting-0", more=more, lease_namespace=SYSTEM
    ) as operator:
        until("leading", lambda: operator.leading)
        yield Listening(port, certificate.decode())


@dataclass(frozen=True)
class Told(Scene):
    """A scene whose members report."""

    def token(self, pod: str, audience: str = "") -> str:
        """What the kubelet would put into the pod's projected volume: a token that ends with the pod."""
        raw = json.loads(self.kubectl("get", "pod", pod, "--output=json"))
        (source,) = (
            one["serviceAccountToken"]
            for volume in raw["spec"]["volumes"]
            for one in volume.get("projected", {}).get("sources", [])
        )
        bound = (
            "--bound-object-kind=Pod",
            f"--bound-object-name={pod}",
            f"--bound-object-uid={raw['metadata']['uid']}",
        )
        words = ("create", "token", raw["spec"]["serviceAccountName"], f"--audience={audience or source['audience']}")
        return self.kubectl(*words, *bound).strip()

    def column(self, name: str) -> str:
        """What kubectl get shows of the job in the column of this name."""
        head, line = self.kubectl("get", "ptj", self.name, "--output=wide").splitlines()
        place = head.index(name)
        return line[place:].split("  ")[0].strip()


def report(sequence: int, step: int, *, run: int = 1) -> Report:
    said = Report("0123abcd", sequence, TrainerPhase.TRAINING, run, rank=0, step=step, epoch=2)
    return replace(said, samples_per_second=96.0, commit_step=step - 1, commit_at=datetime.now(UTC).timestamp())


def test_a_members_report_is_what_kubectl_shows_and_every_other_token_is_refused(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene = Told(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first, second = starts(scene, *nodes)
    annotations = scene.pods()[0]["metadata"]["annotations"]
    assert read_channel(annotations[ANNOTATION_REPORT]).url == f"https://localhost:{listening.port}"
    assert scene.column("STEP") == ""

    token = scene.token(first)
    assert listening.post(token, report(1, 170)) == 200
    until("the step is shown", lambda: scene.column("STEP") == "170")
    assert (scene.column("EPOCH"), scene.column("SAMPLES/S")) == ("2", "96")
    assert scene.column("LAST SAVE") != ""
    progress = scene.status().progress
    assert progress is not None
    assert (progress.run, progress.step) == (1, 170)
    until("status says so", lambda: "see status.progress" in str(scene.status().find(ConditionType.RUNNING)))

    assert listening.post(token, report(1, 171)) == 403, "a replayed sequence"
    assert listening.post(token, report(2, 171, run=9)) == 403, "another run"
    assert listening.post(scene.token(first, audience="perdure.dev/reports/other/uid"), report(2, 171)) == 401
    assert listening.post(scene.token(first, audience=api_audience(api_server)), report(2, 171)) == 401
    assert listening.post("wrong", report(2, 171)) == 401
    assert listening.post(scene.token(second), report(1, 999)) == 200, "it does not speak for the job"

    gone = scene.token(second)
    scene.kubectl("delete", "pod", second, "--grace-period=0", "--force")
    numbers = itertools.count(2)
    until("the deletion is seen", lambda: listening.post(gone, report(next(numbers), 173)) == 403)


def api_audience(server: ApiServer) -> str:
    """The audience of tokens that the API server itself takes."""
    raw = json.loads(server.kubectl("get", "--raw", "/.well-known/openid-configuration").stdout)
    return str(raw["issuer"])
