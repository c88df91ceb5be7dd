"""Announces things about nodes, written as their real sources write them; afterwards everything is withdrawn.

Conditions go to the node's status, as node-problem-detector and NVSentinel patch them, and to the pod's, as the
scheduler patches them; taints, labels, annotations and cordons use kubectl.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from e2e.harness.drain import uncordon
from e2e.harness.kubectl import Kubectl
from e2e.harness.watching import Object


class Announcer:
    """A source that finds nodes sick or takes them away; leaving the `with` block withdraws all announcements."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._standing: dict[tuple[str, str], Callable[[], object]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node, what in list(self._standing):
            self.withdraws(node, what)

    def withdraws(self, node: str, what: str) -> None:
        """Withdraw it from this node: `cordon`, or the type or key of the announcement."""
        self._standing.pop((node, what))()

    def cordons(self, node: str) -> None:
        """kubectl cordon."""
        self._kubectl("cordon", node)
        self._standing[node, "cordon"] = lambda: uncordon(self._kubectl, [node])

    def annotates(self, node: str, key: str, value: str) -> None:
        """kubectl annotate."""
        self._kubectl("annotate", "node", node, f"{key}={value}")
        self._standing[node, key] = lambda: self._kubectl("annotate", "node", node, f"{key}-")

    def taints(self, node: str, key: str, value: str, effect: str) -> datetime:
        """kubectl taint; returns the time just before it."""
        now = datetime.now(UTC)
        self._kubectl("taint", "node", node, f"{key}={value}:{effect}")
        self._standing[node, key] = lambda: self._kubectl("taint", "node", node, f"{key}-")
        return now

    def labels(self, node: str, key: str, value: str) -> None:
        """kubectl label."""
        self._kubectl("label", "node", node, f"{key}={value}")
        self._standing[node, key] = lambda: self._kubectl("label", "node", node, f"{key}-")

    def takes(self, pod: Object, reason: str, message: str) -> None:
        """Announce in this pod's status that it is about to be removed; no more than that."""
        told = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        patch = {"status": {"conditions": [{**told, "lastTransitionTime": _now()}]}}
        named = ["pod", pod["metadata"]["name"], f"--namespace={pod['metadata']['namespace']}"]
        self._kubectl("patch", *named, "--subresource=status", "--type=strategic", f"--patch={json.dumps(patch)}")

    def finds(self, node: str, condition: str, reason: str, message: str) -> None:
        """The node has this problem."""
        self._patch(node, condition, "True", reason, message)
        self._standing[node, condition] = lambda: self._patch(node, condition, "False", f"No{condition}", "it is well")

    def _patch(self, node: str, condition: str, status: str, reason: str, message: str) -> None:
        now = _now()
        told = {"type": condition, "status": status, "reason": reason, "message": message}
        patch = {"status": {"conditions": [{**told, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
        words = ["--subresource=status", "--type=strategic", f"--patch={json.dumps(patch)}"]
        self._kubectl("patch", "node", node, *words)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
