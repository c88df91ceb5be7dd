"""One NodePool of Karpenter's, as its user sees it: its limit, its nodes, and Karpenter's messages.

Used as a context manager that watches it and, in the end, waits until its nodes are gone. Knows nothing of jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from e2e.harness.kubectl import Kubectl
from e2e.harness.watching import Object, Seen, Watch

LABEL = "karpenter.sh/nodepool"
CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "here"}
EVENTS = "default"
"""The namespace of events about nodes."""
GONE_SECONDS = 120


class Pool:
    """A NodePool with that name, of so many nodes at most; `template` describes a node."""

    def __init__(self, kubectl: Kubectl, name: str, *, nodes: int, **template: Any) -> None:
        self.name = name
        self._kubectl = kubectl
        self._template = template
        self._nodes = nodes
        self.watch = Watch(kubectl, EVENTS, self.describe, ("nodes", "nodeclaims", "events"))

    def __enter__(self) -> Self:
        metadata = {"name": CLASS["name"]}
        group = f"{CLASS['group']}/v1alpha1"
        self._kubectl.apply({"apiVersion": group, "kind": CLASS["kind"], "metadata": metadata, "spec": {}})
        self._kubectl.apply(self._manifest())
        self.watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kubectl("delete", "nodepool", self.name, "--wait=false")
        try:
            self.watch.wait("the pool is empty", self._empty, seconds=GONE_SECONDS)
        finally:
            self.watch.__exit__(kind, error, trace)

    def allows(self, nodes: int) -> None:
        """Change its limit; existing nodes stay."""
        self._nodes = nodes
        self._kubectl.apply(self._manifest())

    def changes(self, **template: Any) -> None:
        """Make its nodes drift."""
        self._template |= template
        self._kubectl.apply(self._manifest())

    def removes(self, node: str) -> None:
        """kubectl delete nodeclaim: Karpenter drains the node and gives it back."""
        claim = next(claim for claim in self.claims() if claim["status"].get("nodeName") == node)
        self._kubectl("delete", "nodeclaim", claim["metadata"]["name"], "--wait=false")

    def nodes(self) -> set[str]:
        """Its nodes."""
        return {found["metadata"]["name"] for found in self._present(self.watch.history, "Node")}

    def claims(self) -> list[Object]:
        """Its nodes, including expected ones."""
        return self._present(self.watch.history, "NodeClaim")

    def loses(self, node: str, *, seconds: float) -> None:
        """Waits until the node is gone."""

        def gone(history: Sequence[Seen]) -> bool | None:
            present = {found["metadata"]["name"] for found in self._present(history, "Node")}
            return True if node not in present else None

        self.watch.wait(f"node {node} is gone", gone, seconds=seconds)

    def says(self, pattern: str, node: str, *, seconds: float) -> str:
        """Wait until Karpenter reports this about the node, by the reason and message of an event; returns its
        words."""

        def told(history: Sequence[Seen]) -> str | None:
            events = [seen.object for seen in history if seen.kind == "Event"]
            of_it = [event for event in events if event["involvedObject"].get("name") == node]
            said = [f"{event['reason']}: {event.get('message', '')}" for event in of_it]
            return next((words for words in said if re.search(pattern, words)), None)

        return self.watch.wait(f"{pattern} said of node {node}", told, seconds=seconds)

    def describe(self) -> str:
        """The first things to look at."""
        pool = self._kubectl.run("get", "nodepool", self.name, "--output=json")
        status = json.loads(pool.stdout).get("status") if pool.returncode == 0 else pool.stderr
        claims = self._kubectl.run("get", "nodeclaims", "--output=wide")
        events = self._kubectl.run("events", "--namespace", EVENTS)
        tail = "\n".join(events.stdout.splitlines()[-15:])
        return f"status of pool {self.name}: {json.dumps(status)}\n{claims.stdout or claims.stderr}\n{tail}"

    def _empty(self, history: Sequence[Seen]) -> bool | None:
        left = [*self._present(history, "Node"), *self._present(history, "NodeClaim")]
        return None if left else True

    def _present(self, history: Sequence[Seen], kind: str) -> list[Object]:
        found = {seen.name: seen for seen in history if seen.kind == kind and self._has(seen.object)}
        return [seen.object for seen in found.values() if seen.type != "DELETED"]

    def _has(self, found: Object) -> bool:
        return bool(found["metadata"].get("labels", {}).get(LABEL) == self.name)

    def _manifest(self) -> Mapping[str, Any]:
        requirement = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
        spec = {"nodeClassRef": CLASS, "requirements": [requirement], "expireAfter": "Never", **self._template}
        labels = spec.pop("labels", {})
        disruption = {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "0s",
            "budgets": [{"nodes": "100%"}],
        }
        return {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": self.name},
            "spec": {
                "template": {"metadata": {"labels": labels}, "spec": spec},
                "limits": {"nodes": str(self._nodes)},
                "disruption": disruption,
            },
        }
