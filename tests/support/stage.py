"""Everything but kopf and the network: cache, watch, queue, worker, observer and actor around a cluster in memory.

Plays what kubelets and users do, and runs rounds until nothing is due.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cluster.protocol import EVICTIONS, JOBS, NODES, PODS, ClusterApi, Json, Resource
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.write.act import Actor
from perdure_operator.loop.orphans import Orphans
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.watch import WATCHED, Watch
from perdure_operator.loop.worker import Worker
from perdure_operator.serving.metrics.counted import Echoes
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW, job

KEY = ("ns", "digits")


class Stage:
    """One operator process; `restarted()` is its successor, which knows only the cluster."""

    def __init__(
        self,
        cluster: MemoryCluster | None = None,
        api: ClusterApi | None = None,
        signals: tuple[SignalRow, ...] = (),
        *,
        node_claims: bool = False,
        responds: bool = False,
    ) -> None:
        self.cluster = cluster or MemoryCluster()
        self.now: datetime = NOW
        self.cache = Cache(signals, responds=responds)
        self.queue = Queue(monotonic=self._monotonic)
        watch = Watch(self.cache, self.queue, Echoes())
        self.cluster.time = lambda: self.now
        self.cluster.watch = partial(_tell, watch, (*WATCHED, *((EVICTIONS,) if responds else ())))
        calls = api or self.cluster
        self.observer = Observer(calls, self.cache, clock=lambda: self.now, node_claims=node_claims)
        self.leading = True
        self.actor = Actor(
            calls, self.cache, instance="test", clock=lambda: self.now, still_leading=lambda: self.leading
        )
        self.orphans = Orphans(calls, self.cache, self.actor)
        self.worker = Worker(self.queue, self.observer, self.actor, self.orphans, jitter=lambda: 0.5)

    def _monotonic(self) -> float:
        return self.now.timestamp()

    def restarted(self) -> Stage:
        successor = Stage(self.cluster, responds=self.cache.responds)
        successor.now = self.now
        return successor

    # What users and kubelets do.

    def apply(self, raw: Json | None = None) -> None:
        asyncio.run(self.cluster.create(JOBS, "ns", raw or job()))

    def node(self, name: str) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        asyncio.run(self.cluster.create(NODES, "", {"metadata": {"name": name}, "spec": {}, "status": ready}))

    def cordon(self, name: str) -> None:
        self.cluster.change(NODES, "", name, lambda raw: raw["spec"].update(unschedulable=True))

    def run_pods(self, nodes: list[str]) -> None:
        """Every pod that is not on a node gets one and becomes Ready."""
        for index, raw in enumerate(self.pods()):
            if not raw["spec"].get("nodeName"):
                ready = partial(_ready, node=nodes[index % len(nodes)], index=index)
                self.cluster.change(PODS, "ns", raw["metadata"]["name"], ready)

    def end_pod(self, name: str, message: str, *, exit_code: int = 0) -> None:
        self.cluster.change(PODS, "ns", name, lambda pod: _ended(pod, message, exit_code))

    # What there is.

    def status(self) -> TrainingJobStatus:
        raw = asyncio.run(self.cluster.get(JOBS, *KEY))
        return TrainingJobStatus.model_validate(raw.get("status") or {})

    def pods(self) -> list[Json]:
        return asyncio.run(self.cluster.list(PODS, "ns"))

    def names(self) -> list[str]:
        return [raw["metadata"]["name"] for raw in self.pods()]

    # The operator.

    def sync(self) -> None:
        """Everything is read, and every job is due."""
        asyncio.run(self.observer.sync())
        for known in self.cache.jobs():
            self.queue.add(known.key)

    def start(self) -> None:
        self.sync()
        self.settle()

    def settle(self, *, rounds: int = 60) -> None:
        """Work on everything that is due by now."""
        for _ in range(rounds):
            key = self.queue._schedule.pop(self.now.timestamp())
            if key is None:
                return
            asyncio.run(self.worker.work(key))
        raise AssertionError(f"still busy after {rounds} rounds: {self.cluster.writes[-10:]}")

    def wait(self, seconds: float) -> None:
        """Time passes, and everything due by then runs."""
        self.now += timedelta(seconds=seconds)
        self.settle()


def _tell(watch: Watch, watched: tuple[Resource, ...], kind: str, resource: Resource, raw: Json) -> None:
    """Events without a subscriber are dropped."""
    if resource in watched:
        watch.take_in(resource, kind, raw)


def _ready(pod: Json, node: str, index: int) -> None:
    pod["spec"]["nodeName"] = node
    state: dict[str, Any] = {"name": pod["spec"]["containers"][0]["name"], "state": {"running": {}}}
    ready = [{"type": "Ready", "status": "True"}]
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.0.0.{index + 1}",
        "conditions": ready,
        "containerStatuses": [state],
    }


def _ended(pod: Json, message: str, exit_code: int) -> None:
    terminated = {"terminated": {"exitCode": exit_code, "reason": "Completed", "message": message}}
    pod["status"] |= {"phase": "Succeeded" if exit_code == 0 else "Failed", "conditions": []}
    pod["status"]["containerStatuses"][0]["state"] = terminated
