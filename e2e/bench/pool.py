"""Jobs on a pool of nodes that each hold one member of each. Called by e2e.bench.elastic and e2e.bench.goodput."""

from __future__ import annotations

from e2e.harness.job import Manifest


def one_a_node(name: str, home: str, elastic: Manifest | None, replicas: int) -> Manifest:
    """A job that trains until it is deleted, with one member a node, and none on the operator's."""
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "elastic": elastic,
            "disruption": {"replacementTimeoutSeconds": 5},
            "template": {"spec": {"affinity": _apart(name, home)}},
        },
    }


def _apart(name: str, home: str) -> Manifest:
    hostname = "kubernetes.io/hostname"
    elsewhere = {"key": hostname, "operator": "NotIn", "values": [home]}
    apart = {"topologyKey": hostname, "labelSelector": {"matchLabels": {"perdure.dev/job": name}}}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }
