"""What the kernel does in its own time: nobody who removes a cluster stumbles over it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e.cluster import network
from e2e.cluster.requirements import require_cluster

pytestmark = pytest.mark.cluster
DEVICE, NAMESPACE = "perdure-test", "perdure-test-peer"
TIMES = 40


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def test_a_device_that_goes_with_its_other_end_while_it_is_removed_is_gone() -> None:
    require_cluster()
    for _ in range(TIMES):
        ip("netns", "add", NAMESPACE)
        ip("link", "add", DEVICE, "type", "veth", "peer", "name", "peer", "netns", NAMESPACE)
        ip("netns", "delete", NAMESPACE)
        network.remove_host_device(DEVICE)
        assert not Path("/sys/class/net", DEVICE).exists()
