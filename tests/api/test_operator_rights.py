"""The chart's rights against what the operator did in the tests of this folder, by the API server's audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer
from tests.api.conftest import Installed
from tests.api.rbac import Right, api_audit_logs, audit_rbac

USER = "system:serviceaccount:perdure-system:perdure-operator"
USING = {
    "test_operator_crash.py",
    "test_operator_evictions.py",
    "test_operator_process.py",
    "test_operator_replicas.py",
}

RENDERED = """
kind: ClusterRole
metadata: {name: operator}
rules:
- {apiGroups: [""], resources: [pods], verbs: [list, create]}
---
kind: ClusterRoleBinding
roleRef: {kind: ClusterRole, name: operator}
subjects: [{kind: ServiceAccount, namespace: perdure-system, name: perdure-operator}]
---
kind: Role
metadata: {name: operator}
rules:
- {apiGroups: [perdure.dev], resources: [trainingjobs/status], verbs: [update]}
---
kind: RoleBinding
roleRef: {kind: Role, name: operator}
subjects: [{kind: ServiceAccount, namespace: perdure-system, name: perdure-operator}]
---
kind: ClusterRole
metadata: {name: for-people}
rules:
- {apiGroups: [perdure.dev], resources: [trainingjobs], verbs: [create]}
---
kind: ServiceAccount
"""


def request(verb: str, resource: str, group: str = "", *, user: str = USER, decision: str = "allow") -> dict[str, Any]:
    name, _, subresource = resource.partition("/")
    target = {"resource": name, "apiGroup": group} | ({"subresource": subresource} if subresource else {})
    annotations = {"authorization.k8s.io/decision": decision}
    return {"verb": verb, "user": {"username": user}, "objectRef": target, "annotations": annotations}


def test_unused_and_ungranted_rights_are_distinguished(tmp_path: Path) -> None:
    entries = [
        request("list", "pods"),
        request("update", "trainingjobs/status", "perdure.dev"),
        request("get", "secrets", decision="forbid"),
        request("delete", "pods", user="somebody else"),
        {"verb": "get", "user": {"username": USER}, "requestURI": "/apis"},
    ]
    log = tmp_path / "audit.log"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    difference = audit_rbac([log], RENDERED, USER)
    assert difference.unused == {Right("", "pods", "create")}
    assert difference.ungranted == {Right("", "secrets", "get")}


def test_a_right_that_an_operator_of_another_release_uses_is_used(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    users = ("system:serviceaccount:other:other-operator", "system:serviceaccount:other:default")
    wanted = ("create", "list")
    entries = [request(verb, "pods", user=user) for verb, user in zip(wanted, users, strict=True)]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    difference = audit_rbac([log], RENDERED, USER, others=[log])
    assert Right("", "pods", "create") not in difference.unused
    assert Right("", "pods", "list") in difference.unused
    assert difference.ungranted == frozenset()


@pytest.mark.api
def test_every_right_is_used_and_every_verb_is_granted(
    request: pytest.FixtureRequest, api_server: ApiServer, installed: Installed
) -> None:
    """Meaningful only after the tests that use the rights: pytest runs this file after theirs."""
    if not {item.path.name for item in request.session.items} >= USING:
        pytest.skip(f"needs the tests in {', '.join(sorted(USING))} before it")
    assert api_server.audit_log in api_audit_logs()
    logs = api_audit_logs()
    difference = audit_rbac(logs, installed.rendered, installed.user, others=logs)
    assert difference.ungranted == frozenset()
    assert difference.unused == frozenset()
