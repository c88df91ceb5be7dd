"""Compares a user's requests, by the API server's audit log, with the permissions of a chart's roles: for a whole test
run.

Requests without an object (discovery, /healthz) are open to every authenticated user and are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.harness.shared_run import SharedRun


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource, e.g. `update trainingjobs/status.perdure.dev`."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


@dataclass(frozen=True)
class Difference:
    """Empty on both sides when the roles are exactly right."""

    unused: frozenset[Right]
    """Granted and never used."""
    ungranted: frozenset[Right]
    """Asked for and not granted, or refused by the authorizer."""


def audit_rbac(audit_logs: Iterable[Path], rendered: str, user: str, others: Iterable[Path] = ()) -> Difference:
    """`rendered` is the output of `helm template`; `user` is system:serviceaccount:NAMESPACE:NAME.

    `others` are logs of API servers with operators of other releases of the chart: a right that one of these uses is
    used.
    """
    granted = frozenset(_granted(rendered, user))
    used: set[Right] = set()
    refused: set[Right] = set()
    for log in audit_logs:
        for right, allowed in _requests(log, re.escape(user)):
            (used if allowed else refused).add(right)
    elsewhere = {right for log in others for right, allowed in _requests(log, ANY_OPERATOR) if allowed}
    return Difference(granted - used - elsewhere, frozenset((used - granted) | refused))


def api_audit_logs() -> list[Path]:
    """Those of the API servers that the tests of this test run have started."""
    return sorted(SharedRun.current().audit_logs.glob("*.log"))


def _granted(rendered: str, user: str) -> Iterator[Right]:
    """By the roles that are bound to the user: the chart has others, for people."""
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    roles = {
        (role["kind"], role["metadata"]["name"]): role["rules"]
        for role in documents
        if role["kind"] in ("Role", "ClusterRole")
    }
    for binding in documents:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding") and user in map(_user, binding["subjects"]):
            for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        yield from (Right(group, resource, verb) for verb in rule["verbs"])


def _user(subject: dict[str, str]) -> str:
    return f"system:serviceaccount:{subject['namespace']}:{subject['name']}"


ANY_OPERATOR = "system:serviceaccount:[^:]+:[^:]+-operator"


def _requests(log: Path, users: str) -> Iterator[tuple[Right, bool]]:
    for line in log.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            return  # it is being written
        entry: dict[str, Any] = json.loads(line)
        target = entry.get("objectRef")
        if not target or not re.fullmatch(users, entry.get("user", {}).get("username", "")):
            continue
        resource = "/".join(filter(None, [target.get("resource"), target.get("subresource")]))
        allowed = entry.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid"
        yield Right(target.get("apiGroup", ""), resource, entry["verb"]), allowed
