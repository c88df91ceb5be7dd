"""Which nodes are about to go away: every announcement that Kubernetes, cluster-autoscaler and Karpenter make.

`not-ready` and `unreachable` are no announcements: nobody on such a node can be asked to save (see `unready`).
"""

from __future__ import annotations

from typing import Final

from perdure_operator.state.snapshot import NodeView, PodView, Snapshot, Taint, Toleration

AUTOSCALER_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
KARPENTER_TAINT: Final = "karpenter.sh/disrupted"
CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

_NOT_ANNOUNCED: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})


def leaving(node: NodeView | None, pod: PodView) -> str:
    """Why the pod has to leave the node, "" where it may stay."""
    if node is None:
        return ""
    if not node.exists:
        return f"node {node.name} was deleted"
    if node.deleting:
        return f"node {node.name} is being deleted"
    for taint in node.taints:
        if cause := _driven_out(node.name, taint, pod):
            return cause
    return f"node {node.name} is cordoned" if node.cordoned else ""


def leaving_nodes(snapshot: Snapshot, pods: list[PodView]) -> dict[str, str]:
    """Nodes under these pods that are about to go away, each with the reason, in the order of their names."""
    nodes = {node.name: node for node in snapshot.nodes}
    causes = {pod.node: leaving(nodes.get(pod.node), pod) for pod in sorted(pods, key=lambda pod: pod.node)}
    return {name: cause for name, cause in causes.items() if cause}


def tolerates(pod: PodView, taint: Taint) -> bool:
    """Whether the pod may stay under the taint; a toleration for some seconds counts, one for none does not."""
    return any(_matches(toleration, taint) for toleration in pod.tolerations)


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
