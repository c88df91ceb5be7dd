"""Exactly `kubectl drain NODE --ignore-daemonsets`, timed, in parallel with the test."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from e2e.harness.kubectl import Kubectl
from e2e.harness.watching import Late


@dataclass(frozen=True)
class Drained:
    """A finished drain."""

    node: str
    status: int
    started: float
    ended: float
    output: str

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class Drain:
    """A running drain; used as a context manager that ends it if the test fails meanwhile."""

    def __init__(self, kubectl: Kubectl, node: str) -> None:
        self.node = node
        self.started = time.time()
        self._process = kubectl.start("drain", node, "--ignore-daemonsets")
        self._output, self._ended = "", self.started
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._reader.join()

    def still_waits(self) -> bool:
        """Whether kubectl is still running."""
        return self._process.poll() is None

    def finish(self, *, seconds: float = 240) -> Drained:
        """Wait for kubectl to return. Raises Late, with its output, after `seconds`."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()
            said = f"it said:\n{self._output}"
            raise Late(f"kubectl drain {self.node} has not come back within {seconds} s; {said}")
        return Drained(self.node, self._process.returncode, self.started, self._ended, self._output)

    def _read(self) -> None:
        """The drain's end is noted when it comes: a test may ask for it much later."""
        self._output, _ = self._process.communicate()
        self._ended = time.time()


def evict(kubectl: Kubectl, namespace: str, pod: str) -> subprocess.CompletedProcess[str]:
    """Request this pod's eviction once, as a drain does every 5 s; returns the API server's answer."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    return kubectl.run("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))


def uncordon(kubectl: Kubectl, names: Collection[str]) -> None:
    """Uncordon these nodes."""
    nodes = kubectl.json("get", "nodes")["items"]
    cordoned = {node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")}
    if wanted := cordoned.intersection(names):
        kubectl("uncordon", *wanted)
