"""Gives each Node that an autoscaler makes a machine: a real kubelet and containerd, removed when the Node is gone.

A component of the cluster, started by `autoscaler.start`: `python -m e2e.cluster.provider CLUSTER`. It reads the Nodes
from the API server and changes nothing there. Any error ends it, and then the cluster has a dead component.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import DIES_WITH_CALLER
from e2e.cluster.names import MAX_NODES
from e2e.cluster.node import Node, Promise
from e2e.cluster.processes import ClusterError

NODES = "/api/v1/nodes"
PROVIDER = "kwok://"
AT_ONCE = 4
"""Machines that are started or taken away at the same time."""
_QUANTITY = re.compile(r"(\d+)(m|Ki|Mi|Gi|)")
_UNITS = {"m": 0.001, "": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
Object = Mapping[str, Any]


def promised(node: Object) -> Promise | None:
    """What the Node says it has, as its autoscaler has made it; None where no autoscaler has."""
    if not node["spec"].get("providerID", "").startswith(PROVIDER):
        return None
    told = node["status"]["allocatable"]
    cpu, memory, pods = (_amount(told[name]) for name in ("cpu", "memory", "pods"))
    return Promise(round(1000 * cpu), round(memory), round(pods))


def _amount(quantity: str) -> float:
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise ClusterError(f"quantity {quantity!r}: this tool knows whole numbers with one of {list(_UNITS)}")
    return int(found[1]) * _UNITS[found[2]]


@dataclass
class Machines:
    """Which Node has which number, and the reaction to an event. Pure."""

    first: int
    last: int
    taken: dict[str, int] = field(default_factory=dict)
    _next: int = 0

    def wants(self, node: Object) -> tuple[int, str, Promise] | None:
        """The machine to start for this Node; None where it has one or is not ours."""
        name, promise = str(node["metadata"]["name"]), promised(node)
        if promise is None or name in self.taken:
            return None
        self.taken[name] = number = self._free()
        return number, name, promise

    def gone(self, present: set[str]) -> list[str]:
        """The Nodes with machines that are not among these."""
        return sorted(self.taken.keys() - present)

    def free(self, name: str) -> None:
        """Its machine has been taken away."""
        del self.taken[name]

    def _free(self) -> int:
        """Not the one that was used last: clients that still know its addresses must find nothing there."""
        count = self.last - self.first + 1
        for offset in range(count):
            number = self.first + (self._next + offset) % count
            if number not in self.taken.values():
                self._next = number - self.first + 1
                return number
        raise ClusterError(f"the cluster has no place for another node: {MAX_NODES} are possible")


class Provider:
    """Keeps machines and Nodes the same, until something goes wrong."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._machines = Machines(cluster.names.node_count + 1, MAX_NODES)
        self._running: dict[str, Future[Node]] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._todo: queue.Queue[Object | BaseException | str] = queue.Queue()

    def run(self) -> None:
        """Follow the API server; never returns."""
        threading.Thread(target=self._follow, daemon=True).start()
        while True:
            match self._todo.get():
                case BaseException() as error:
                    raise error
                case str() as name:
                    self._machines.free(name)
                case event:
                    self._see(event)

    def _see(self, event: Object) -> None:
        match event["type"], event["object"]:
            case "LISTED", nodes:
                for node in nodes["items"]:
                    self._start(node)
                for name in self._machines.gone({node["metadata"]["name"] for node in nodes["items"]}):
                    self._take(name)
            case "DELETED", node:
                self._take(node["metadata"]["name"])
            case "ADDED" | "MODIFIED", node:
                self._start(node)

    def _start(self, node: Object) -> None:
        if wanted := self._machines.wants(node):
            self._running[wanted[1]] = self._submit(self._cluster.add_node, *wanted)

    def _take(self, name: str) -> None:
        if started := self._running.pop(name, None):
            self._submit(self._stop, name, started)

    def _stop(self, name: str, started: Future[Node]) -> None:
        started.result().stop()
        self._todo.put(name)

    def _submit(self, what: Any, *arguments: Any) -> Future[Any]:
        future = self._pool.submit(what, *arguments)
        future.add_done_callback(self._complain)
        return future

    def _complain(self, future: Future[Any]) -> None:
        if error := future.exception():
            self._todo.put(error)

    def _follow(self) -> None:
        try:
            while True:
                listed = json.loads(self._cluster.kubectl("get", "--raw", NODES).stdout)
                self._todo.put({"type": "LISTED", "object": listed})
                for event in self._watch(listed["metadata"]["resourceVersion"]):
                    self._todo.put(event)
        except BaseException as error:  # noqa: BLE001 - any error ends the program, in the main thread
            self._todo.put(error)

    def _watch(self, version: str) -> Iterator[Object]:
        """What happens after that version, until the API server has had enough."""
        words = ["kubectl", "get", "--raw", f"{NODES}?watch=1&resourceVersion={version}"]
        with subprocess.Popen(
            [*DIES_WITH_CALLER, *words], env=self._cluster.env, stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout or ():
                event = json.loads(line)
                if event["type"] == "ERROR":  # the version is too old: list again
                    break
                yield event
            process.kill()


def main() -> None:
    """Serve one cluster until it goes."""
    Provider(Cluster.attach(sys.argv[1])).run()


if __name__ == "__main__":
    main()
