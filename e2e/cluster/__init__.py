"""A real Kubernetes on this Linux machine, without Docker: `python -m e2e.cluster up|down|status|kubeconfig`.

Nothing is a fake: API server, etcd, controllers, scheduler, kubelets, kube-proxies, containerd and runc; each node is a
network and a mount namespace. Standard library only. Used by the demo, the scenarios, the benches and the tests.
"""

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed
from e2e.cluster.processes import ClusterError, ComponentDied

__all__ = ["ApiServer", "Cluster", "ClusterError", "CommandFailed", "ComponentDied"]
