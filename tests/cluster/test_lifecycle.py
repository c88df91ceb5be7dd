"""Clusters come and go, in every way, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster import Cluster, ClusterError, guard
from e2e.cluster.folder import Folder
from e2e.cluster.requirements import require_cluster
from tests.cluster.traces import traces

pytestmark = pytest.mark.cluster
DEADLINE_SECONDS = 180.0
OTHER = "other"
OWNER = f"""
import os, threading
from e2e.cluster import Cluster
Cluster.up({OTHER!r}, nodes=1, owner=os.getpid())
threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def nothing_of_the_other_cluster() -> Iterator[None]:
    require_cluster()
    yield
    subprocess.run(tool("down"), check=True, capture_output=True)


def tool(command: str) -> list[str]:
    return [sys.executable, "-m", "e2e.cluster", command, "--name", OTHER, "--nodes", "1"]


def until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not done():
        assert time.monotonic() < deadline, f"never seen: {what}"
        time.sleep(0.05)


def interrupt_when(seen: Path, number: signal.Signals) -> tuple[int, str]:
    """Boot the other cluster and send a signal as soon as that file exists."""
    with subprocess.Popen(tool("up"), stderr=subprocess.PIPE, text=True) as process:
        until(str(seen), seen.exists)
        process.send_signal(number)
        _, said = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, said


def is_not_removed_for_the_owner_of_an_older_one(mine: Cluster) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as former:
        old = guard.Owner.of(former.pid)
        former.kill()
    subprocess.run([sys.executable, "-m", "e2e.cluster.guard", OTHER, str(old.pid), old.started], check=True)
    assert mine.dead_components() == ""
    with pytest.raises(ClusterError, match=f"belongs to process {os.getpid()}, which still runs"):
        Cluster.up(OTHER, nodes=1)
    assert mine.dead_components() == ""


def shows_the_end_of_a_dead_components_log(other: Cluster) -> None:
    pid = other.components()["kube-scheduler"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until("the scheduler's death", lambda: other.components()["kube-scheduler"] is None)
    status = subprocess.run(tool("status"), capture_output=True, text=True, check=False)
    assert status.returncode == 1
    assert f"kube-scheduler has died: the end of {other.folder.logs}/kube-scheduler.log" in status.stderr
    assert "Traceback" not in status.stderr


def test_two_clusters_live_side_by_side_and_removing_one_leaves_nothing_of_it(cluster: Cluster) -> None:
    """Meanwhile the other one stays its owner's, and a component of it dies: each boot is a quarter of a minute."""
    with Cluster.up(OTHER, nodes=1, owner=os.getpid()) as other:
        block = other.names.block
        seen = traces(OTHER, block)
        nodes = other.kubectl("get", "nodes", "--output=name").stdout.split()
        is_not_removed_for_the_owner_of_an_older_one(other)
        shows_the_end_of_a_dead_components_log(other)
    left = traces(OTHER, block)

    assert nodes == ["node/other-n1"]
    assert set(seen) == {"files", "namespaces", "cgroups", "processes", "addresses"}  # nodes keep their mounts inside
    assert left == {}
    assert cluster.kubectl("get", "nodes", "--output=name").stdout.split() == [f"node/{name}" for name in cluster.nodes]
    assert cluster.dead_components() == ""


@pytest.mark.parametrize("component", ["etcd", "kube-apiserver", "kubelet-n1"])
def test_the_remains_of_a_boot_killed_at_any_point_are_removed_by_down(component: str) -> None:
    code, _ = interrupt_when(Folder.of(OTHER).pids / component, signal.SIGKILL)
    remains = traces(OTHER)
    subprocess.run(tool("down"), check=True)

    assert code == -signal.SIGKILL
    assert {"files", "namespaces", "cgroups", "processes"} <= set(remains)
    assert traces(OTHER) == {}


def test_a_cluster_boots_over_the_remains_of_a_killed_one() -> None:
    interrupt_when(Folder.of(OTHER).pids / "kube-apiserver", signal.SIGKILL)
    with Cluster.up(OTHER, nodes=1) as again:
        assert again.dead_components() == ""
        assert len(again.kubectl("get", "nodes", "--output=name").stdout.split()) == 1

    assert traces(OTHER) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_boot_leaves_nothing(number: signal.Signals) -> None:
    code, said = interrupt_when(Folder.of(OTHER).pids / "kube-apiserver", number)

    assert code == 130
    assert "interrupted: nothing was left behind" in said
    assert traces(OTHER) == {}


@pytest.mark.parametrize("seen", ["pids/kube-apiserver", "facts.json"], ids=["booting", "up"])
def test_a_cluster_goes_with_its_owner_even_when_that_is_killed(seen: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stderr=subprocess.DEVNULL) as owner:
        until(seen, (Folder.of(OTHER).root / seen).exists)
        owner.kill()
    until("the owner's cluster is gone", lambda: traces(OTHER) == {})


def test_asking_for_a_cluster_that_is_not_up_names_the_command() -> None:
    done = subprocess.run(tool("kubeconfig"), capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "error: no cluster other is up here: `python -m e2e.cluster up --name other`\n"
