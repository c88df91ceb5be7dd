"""A Node that an autoscaler makes is a real one, and when it is gone nothing of it is left, whatever ran there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from e2e.cluster import Cluster, autoscaler
from e2e.cluster.requirements import require_cluster
from tests.cluster.traces import traces

pytestmark = pytest.mark.cluster
NAME = "machines"
# as long as Karpenter's are at most: too long for a certificate's subject, by the letter
NODES = [f"kwok-{'-'.join(['long'] * 10)}-{number}" for number in (1000, 1001)]
TIMEOUT = "--timeout=60s"
PROMISED = {"cpu": "300m", "memory": "500Mi", "pods": "2"}


def made(cluster: Cluster, name: str) -> None:
    """Creates the Node as Karpenter does, with one pod on it that runs until it is killed."""
    status = {"allocatable": PROMISED, "capacity": PROMISED}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"providerID": f"kwok://{name}"},
        "status": status,
    }
    container = {"name": "main", "image": "perdure-operator:dev", "command": ["sleep", "1000000"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"on-{name}"},
        "spec": {"nodeName": name, "containers": [container]},
    }
    cluster.kubectl("create", "--filename=-", input=json.dumps(node))
    cluster.kubectl("create", "--filename=-", input=json.dumps(pod))
    cluster.kubectl("wait", "--for=condition=Ready", f"node/{name}", f"pod/on-{name}", TIMEOUT)


def left_of(cluster: Cluster, number: int) -> dict[str, list[str]]:
    """The traces of the node with that number, its logs apart."""
    marks = (f"/n{number}", f"-n{number}")
    found = traces(cluster.names.cluster)
    files = [str(path) for path in cluster.folder.root.glob("nodes/*")]
    folders = (walked for top in found["cgroups"] for walked in os.walk(top))  # which may go while they are listed
    cgroups = [str(Path(folder, name)) for folder, names, _ in folders for name in names]
    kinds = {**found, "files": files, "cgroups": cgroups}
    of_it = {kind: [thing for thing in things if _names(thing, marks)] for kind, things in kinds.items()}
    return {kind: things for kind, things in of_it.items() if things}


def _names(thing: str, marks: tuple[str, ...]) -> bool:
    return thing.endswith(marks) or any(f"{mark}/" in thing for mark in marks)


def until_gone(cluster: Cluster, number: int) -> None:
    cluster.wait(f"nothing of node {number} left", 60.0, lambda: not left_of(cluster, number))


def test_a_node_that_an_autoscaler_makes_runs_pods_keeps_its_promise_and_leaves_nothing() -> None:
    require_cluster()
    with Cluster.up(NAME, nodes=1, owner=os.getpid()) as cluster:
        autoscaler.start_provider(cluster)
        for name in NODES:
            made(cluster, name)
        told = json.loads(cluster.kubectl("get", "node", NODES[0], "--output=json").stdout)["status"]["allocatable"]
        said = cluster.kubectl("exec", f"on-{NODES[0]}", "--", "hostname").stdout.strip()
        there = left_of(cluster, 2)
        cluster.kubectl("delete", "node", NODES[0])
        until_gone(cluster, 2)
        other = left_of(cluster, 3)
        dead = cluster.dead_components()
        block = cluster.names.block

    assert {name: told[name] for name in PROMISED} == PROMISED
    assert said == f"on-{NODES[0]}"
    assert set(there) == {"files", "namespaces", "cgroups", "processes"}
    assert set(other) == set(there)
    assert dead == ""
    assert traces(NAME, block) == {}
