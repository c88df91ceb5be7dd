"""Karpenter, its own program, beside the control plane; its cloud is this machine (provider.py).

What it may launch is one kind of node, with room for one pod: so members and nodes come and go together. For whom it
launches them says a NodePool, which is the user's.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.cluster.images import ARCHITECTURES
from e2e.prepare.basics import REPOSITORY, cache_dir
from e2e.prepare.tools import manifests_of, special_programs

NAME = "karpenter"
PROVIDER = "provider"
INSTANCE_TYPE = "one-seat"
ZONE = "here"
RESOURCES = {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "20Gi", "pods": "1"}
HEALTH_PORT = 8081
START_SECONDS = 60.0
CRDS = {
    "nodepools.karpenter.sh": "NodePool",
    "nodeclaims.karpenter.sh": "NodeClaim",
    "kwoknodeclasses.karpenter.kwok.sh": "KWOKNodeClass",
}


def start(cluster: Cluster) -> None:
    """Install its CRDs, then run what gives nodes to it, and Karpenter itself."""
    cluster.kubectl("apply", "--server-side", "--filename", manifests_of(NAME))
    for name, kind in CRDS.items():
        # a condition can be waited for only where there are some: kubectl fails in the moment before the first
        for state in (f"jsonpath={{.status.acceptedNames.kind}}={kind}", "condition=Established"):
            cluster.kubectl("wait", f"--for={state}", f"crd/{name}")
    types = cluster.folder.root / "instance-types.json"
    types.write_text(json.dumps([_instance_type()], indent=2))
    start_provider(cluster)
    cluster.run_beside(NAME, [special_programs()[NAME]], _environment(types))
    cluster.wait("Karpenter", START_SECONDS, lambda: _listens(cluster))


def start_provider(cluster: Cluster) -> None:
    """Run what gives a machine to each Node that an autoscaler makes."""
    argv = [sys.executable, "-m", "e2e.cluster.provider", cluster.names.cluster]
    cluster.run_beside(PROVIDER, argv, {"PYTHONPATH": str(REPOSITORY), "PERDURE_CACHE": str(cache_dir())})


def _environment(types: Path) -> dict[str, str]:
    return {
        "KUBERNETES_MIN_VERSION": "1.19.0-0",
        "KARPENTER_SERVICE": NAME,
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",
        "HEALTH_PROBE_PORT": str(HEALTH_PORT),
        "MEMORY_LIMIT": str(1 << 30),
        "INSTANCE_TYPES_FILE_PATH": str(types),
    }


def _instance_type() -> dict[str, object]:
    requirements = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": ZONE}
    offering = {
        "Price": 1.0,
        "Available": True,
        "Requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in requirements.items()],
    }
    machine = platform.machine()
    return {
        "name": INSTANCE_TYPE,
        "offerings": [offering],
        "architecture": ARCHITECTURES.get(machine, machine),
        "operatingSystems": ["linux"],
        "resources": RESOURCES,
    }


def _listens(cluster: Cluster) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((str(cluster.names.control_plane), HEALTH_PORT)) == 0
