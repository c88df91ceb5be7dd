"""Evictions on a real API server of Kubernetes 1.37.0 with the feature gate EvictionRequestAPI.

That version ships no controller for them: the test plays it, and the API server's own validation sees to it that the
test and the operator write what each of them may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure.wire import Leave, Train
from perdure_operator.api.status import Intent
from tests.api.conftest import Installed, apply_crd, audit_log, install_rights, new_namespace
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, starts, until
from tests.support import evictions
from tests.support.evictions import Json

pytestmark = pytest.mark.api

GATES = ("--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true")
KIND = "evictions.lifecycle.k8s.io"
EVICTIONS = "/apis/lifecycle.k8s.io/v1alpha1"
PATIENT = {"replacementTimeoutSeconds": 600}


@dataclass(frozen=True)
class Eviction:
    """One of a member, with the controller's part in the test's hands."""

    scene: Scene
    pod: str

    def begin(self) -> None:
        """A request is made, and the controller makes it the operator's turn."""
        where, uid = self.scene.namespace, self._uid()
        self.scene.kubectl("create", "-f", "-", stdin=json.dumps(evictions.request(where, self.pod, uid)))
        self.scene.kubectl("create", "-f", "-", stdin=json.dumps(evictions.eviction(where, self.pod, uid)))
        self.tell(lambda _: evictions.turn_of_the_operator(now()))

    def tell(self, change: Callable[[Json], Json]) -> None:
        """The controller writes the status; the API server refuses invalid changes."""
        while True:  # an answer of the operator may come in between
            raw = self.raw()
            body = json.dumps(raw | {"status": change(raw.get("status") or {})})
            words = ("replace", "--subresource=status", f"--namespace={self.scene.namespace}", "-f", "-")
            done = self.scene.server.kubectl(*words, input=body, check=False)
            if done.returncode == 0:
                return
            assert "the object has been modified" in done.stderr, done.stderr

    def answer(self) -> Json:
        """What the operator has said."""
        return evictions.answer_of(self.raw())

    def heard(self) -> Json | None:
        """The same, once it has said anything."""
        said = self.answer()
        return said if said.get("heartbeatTime") else None

    def raw(self) -> dict[str, Any]:
        return self.scene.server.ask(f"{EVICTIONS}/namespaces/{self.scene.namespace}/evictions/{self._name}")

    def delete(self) -> None:
        self.scene.kubectl("delete", KIND, self._name)

    @property
    def _name(self) -> str:
        return f"evict-{self.pod}"

    def _uid(self) -> str:
        return str(next(pod for pod in self.scene.pods() if pod["metadata"]["name"] == self.pod)["metadata"]["uid"])


def now() -> datetime:
    return datetime.now(UTC)


def intent(scene: Scene) -> Intent | None:
    current = scene.status().current
    return current.intent if current else None


@pytest.fixture(scope="module")
def gated(tools: dict[str, Path]) -> Iterator[ApiServer]:
    """With the CRD, and with Evictions."""
    with ApiServer(audit_log=audit_log(), extra=GATES) as server:
        apply_crd(server)
        yield server


@pytest.fixture(scope="module")
def rights(gated: ApiServer, tools: dict[str, Path]) -> Installed:
    return install_rights(gated, tools)


@contextmanager
def operating(rights: Installed, folder: Path) -> Iterator[OperatorProcess]:
    """An operator that leads."""
    with OperatorProcess(rights.kubeconfig, folder / "log") as process:
        until("leading", lambda: process.leading)
        yield process


def running(scene: Scene, **disruption: Any) -> list[str]:
    """Two members that train, on two of three nodes."""
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption=disruption)
    return starts(scene, *nodes)


@pytest.fixture(scope="class")
def leading(gated: ApiServer, rights: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With an operator for all tests of a class."""
    with operating(rights, tmp_path_factory.mktemp("leading")):
        yield gated


class TestWhileOneOperatorLeads:
    @pytest.fixture
    def scene(self, leading: ApiServer) -> Scene:
        """A namespace without a job."""
        return Scene(leading, new_namespace(leading))

    def test_a_member_leaves_on_request_and_the_eviction_says_when(self, scene: Scene) -> None:
        first = running(scene, **PATIENT)[0]
        named = [pod["spec"]["evictionResponders"] for pod in scene.pods()]
        assert named == 2 * [[{"name": evictions.OPERATOR, "priority": 10000}]]
        eviction = Eviction(scene, first)
        eviction.begin()
        said = until("the first answer", eviction.heard)
        assert said["message"] == f"{first} is about to be replaced"
        assert datetime.fromisoformat(said["expectedCompletionTime"]) > now()
        assert "completionTime" not in said

        until("a new member", lambda: len(scene.names()) == 3)
        seen = intent(scene)
        assert seen is not None
        assert seen.cause == f"{first} is to be evicted, asked for by {evictions.REQUESTER}"
        assert all(isinstance(one, Train) for one in scene.assignments())

        scene.run_pods(scene.node("n3"))
        until("it is told to leave", lambda: any(isinstance(one, Leave) for one in scene.assignments()))
        scene.save_all(1, 7)
        done = until("completion", lambda: eviction.answer().get("completionTime") and eviction.answer())
        assert done["message"] == f"{first} has ended"
        eviction.tell(lambda status: evictions.evicted(status, now()))
        until("it is gone", lambda: first not in scene.names())
        assert scene.status().exit_seconds is not None

    def test_a_request_that_is_canceled_lets_the_new_member_go(self, scene: Scene) -> None:
        members = running(scene, **PATIENT)
        eviction = Eviction(scene, members[0])
        eviction.begin()
        until("a new member", lambda: len(scene.names()) == 3)
        said = until("an answer", eviction.heard)
        eviction.tell(lambda status: evictions.canceled(status, now()))
        until("it is gone", lambda: scene.names() == members)
        assert intent(scene) is None
        assert eviction.answer()["heartbeatTime"] == said["heartbeatTime"]

    def test_one_that_is_deleted_was_withdrawn(self, scene: Scene) -> None:
        members = running(scene, **PATIENT)
        eviction = Eviction(scene, members[0])
        eviction.begin()
        until("a new member", lambda: len(scene.names()) == 3)
        eviction.delete()
        until("it is gone", lambda: scene.names() == members)

    def test_a_job_that_ignores_requests_passes_the_turn_on(self, scene: Scene) -> None:
        members = running(scene, signals={"eviction-request": "Ignore"})
        eviction = Eviction(scene, members[0])
        eviction.begin()
        done = until("completion", lambda: eviction.answer().get("completionTime") and eviction.answer())
        assert "spec.disruption.signals" in done["message"]
        eviction.tell(lambda status: evictions.handed_on(status, now(), "Completed"))
        assert intent(scene) is None
        assert scene.names() == members


def test_the_next_leader_goes_on_where_the_last_one_was_killed(
    gated: ApiServer, rights: Installed, tmp_path: Path
) -> None:
    with operating(rights, tmp_path) as process:
        scene = Scene(gated, new_namespace(gated))
        members = running(scene, replacementTimeoutSeconds=0)
        eviction = Eviction(scene, members[0])
        eviction.begin()
        until("all leave", lambda: all(isinstance(one, Leave) for one in scene.assignments()))
        said = until("an answer", eviction.heard)
        process.kill()
    scene.save_all(1, 7)
    with OperatorProcess(rights.kubeconfig, tmp_path / "second", name="operator-1", lease_seconds=5):
        done = until("completion", lambda: eviction.answer().get("completionTime") and eviction.answer())
    assert done["startTime"] == said["startTime"]
    assert done["heartbeatTime"] >= said["heartbeatTime"]


def test_the_operator_of_an_older_chart_says_that_it_lacks_the_right(
    gated: ApiServer, tools: dict[str, Path], tmp_path: Path
) -> None:
    lacking = install_rights(gated, tools, "evictionRequests=false", namespace="older", release="older")
    more = ("--lease-name=older-operator",)
    with OperatorProcess(lacking.kubeconfig, tmp_path / "log", lease_namespace="older", more=more) as process:
        until("leading", lambda: process.leading)
        scene = Scene(gated, new_namespace(gated))
        running(scene)
        assert all("evictionResponders" not in pod["spec"] for pod in scene.pods())
        log = process.log.read_text()
    assert log.count("evictions.lifecycle.k8s.io/v1alpha1 are served, but the operator may not read them") == 1


def test_switched_off_the_operator_asks_for_nothing(gated: ApiServer, rights: Installed, tmp_path: Path) -> None:
    begun = now()
    with OperatorProcess(rights.kubeconfig, tmp_path / "log", more=("--no-eviction-requests",)) as process:
        until("leading", lambda: process.leading)
        scene = Scene(gated, new_namespace(gated))
        running(scene)
        assert all("evictionResponders" not in pod["spec"] for pod in scene.pods())
    assert calls(gated, rights.user, since=begun) == []


def test_where_kubernetes_has_no_evictions_nothing_is_asked(
    scene: Scene, operator: OperatorProcess, installed: Installed
) -> None:
    running(scene)
    assert calls(scene.server, installed.user) == []
    assert all("evictionResponders" not in pod["spec"] for pod in scene.pods())
    words = "the API server does not serve evictions.lifecycle.k8s.io/v1alpha1"
    assert operator.log.read_text().count(words) == 1


def calls(server: ApiServer, user: str, since: datetime | None = None) -> list[str]:
    """What that user has asked for of Evictions. The end of a watch comes into the log later than that of its
    operator."""
    entries = [json.loads(line) for line in server.audit_log.read_text().splitlines()]
    mine = [one for one in entries if one["user"]["username"] == user and one.get("objectRef")]
    asked = [one for one in mine if one["objectRef"].get("resource") == "evictions"]
    received = [(datetime.fromisoformat(one["requestReceivedTimestamp"]), one["verb"]) for one in asked]
    return [verb for at, verb in received if since is None or at >= since]
