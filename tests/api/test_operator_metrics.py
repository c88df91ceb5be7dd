"""Two operators as processes, with the chart's rights, and a real Prometheus that scrapes both."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from e2e.harness.local_run import free_port
from e2e.prepare.debian import PROMETHEUS
from e2e.prepare.requirements import missing_for_prometheus
from tests.api.conftest import REPOSITORY, install_rights
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, starts, until

pytestmark = pytest.mark.api

SYSTEM = "metered-system"
ALERTS = REPOSITORY / "helm" / "perdure" / "alerts.yaml"


@dataclass(frozen=True)
class Metered:
    """The chart's rights with metrics, and tokens of who may read them and of who may not."""

    kubeconfig: Path
    reader: str
    stranger: str
    ports: tuple[int, int]

    def operator(self, folder: Path, number: int) -> OperatorProcess:
        name = f"metered-{number}"
        more = (f"--metrics-port={self.ports[number]}", "--lease-name=metered-operator")
        return OperatorProcess(self.kubeconfig, folder / name, name, more=more, lease_namespace=SYSTEM)

    def scrape(self, token: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of operator 0; status 0 while nobody listens."""
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self.ports[0], context=trusting, timeout=60)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} | headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        except ConnectionError:
            return 0, {}, b""
        finally:
            connection.close()


@pytest.fixture(scope="session")
def metered(api_server: ApiServer, tools: dict[str, Path]) -> Metered:
    rights = install_rights(api_server, tools, "metrics.enabled=true", namespace=SYSTEM, release="metered")
    chart = [str(tools["helm"] / "helm"), "template", "metered", str(REPOSITORY / "helm" / "perdure")]
    chart += [f"--namespace={SYSTEM}", "--set=metrics.enabled=true", "--show-only=templates/metrics.yaml"]
    done = subprocess.run(chart, check=True, capture_output=True, text=True)
    api_server.kubectl("apply", "-f", "-", input=done.stdout)
    for name in ("prometheus", "stranger"):
        api_server.kubectl("create", "serviceaccount", name, f"--namespace={SYSTEM}")
    role = "--clusterrole=metered-operator-metrics-reader"
    account = f"--serviceaccount={SYSTEM}:prometheus"
    api_server.kubectl("create", "clusterrolebinding", "metered-prometheus", role, account)
    reader, stranger = (
        api_server.kubectl("create", "token", name, f"--namespace={SYSTEM}").stdout.strip()
        for name in ("prometheus", "stranger")
    )
    return Metered(rights.kubeconfig, reader, stranger, (free_port(), free_port()))


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    port: int

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample; none while it does not answer yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={quote(expression)}"
        try:
            with urlopen(url, timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except (URLError, ConnectionError):
            return []
        return [(one["metric"], float(one["value"][1])) for one in found]

    def values(self, expression: str) -> list[float]:
        return [value for _, value in self.query(expression)]


@pytest.fixture
def prometheus(metered: Metered, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes the operators 0 and 1 every two seconds, and evaluates the chart's alerts."""
    lacks = missing_for_prometheus()
    if lacks:
        pytest.skip("; ".join(lacks))
    (tmp_path / "token").write_text(metered.reader)
    operators = {
        "job_name": "perdure",
        "scheme": "https",
        "honor_labels": True,
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "tls_config": {"insecure_skip_verify": True},
        "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in metered.ports]}],
    }
    often = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
    config = {"global": often, "rule_files": [str(ALERTS)], "scrape_configs": [operators]}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    argv = [str(PROMETHEUS.folder() / "prometheus"), f"--config.file={tmp_path / 'prometheus.yaml'}"]
    argv += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


def test_only_whom_the_api_server_lets_get_metrics_reads_them(metered: Metered, tmp_path: Path) -> None:
    def answers() -> tuple[int, dict[str, str], bytes] | None:
        answer = metered.scrape(metered.reader)
        return answer if answer[0] else None

    with metered.operator(tmp_path, 0):
        status, headers, text = until("an answer", answers)
        assert status == 200, text
        assert b"perdure_operator_info{" in text
        assert "Content-Encoding" not in headers
        assert metered.scrape(metered.reader, **{"Accept-Encoding": "gzip"})[1]["Content-Encoding"] == "gzip"
        assert metered.scrape(metered.stranger)[0] == 403
        assert metered.scrape("wrong")[0] == 401


def test_a_new_leader_continues_what_prometheus_reads_and_a_deleted_job_has_no_series(
    api_server: ApiServer, namespace: str, metered: Metered, prometheus: Prometheus, tmp_path: Path
) -> None:
    scene = Scene(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2")]
    of = f'namespace="{namespace}",name="digits"'
    with ExitStack() as stack:
        both = [stack.enter_context(metered.operator(tmp_path, number)) for number in (0, 1)]
        leader = until("a leader", lambda: next((one for one in both if one.leading), None))
        scene.apply()
        starts(scene, *nodes)
        until("both replicas are read", lambda: sorted(prometheus.values("perdure_operator_leading")) == [0, 1])
        until("the job is read", lambda: prometheus.values(f"perdure_job_run{{{of}}}") == [1])
        until("its phase", lambda: prometheus.values(f'perdure_job_phase{{{of},phase="Running"}}') == [1])
        ((labels, _),) = until("its size", lambda: prometheus.query(f"perdure_job_replicas_wanted{{{of}}}"))
        first = f"127.0.0.1:{metered.ports[both.index(leader)]}"
        assert labels["instance"] == first
        showing = "count(count by (instance) (perdure_job_info))"
        assert until("replicas that show jobs", lambda: prometheus.values(showing)) == [1]

        leader.process.terminate()
        until("another leader", lambda: all(one.leading for one in both))
        until("the same of it", lambda: prometheus.values(f'perdure_job_run{{{of},instance!="{first}"}}') == [1])

        scene.kubectl("delete", "trainingjob", "digits", "--wait=false")
        nothing = f"perdure_operator_leading == 1 unless on () perdure_job_info{{{of}}}"
        until("the leader is read, and no such job", lambda: prometheus.query(nothing))
