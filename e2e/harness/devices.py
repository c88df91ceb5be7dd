"""Devices that a node's kubelet assigns to pods: a real device plugin reports them, sick on a test's request."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.harness.kubectl import Kubectl
from e2e.harness.watching import Object

ALLOCATABLE_SECONDS = 60


class Devices:
    """The devices of one resource on some nodes; the `with` block begins when the scheduler knows them."""

    def __init__(self, kubectl: Kubectl, resource: str, each: int, plugins: Mapping[str, Sequence[str | Path]]) -> None:
        """`plugins` are the programs by node, each for so many devices."""
        path = "{.status.allocatable." + resource.replace(".", r"\.") + "}"
        self._counted = [*(f"node/{node}" for node in plugins), f"--for=jsonpath={path}={each}"]
        self._kubectl = kubectl
        self._plugins = plugins
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        try:
            for node, argv in self._plugins.items():
                self._running[node] = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)
            words = [*self._counted, f"--timeout={ALLOCATABLE_SECONDS}s"]
            self._kubectl("wait", *words, seconds=ALLOCATABLE_SECONDS + 10)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for plugin in self._running.values():
            plugin.communicate()

    def becomes(self, node: str, device: str, health: str) -> None:
        """The plugin reports to the kubelet: `Healthy` or `Unhealthy`."""
        told = self._running[node].stdin
        assert told
        told.write(f"{device} {health}\n")
        told.flush()


def given(pod: Object) -> dict[str, str]:
    """The devices of the pod's first container and their health, by the kubelet."""
    told = pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
    return {one["resourceID"]: one["health"] for found in told for one in found["resources"]}
