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

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from e2e.harness.local_run import free_port
from tests.api.conftest import REPOSITORY, install_rights
from tests.api.process import OperatorProcess
from tests.api.prometheus import Prometheus, started
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


def impatient(folder: Path) -> Path:
    """The chart's alerts, each of which fires as soon as its expression has samples."""
    rules = yaml.safe_load(ALERTS.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule["for"] = "0s"
    file = folder / "alerts.yaml"
    file.write_text(yaml.safe_dump(rules))
    return file


@pytest.fixture
def prometheus(metered: Metered, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes the operators 0 and 1, and evaluates the chart's alerts without their patience."""
    (tmp_path / "token").write_text(metered.reader)
    operators = {
        "job_name": "perdure",
        "scheme": "https",
        "honor_labels": True,
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "tls_config": {"insecure_skip_verify": True},
        "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in metered.ports]}],
    }
    with started(tmp_path, operators, rules=(impatient(tmp_path),)) as running:
        yield running


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
        until("the watch is not late", lambda: prometheus.values("max(perdure_operator_watch_lag_seconds)") == [0])
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


def test_a_job_without_room_and_an_operator_that_does_not_lead_are_alerts(
    api_server: ApiServer, namespace: str, metered: Metered, prometheus: Prometheus, tmp_path: Path
) -> None:
    """Each alert's own patience: test_alerts.py."""
    scene = Scene(api_server, namespace)
    no_leader, waits = firing("PerdureNoLeader"), firing("PerdureJobWaits", f'namespace="{namespace}",name="digits"')
    hold = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "metered-operator"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
    }
    scene.apply()
    api_server.kubectl("delete", "lease", "metered-operator", f"--namespace={SYSTEM}", "--ignore-not-found")
    api_server.kubectl("create", "-f", "-", f"--namespace={SYSTEM}", input=json.dumps(hold))
    with metered.operator(tmp_path, 0):
        until("nobody leads", lambda: prometheus.query(no_leader))
        assert prometheus.query(waits) == []
        assert scene.names() == [], "no job is started"
        api_server.kubectl("delete", "lease", "metered-operator", f"--namespace={SYSTEM}")
        until("its pods have no node, as there is none", lambda: prometheus.query(waits))
        until("somebody leads", lambda: not prometheus.query(no_leader))
        starts(scene, *(scene.node(name) for name in ("n1", "n2")))
        until("it trains", lambda: not prometheus.query(waits))


def firing(alert: str, labels: str = "") -> str:
    """The query that finds it."""
    return f'ALERTS{{alertstate="firing",alertname="{alert}",{labels}}}'
