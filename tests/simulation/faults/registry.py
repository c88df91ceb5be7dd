"""Faults by name, and what all of them need of a scene."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.simulation.kubelet import Kubelet
from tests.simulation.objects import NODES, terminating
from tests.simulation.scene import Scene
from tests.simulation.users import User

Do = Callable[[Scene, random.Random], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    do: Do
    every: float
    """Mean seconds between two of them, where a seed has chosen this kind."""
    waits_for: str = ""
    """The known defect without whose mending histories with this fault fail."""
    to_its_end: bool = False
    """The history lasts until it is over: its length is its point."""
    alone: bool = False
    """Only when named: it arranges what independent faults seldom meet."""
    shared: bool = False
    """Of what several jobs share: played where there is a pool, and drawn by a stream of its own."""
    apart: bool = False
    """Drawn by a stream of its own: a seed that does not choose it is the history that it was without it."""
    asks: bool = False
    """By an EvictionRequest: played where Kubernetes has them, and drawn apart."""


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    every: float,
    *,
    waits_for: str = "",
    to_its_end: bool = False,
    alone: bool = False,
    shared: bool = False,
    apart: bool = False,
    asks: bool = False,
) -> Callable[[Do], Do]:
    """Register under the function's name."""

    def register(do: Do) -> Do:
        name = do.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, do, every, waits_for, to_its_end, alone, shared, apart, asks)
        return do

    return register


def some_node(scene: Scene, rng: random.Random) -> str | None:
    names = [one["metadata"]["name"] for one in scene.world.server.all(NODES) if not terminating(one)]
    return rng.choice(names) if names else None


def some_kubelet(scene: Scene, rng: random.Random) -> Kubelet:
    return scene.kubelets[rng.choice(sorted(scene.kubelets))]


def some_user(scene: Scene, rng: random.Random) -> User:
    return rng.choice(scene.users)
