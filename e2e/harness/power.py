"""A node whose power is off, as others see it: its pods and its kubelet stand still, and no packet comes or goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from e2e.harness.lab import Lab

READY_SECONDS: Final = 180


@contextlib.contextmanager
def powered_off(lab: Lab, node: str, pods: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """The node with these pods on it. Once the block is left they are dead, and the node is Ready again."""
    lab.cluster.freeze_node(node)
    try:
        for pod in pods:
            _cut_off(lab, pod)
        yield
    finally:
        for pod in pods:
            lab.kill(pod)
        lab.cluster.thaw_node(node)
        words = [f"node/{node}", "--for=condition=Ready", f"--timeout={READY_SECONDS}s"]
        lab.kubectl("wait", *words, seconds=READY_SECONDS + 10)


def _cut_off(lab: Lab, pod: Mapping[str, Any]) -> None:
    """Silent from one moment on, so that not even the kernel answers for it."""
    found = lab.processes(pod)
    netns = f"--net=/proc/{next(iter(found))}/ns/net"
    for chain in ("INPUT", "OUTPUT"):
        subprocess.run(["nsenter", netns, "iptables", "-w", "-I", chain, "-j", "DROP"], check=True, capture_output=True)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
