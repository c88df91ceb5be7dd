"""Delayed work of the kernel: it does not disturb the removal of a cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import Cluster, network
from e2e.cluster.requirements import require_cluster

pytestmark = pytest.mark.cluster
DEVICE, NAMESPACE = "perdure-test", "perdure-test-peer"
TIMES = 40


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def test_the_control_plane_keeps_its_address_when_a_node_comes_and_goes(cluster: Cluster) -> None:
    def address() -> str:
        shown = subprocess.run([*inside, "-json", "link", "show", network.BRIDGE], capture_output=True, check=True)
        return str(json.loads(shown.stdout)[0]["address"])

    inside = ["ip", "-netns", cluster.names.netns]
    before = address()
    ip(*inside[1:], "link", "add", "lowest", "address", "02:00:00:00:00:01", "type", "veth")
    ip(*inside[1:], "link", "set", "lowest", "master", network.BRIDGE)
    with_it = address()
    ip(*inside[1:], "link", "delete", "lowest")

    assert [with_it, address()] == [before] * 2


def test_a_device_that_goes_with_its_other_end_while_it_is_removed_is_gone() -> None:
    require_cluster()
    for _ in range(TIMES):
        ip("netns", "add", NAMESPACE)
        ip("link", "add", DEVICE, "type", "veth", "peer", "name", "peer", "netns", NAMESPACE)
        ip("netns", "delete", NAMESPACE)
        network.remove_host_device(DEVICE)
        assert not Path("/sys/class/net", DEVICE).exists()
