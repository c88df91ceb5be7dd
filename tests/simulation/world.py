"""One history's world: the loop, the API server, the network, the bucket, chance, and the facts about them.

Every part draws from its own stream of chance, so that leaving one fault out does not change what the others do.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.simulation.apiserver import ApiServer
from tests.simulation.clock import VirtualLoop
from tests.simulation.interface import Behaviour, Bucket
from tests.simulation.link import Knobs
from tests.simulation.objects import NODES, Json


class PodNetwork:
    """Which nodes are cut off. Addresses belong to nodes as pods get them."""

    def __init__(self) -> None:
        self.shared: dict[Any, Any] = {}
        self.nodes: dict[str, str] = {}
        """Node by pod address."""
        self.cut: set[str] = set()
        self.without_storage: set[str] = set()

    def reachable(self, here: str, there: str) -> bool:
        """Pods on one node reach each other; a node that is cut off reaches no other."""
        one, other = self.nodes.get(here), self.nodes.get(there)
        if one is None or other is None:
            return False
        return one == other or (one not in self.cut and other not in self.cut)

    def storage_reachable(self, here: str) -> bool:
        return self.nodes.get(here, "") not in self.without_storage


@dataclass(frozen=True)
class Fact:
    """Something that has happened, for the trace and the checks."""

    at: float
    who: str
    what: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.at:9.3f} {self.who:<22} {self.what} {told}".rstrip()


class World:
    """Shared by everything in one history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.knobs = Knobs()
        self.server = ApiServer(self.loop.time, self.rng("uids"))
        self.network = PodNetwork()
        self.bucket = Bucket()
        self.behaviours: dict[str, Behaviour] = {}
        """By namespace/name of the job."""
        self.fired: Counter[str] = Counter()
        self.server.policy.on_refusal = self.fire
        self.facts: list[Fact] = []
        self.listeners: list[Callable[[Fact], object]] = []
        self._addresses = 0
        self._born: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self.loop.set_exception_handler(self._on_exception)

    def rng(self, stream: str) -> random.Random:
        """The same for the same seed and name."""
        return random.Random(f"{self.seed}/{stream}")  # noqa: S311 - a history has to be repeatable

    def rng_of_pod(self, name: str) -> random.Random:
        """Another one for each pod of this name."""
        self._born[name] += 1
        again = f" again {self._born[name]}" if self._born[name] > 1 else ""
        return self.rng(f"member/{name}{again}")

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    def tell(self, who: str, what: str, **facts: Any) -> None:
        """For the trace and the checks."""
        fact = Fact(self.loop.time(), who, what, facts)
        self.facts.append(fact)
        for listener in self.listeners:
            listener(fact)

    def fire(self, fault: str) -> None:
        """Count a fault that has had an effect."""
        self.fired[fault] += 1

    def after(self, delay: float, function: Callable[..., object], *args: Any) -> None:
        """Later, outside any process."""
        self.loop.outside(delay, function, *args)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Outside any process: nothing awaits it, so a mistake in it fails the history."""
        task = self.loop.spawn(work)
        task.add_done_callback(self._on_done)
        return task

    def address(self, node: str) -> str:
        """A new pod address on that node; never used twice."""
        self._addresses += 1
        ip = f"10.{self._addresses >> 16}.{self._addresses >> 8 & 255}.{self._addresses & 255}"
        self.network.nodes[ip] = node
        return ip

    def node(self, name: str) -> Json | None:
        return self.server.find(NODES, "", name)

    def pods_on(self, node: str) -> list[Json]:
        return self.server.pods_on(node)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self.failed = self.failed or task.exception()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something in the world, or an event handler of the operator, has raised: the history has failed."""
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        if self.failed is None:
            self.failed = error


class Debounced:
    """Calls a function some time after the last of many reasons to, as controllers' queues do."""

    def __init__(self, world: World, delay: Callable[[], float], function: Callable[[], object]) -> None:
        self._world, self._delay, self._function = world, delay, function
        self._waiting = False

    def __call__(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._world.after(self._delay(), self._run)

    def _run(self) -> None:
        self._waiting = False
        self._function()
