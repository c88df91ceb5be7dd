"""Admission changes every pod of a namespace, as the injector of a mesh does: training does not notice."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import pytest

from e2e.harness.handover import Way
from e2e.harness.kubectl import Kubectl
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import IMAGE, Config, nothing_lost

pytestmark = pytest.mark.cluster

PROXY: Final = "proxy"
PROXY_PROGRAM: Final = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"
"""It ends at SIGTERM, as a proxy does."""
GROUP: Final = "admissionregistration.k8s.io/v1"
NAMESPACE: Final = "kubernetes.io/metadata.name"
SEEN_SECONDS: Final = 60


def puts_a_proxy_first(kubectl: Kubectl, namespace: str) -> None:
    """From now on, in this namespace, as a webhook of a mesh would: a container that does not end by itself."""
    name = {"name": f"{PROXY}-of-{namespace}"}
    container = f"""Object.spec.containers{{
        name: "{PROXY}", image: "{IMAGE}", imagePullPolicy: "IfNotPresent",
        command: ["python", "-c", "{PROXY_PROGRAM}"],
        securityContext: Object.spec.containers.securityContext{{
            allowPrivilegeEscalation: false,
            capabilities: Object.spec.containers.securityContext.capabilities{{drop: ["ALL"]}}}}}}"""
    added = f'[JSONPatch{{op: "add", path: "/spec/containers/0", value: {container}}}]'
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec: dict[str, Any] = {
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {NAMESPACE: namespace}},
            "resourceRules": [pods],
        },
        "matchConditions": [{"name": "not-yet", "expression": f"object.spec.containers[0].name != '{PROXY}'"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": added}}],
    }
    policy = {"apiVersion": GROUP, "kind": "MutatingAdmissionPolicy", "metadata": name, "spec": spec}
    binding = {"apiVersion": GROUP, "kind": "MutatingAdmissionPolicyBinding", "metadata": name}
    kubectl.apply(policy, binding | {"spec": {"policyName": name["name"]}})
    deadline = time.monotonic() + SEEN_SECONDS
    while not is_put_first(kubectl, namespace):
        assert time.monotonic() < deadline, f"the API server has not read the policy in {SEEN_SECONDS} s"
        time.sleep(0.2)


def takes_it_away(kubectl: Kubectl, namespace: str) -> None:
    """New pods are as they are sent again."""
    for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
        kubectl("delete", kind, f"{PROXY}-of-{namespace}", "--ignore-not-found")


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


def test_a_mesh_that_puts_its_proxy_before_the_trainer_changes_nothing(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    started = train()
    try:
        puts_a_proxy_first(lab.kubectl, started.job.namespace)
        with started as training:
            training.trains(steps=12)
            first = [training.member(rank)["spec"]["containers"][0]["name"] for rank in (0, 1)]
            with lab.drain(training.node(rank=1)) as drain:
                drained = drain.finish()
            status = training.completes()
            newcomers = [seen for seen in training.watch.history if seen.kind == "Pod"]
    finally:
        takes_it_away(lab.kubectl, started.job.namespace)
    assert first == [PROXY, PROXY]
    assert {seen.object["spec"]["containers"][0]["name"] for seen in newcomers} == {PROXY}
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)
    assert training.verdict() == nothing_lost(undisturbed(Config()))
