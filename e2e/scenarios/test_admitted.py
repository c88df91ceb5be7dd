"""A webhook changes every pod of a namespace, as the injector of a mesh does: training does not notice."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from e2e.harness.handover import Way
from e2e.harness.kubectl import Kubectl
from e2e.harness.lab import Lab
from e2e.harness.tls_server import TlsServer
from e2e.harness.watching import Object
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import IMAGE, Config, nothing_lost

pytestmark = pytest.mark.cluster

PROXY: Final = "proxy"
PROXY_PROGRAM: Final = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"
"""It ends at SIGTERM, as a proxy does."""
PROXY_CONTAINER: Final = {
    "name": PROXY,
    "image": IMAGE,
    "imagePullPolicy": "IfNotPresent",
    "command": ["python", "-c", PROXY_PROGRAM],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
NAMESPACE: Final = "kubernetes.io/metadata.name"
SEEN_SECONDS: Final = 60


@contextmanager
def proxy_injector(lab: Lab, namespace: str) -> Iterator[None]:
    """The webhook of a mesh, for one namespace: it puts a container that does not end by itself before all others."""
    name = f"{PROXY}-of-{namespace}"
    with TlsServer(lab, name, admit) as server:
        try:
            lab.kubectl.apply(webhook(name, namespace, server))
            lab.cluster.wait("the webhook to be called", SEEN_SECONDS, lambda: is_put_first(lab.kubectl, namespace))
            yield
        finally:
            lab.kubectl("delete", "mutatingwebhookconfiguration", name, "--ignore-not-found")


def webhook(name: str, namespace: str, server: TlsServer) -> dict[str, Any]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    called = {
        "name": "inject.mesh.example",
        "clientConfig": {"url": f"https://{server.host}:{server.port}/inject", "caBundle": server.authority},
        "namespaceSelector": {"matchLabels": {NAMESPACE: namespace}},
        "rules": [pods],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [called],
    }


def admit(_: str, review: Object) -> Object:
    patch = json.dumps([{"op": "add", "path": "/spec/containers/0", "value": PROXY_CONTAINER}]).encode()
    response = {
        "uid": review["request"]["uid"],
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(patch).decode(),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def is_put_first(kubectl: Kubectl, namespace: str) -> bool:
    """Whether the API server does it by now."""
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    mine = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "asks", "image": IMAGE, "securityContext": mine}
    metadata = {"name": "asks", "namespace": namespace}
    spec = {"containers": [container], "securityContext": security}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    said = kubectl("create", "--filename=-", "--dry-run=server", "--output=json", stdin=json.dumps(pod))
    return bool(json.loads(said)["spec"]["containers"][0]["name"] == PROXY)


@pytest.mark.chaos
def test_a_mesh_that_puts_its_proxy_before_the_trainer_changes_nothing(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    started = train()
    with proxy_injector(lab, started.job.namespace), started as training:
        training.trains(steps=12)
        first = [training.member(rank)["spec"]["containers"][0]["name"] for rank in (0, 1)]
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish()
        status = training.completes()
        newcomers = [seen for seen in training.watch.history if seen.kind == "Pod"]
    assert first == [PROXY, PROXY]
    assert {seen.object["spec"]["containers"][0]["name"] for seen in newcomers} == {PROXY}
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)
    assert training.verdict() == nothing_lost(undisturbed(Config()))
