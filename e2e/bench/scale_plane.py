"""A control plane with fake nodes: API server, controllers, scheduler, and kwok in the kubelets' place.

No client's own rate limit affects the measurement: controllers, scheduler and JobSet may all send as fast as the API
server answers. The Job controller runs in a process of its own, so that its share of the CPU is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench import jobset
from e2e.bench.scale_load import create
from e2e.cluster import control_plane
from e2e.cluster.apiserver import ApiServer
from e2e.prepare import tool_folders
from e2e.prepare.tools import special_programs

QPS, BURST = jobset.QPS, jobset.BURST
NOT_LIMITED = (f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}")
JOB_CONTROLLER = "job-controller"
# fake nodes send no heartbeat
OTHERS = f"--controllers=*,-{JOB_CONTROLLER},-node-lifecycle-controller"
STAGES = Path(__file__).with_name("scale_stages.yaml")
NOT_READY = "node.kubernetes.io/not-ready"
Json = dict[str, Any]


@dataclass(frozen=True)
class Plane:
    """A control plane that is up, with its fake nodes."""

    server: ApiServer
    controllers: int
    job_controller: int

    def identity(self, name: str) -> Path:
        """A kubeconfig of its own for a program with all permissions: the audit log shows which program did what."""
        namespace = "default"
        self.server.kubectl("create", "serviceaccount", name, f"--namespace={namespace}")
        subject = f"--serviceaccount={namespace}:{name}"
        self.server.kubectl("create", "clusterrolebinding", name, "--clusterrole=cluster-admin", subject)
        return self.server.kubeconfig_for_service_account(namespace, name)


def user_of(name: str) -> str:
    """That program in the audit log."""
    return f"system:serviceaccount:default:{name}"


@contextmanager
def plane(nodes: int) -> Iterator[Plane]:
    """Boot it; nothing remains."""
    with ApiServer() as server:
        binaries = tool_folders()["kubernetes"]
        config = _kubeconfig(server, "controller-manager")
        argv = control_plane.controller_manager_argv(binaries / "kube-controller-manager", server.pki, config)
        others = server.run("controllers", [*argv, *NOT_LIMITED, OTHERS])
        jobs = server.run(JOB_CONTROLLER, [*argv, *NOT_LIMITED, f"--controllers={JOB_CONTROLLER}"])
        server.pki.issue("scheduler", "/CN=system:kube-scheduler")
        server.run("scheduler", [str(binaries / "kube-scheduler"), f"--config={_scheduler(server)}", "--secure-port=0"])
        _make_nodes(server, nodes)
        argv = [str(special_programs()["kwok"]), f"--kubeconfig={server.kubeconfig}", f"--config={_stages(server)}"]
        server.run("kwok", [*argv, "--manage-all-nodes", "--node-lease-duration-seconds=0"])
        server.check()
        yield Plane(server, others, jobs)


def _kubeconfig(server: ApiServer, name: str) -> Path:
    path = server.folder / f"{name}.kubeconfig"
    path.write_text(server.pki.kubeconfig(name, server.url))
    return path


def _scheduler(server: ApiServer) -> Path:
    path = server.folder / "scheduler.json"
    client = {"kubeconfig": str(_kubeconfig(server, "scheduler")), "qps": QPS, "burst": BURST}
    body = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    path.write_text(json.dumps(body | {"clientConnection": client, "leaderElection": {"leaderElect": False}}))
    return path


def _stages(server: ApiServer) -> Path:
    path = server.folder / "kwok.yaml"
    path.write_text(STAGES.read_text())
    return path


def _make_nodes(server: ApiServer, count: int) -> None:
    create(server, [_node(number) for number in range(count)])
    server.kubectl("taint", "nodes", "--all", f"{NOT_READY}:NoSchedule-")


def _node(number: int) -> Json:
    name = f"fake-{number:03d}"
    room = {"cpu": "64", "memory": "512Gi", "pods": "250"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": f"10.{number}.0.0/24", "podCIDRs": [f"10.{number}.0.0/24"]},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def start_jobset(where: Plane) -> int:
    """JobSet's manager; its process."""
    server = where.server
    server.pki.issue("jobset", "/CN=jobset", [f"IP:{server.address}"])
    keys = server.pki.certificate("jobset"), server.pki.key("jobset")
    host = jobset.Host(server.kubectl, server.address, server.folder, server.kubeconfig, keys)
    argv = jobset.prepare(host)
    process = server.run("jobset", argv, {"KUBECONFIG": str(where.identity("jobset"))})
    jobset.serve(host)
    return process
