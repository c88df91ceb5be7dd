"""Requests for evictions by EvictionRequests: for a pod or a node, alone or with others, and possibly withdrawn."""

from __future__ import annotations

import asyncio
import random

from tests.simulation import evictor
from tests.simulation.faults.registry import fault, some_node, some_user
from tests.simulation.objects import PODS, REQUESTS, Json, key_of, node_of, terminating, uid_of
from tests.simulation.scene import NAMESPACE, Scene

REQUESTERS = ("example.com/maintenance", "example.com/descheduler", "example.com/upgrade")


def _ask(scene: Scene, pod: Json, requester: str) -> Json:
    """Make one, or turn the one around that is there."""
    server, name = scene.world.server, f"{requester.partition('/')[2]}-{uid_of(pod)}"
    there = server.find(REQUESTS, key_of(pod)[0], name)
    scene.world.fire("eviction-request")
    scene.world.tell("requester", "asks", pod=key_of(pod)[1], requester=requester)
    if there is not None:
        return server.change(
            REQUESTS, *key_of(there), lambda raw: raw["spec"].update(intent="Eviction"), by="requester"
        )
    target = {"pod": {"name": key_of(pod)[1], "uid": uid_of(pod)}}
    spec = {"requester": requester, "intent": "Eviction", "target": target}
    return server.create(REQUESTS, key_of(pod)[0], {"metadata": {"name": name}, "spec": spec}, by="requester")


def _take_back(scene: Scene, request: Json, *, delete: bool) -> None:
    server = scene.world.server
    if server.find(REQUESTS, *key_of(request)) is None:
        return
    scene.world.fire("request-withdrawn")
    scene.world.tell("requester", "deletes" if delete else "withdraws", request=key_of(request)[1])
    if delete:
        server.delete(REQUESTS, *key_of(request), by="requester")
    else:
        evictor.withdraw(scene.world, request)


def _there(scene: Scene) -> list[Json]:
    return [pod for pod in scene.world.server.all(PODS, NAMESPACE) if not terminating(pod)]


@fault(60, to_its_end=True, asks=True)
async def request_for_a_pod(scene: Scene, rng: random.Random) -> None:
    """Any pod: a member, a standby, one that has ended. One or two want it gone, and may think better of it."""
    pods = _there(scene)
    if not pods:
        return
    pod = rng.choice(pods)
    made = []
    for requester in rng.sample(REQUESTERS, rng.choice((1, 1, 2))):
        made.append(_ask(scene, pod, requester))
        await asyncio.sleep(rng.choice((0.0, 0.3, 5.0)))
    await asyncio.sleep(rng.choice((0.3, 2.0, 8.0, 30.0, 150.0)))
    for request in made[: rng.choice((0, 1, 2))]:
        _take_back(scene, request, delete=rng.random() < 0.3)


@fault(90, to_its_end=True, asks=True)
async def request_for_a_node(scene: Scene, rng: random.Random) -> None:
    """As a drain by requests would: all pods there, cordoned or not."""
    node = some_node(scene, rng)
    for pod in _there(scene):
        if node_of(pod) == node:
            _ask(scene, pod, REQUESTERS[0])
            await asyncio.sleep(rng.choice((0.0, 0.0, 1.0)))
    await asyncio.sleep(rng.uniform(20, 180))


@fault(120, to_its_end=True, asks=True)
async def request_in_turns(scene: Scene, rng: random.Random) -> None:
    """Asked for and withdrawn, again and again."""
    pods = some_user(scene, rng).pods()
    if not pods:
        return
    pod = rng.choice(pods)
    for _ in range(5):
        if scene.world.server.find(PODS, *key_of(pod)) is None:
            return
        request = _ask(scene, pod, REQUESTERS[1])
        await asyncio.sleep(rng.choice((0.3, 2.0, 10.0)))
        _take_back(scene, request, delete=False)
        await asyncio.sleep(rng.choice((0.3, 5.0, 40.0)))


@fault(120, to_its_end=True, asks=True)
async def eviction_deleted(scene: Scene, rng: random.Random) -> None:
    """The present Evictions are deleted; the requests stay, so new ones are made."""
    server = scene.world.server
    there = server.all("evictions")
    if there:
        scene.world.fire("eviction-deleted")
        server.delete("evictions", *key_of(rng.choice(there)), by="user")
