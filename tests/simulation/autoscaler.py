"""Karpenter, as pods and nodes see it: nodes for pods that fit nowhere, and the removal of unneeded nodes.

Behaviour and times were observed in version 1.14 with its kwok provider. Pods that the scheduler has called
Unschedulable are collected for some seconds, and packed onto existing or expected nodes; for the rest nodes are
launched, up to the pool's limit. Pods on a node that is being deleted count among them, so that its replacement is
under way before any pod is evicted. A node without pods is tainted and deleted about 40 seconds after its last one; one
with a member under a blocking budget is no candidate, and is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.drains import KARPENTER, terminate_node
from tests.simulation.objects import (
    NODES,
    PODS,
    Json,
    condition,
    is_ready,
    key_of,
    node_of,
    terminal,
    terminating,
)
from tests.simulation.pool import Pool
from tests.simulation.resources import allocatable, amount, lacking, left, requests
from tests.simulation.world import World

BATCH_SECONDS: Final = (1.0, 3.0)
BOOT_SECONDS: Final = (4.0, 45.0)
EMPTY_SECONDS: Final = (35.0, 42.0)
PREFIX: Final = "pool"


class Autoscaler:
    """Launches and removes the nodes whose name begins with `pool`."""

    def __init__(self, world: World, pool: Pool, add_node: Callable[[str], object]) -> None:
        self.limit = pool.limit
        """Lowered and raised by people while it works."""
        self._world, self._pool, self._add_node = world, pool, add_node
        self._rng = world.rng("autoscaler")
        self._launched = 0
        self._booting: set[str] = set()
        self._empty_since: dict[str, float] = {}
        self._patience: dict[str, float] = {}
        if pool.limit:
            world.after(self._rng.uniform(*BATCH_SECONDS), self._work)

    def nodes(self) -> list[Json]:
        """Its own, that are not being deleted."""
        mine = (node for node in self._world.server.all(NODES) if key_of(node)[1].startswith(PREFIX))
        return [node for node in mine if not terminating(node)]

    def _work(self) -> None:
        self._provision()
        for node in self.nodes():
            self._consider(node)
        self._world.after(self._rng.uniform(*BATCH_SECONDS), self._work)

    # launching

    def _provision(self) -> None:
        waiting = [pod for pod in self._world.server.all(PODS) if self._needs_a_node(pod)]
        if not waiting:
            return
        fresh = {name: amount(str(text)) for name, text in self._pool.allocatable.items()}
        rests = [self._rest(node) for node in self._world.server.all(NODES) if _takes_pods(node)]
        rests += [dict(fresh) for _ in self._booting]
        for pod in waiting:
            if self._fits(pod, rests):
                continue
            if lacking(requests(pod), fresh) or len(self.nodes()) + len(self._booting) >= self.limit:
                continue
            rests.append(left(fresh, [pod]))
            self._launch()

    def _needs_a_node(self, pod: Json) -> bool:
        if terminal(pod) or terminating(pod):
            return False
        if node_of(pod):
            node = self._world.node(node_of(pod))
            return node is not None and terminating(node)
        return (condition(pod, "PodScheduled") or {}).get("reason") == "Unschedulable"

    def _fits(self, pod: Json, rests: list[dict[str, float]]) -> bool:
        """Whether it finds room; that is taken then."""
        wanted = requests(pod)
        found = next((rest for rest in rests if not lacking(wanted, rest)), None)
        if found is None:
            return False
        found.update({name: found.get(name, 0.0) - number for name, number in wanted.items()})
        return True

    def _rest(self, node: Json) -> dict[str, float]:
        pods = self._world.pods_on(key_of(node)[1])
        return left(allocatable(node), (one for one in pods if not terminal(one)))

    def _launch(self) -> None:
        name = f"{PREFIX}-{self._launched}"
        self._launched += 1
        self._booting.add(name)
        self._world.tell("karpenter", "launches", node=name)
        self._world.after(self._rng.uniform(*BOOT_SECONDS), self._register, name)

    def _register(self, name: str) -> None:
        self._booting.discard(name)
        self._add_node(name)

    # removing

    def _consider(self, node: Json) -> None:
        """Emptiness: no pod that is not terminal."""
        name, now = key_of(node)[1], self._world.now
        if any(not terminal(pod) for pod in self._world.pods_on(name)) or not is_ready(node):
            self._empty_since.pop(name, None)
            return
        patience = self._patience.setdefault(name, self._rng.uniform(*EMPTY_SECONDS))
        if now - self._empty_since.setdefault(name, now) >= patience:
            self._world.tell("karpenter", "removes an empty node", node=name)
            self._world.spawn(terminate_node(self._world, self._rng, name))


def _takes_pods(node: Json) -> bool:
    spec = node.get("spec") or {}
    tainted = any(one["key"] == KARPENTER["key"] for one in spec.get("taints") or ())
    return is_ready(node) and not spec.get("unschedulable") and not terminating(node) and not tainted
