"""Which pod mirrors which one: a pod on another node, where there is one. Pure.

All ranks compute it from what each has told all others, so they agree. Used by perdure.loop.mirroring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def buddies(nodes: Sequence[str]) -> tuple[int, ...]:
    """For each pod the number of the pod that mirrors it. `nodes` has each pod's node; "" if it is unknown.

    Each of several pods mirrors one other. As few as possible are mirrored on their own node. If all are on different
    nodes, or one's node is unknown, it is the next pod.

    Pods of a node stand together in a circle, and each is mirrored by the one so many places on as the fullest node has
    pods: that is behind its own node's, unless more than half of all pods are there.
    """
    if "" in nodes:
        nodes = [str(pod) for pod in range(len(nodes))]
    first = {node: pod for pod, node in reversed(list(enumerate(nodes)))}
    circle = sorted(range(len(nodes)), key=lambda pod: first[nodes[pod]])
    fullest = max(Counter(nodes).values())
    behind = fullest if fullest < len(nodes) else 1
    found = {pod: circle[(at + behind) % len(nodes)] for at, pod in enumerate(circle)}
    return tuple(found[pod] for pod in range(len(nodes)))


def on_own_node(nodes: Sequence[str]) -> int:
    """How many pods are mirrored on their own node, as far as nodes are known."""
    return sum(node == nodes[buddy] != "" for node, buddy in zip(nodes, buddies(nodes), strict=True))
