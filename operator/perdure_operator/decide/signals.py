"""Which pods have to leave, and why: every announcement that Kubernetes, cluster-autoscaler and Karpenter make.

`not-ready` and `unreachable` are no announcements: nobody on such a node can be asked to save (see `leaving`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure_operator.state.snapshot import NodeView, PodView, Snapshot, Taint, Toleration

AUTOSCALER_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
KARPENTER_TAINT: Final = "karpenter.sh/disrupted"
CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

_NOT_ANNOUNCED: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})


@dataclass(frozen=True)
class Signal:
    """One announcement that a pod has to leave."""

    pod: str
    cause: str
    """In words, with names."""
    node: str = ""
    """The node it has to leave; "" where the pod itself is meant."""
    urgent: bool = False
    """No quiet second: it is told at once."""
    deadline: datetime | None = None
    """When the pod will be taken, where that is known."""


def signal_of_node(node: NodeView | None, pod: PodView) -> Signal | None:
    """Why the pod has to leave this node; None where it may stay."""
    cause = _cause(node, pod) if node else ""
    return Signal(pod=pod.name, cause=cause, node=pod.node) if cause else None


def signals_of_nodes(snapshot: Snapshot, pods: Iterable[PodView]) -> list[Signal]:
    """One signal for each of these pods whose node is about to go away, in the order of the nodes' names."""
    nodes = {node.name: node for node in snapshot.nodes}
    found = [signal_of_node(nodes.get(pod.node), pod) for pod in sorted(pods, key=lambda pod: (pod.node, pod.name))]
    return [signal for signal in found if signal]


def signal_of_deletion(pod: PodView, node: NodeView | None) -> Signal | None:
    """A deleted pod has its grace to save and nothing more. Most often its node is being drained: then that is why."""
    if not pod.deleting:
        return None
    drained = signal_of_node(node, pod)
    place = drained.cause if drained else f"node {pod.node}" if pod.node else ""
    cause = f"{pod.name} ({place})" if place else pod.name
    return Signal(pod.name, cause, urgent=True, deadline=pod.deletion_deadline)


def tolerates(pod: PodView, taint: Taint) -> bool:
    """Whether the pod may stay under the taint; a toleration for some seconds counts, one for none does not."""
    return any(_matches(toleration, taint) for toleration in pod.tolerations)


def _cause(node: NodeView, pod: PodView) -> str:
    if not node.exists:
        return f"node {node.name} was deleted"
    if node.deleting:
        return f"node {node.name} is being deleted"
    for taint in node.taints:
        if cause := _driven_out(node.name, taint, pod):
            return cause
    return f"node {node.name} is cordoned" if node.cordoned else ""


def _driven_out(node: str, taint: Taint, pod: PodView) -> str:
    if taint.key == AUTOSCALER_TAINT:
        return f"cluster-autoscaler removes node {node}"
    if taint.key == KARPENTER_TAINT:
        return f"Karpenter removes node {node}"
    if taint.effect == "NoExecute" and taint.key not in _NOT_ANNOUNCED and not tolerates(pod, taint):
        return f"node {node} has the taint {taint.key}:NoExecute"
    return ""


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.toleration_seconds is not None and toleration.toleration_seconds <= 0:
        return False
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value
