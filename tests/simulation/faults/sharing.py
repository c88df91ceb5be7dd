"""What happens to a pool that jobs share: others come and go, limits and quotas change, machines are taken away."""

from __future__ import annotations

import asyncio
import random

from tests.simulation import drains
from tests.simulation.admission import CLASSES
from tests.simulation.faults.registry import fault, some_user
from tests.simulation.objects import PODS, Json, Refused, key_of
from tests.simulation.scene import NAMESPACE, OTHERS, Scene


@fault(80, shared=True)
async def others_come(scene: Scene, rng: random.Random) -> None:
    """Other people's pods take room for a while; some of them take it from pods that count for less."""
    server, pool = scene.world.server, scene.pool
    if pool is None:
        return
    names, chosen = [], rng.choice(sorted(CLASSES))
    for _ in range(rng.randint(1, 4)):
        container: Json = {"name": "c", "image": "c", "resources": pool.requests(rng.choice((1, 1, 2)))}
        name = f"other-{rng.getrandbits(24):06x}"
        spec = {"containers": [container], "terminationGracePeriodSeconds": 5, "priorityClassName": chosen}
        server.create(PODS, OTHERS, {"metadata": {"name": name}, "spec": spec}, by="others")
        scene.world.fire("others-come")
        names.append(name)
        await asyncio.sleep(rng.uniform(0.0, 3.0))
    await asyncio.sleep(rng.uniform(20, 150))
    for name in names:
        if server.find(PODS, OTHERS, name) is not None:
            server.delete(PODS, OTHERS, name, by="others")


@fault(120, shared=True)
async def limit_changes(scene: Scene, rng: random.Random) -> None:
    """The autoscaler may launch fewer machines for a while, or more; those that are there stay."""
    if scene.autoscaler is None or not scene.pool or not scene.pool.limit:
        return
    scene.world.fire("limit-changes")
    scene.autoscaler.limit = rng.randint(0, scene.pool.limit + 1)
    scene.world.tell("karpenter", "limit", nodes=scene.autoscaler.limit)
    await asyncio.sleep(rng.uniform(20, 150))
    scene.autoscaler.limit = scene.pool.limit


@fault(120, shared=True)
async def quota_changes(scene: Scene, rng: random.Random) -> None:
    """The namespace may request less for a while; existing pods stay."""
    pool, hard = scene.pool, scene.world.server.policy.hard
    if pool is None:
        return
    before = hard.get(NAMESPACE)
    hard[NAMESPACE] = {pool.resource: float(rng.randint(0, pool.machine * pool.most))}
    scene.world.tell("admin", "quota", **hard[NAMESPACE])
    await asyncio.sleep(rng.uniform(10, 120))
    if before is None:
        hard.pop(NAMESPACE, None)
    else:
        hard[NAMESPACE] = before


@fault(100, shared=True)
async def claim_deleted(scene: Scene, rng: random.Random) -> None:
    """A NodeClaim is deleted, drifts or expires; where it has a terminationGracePeriod its pods are not waited for."""
    nodes = scene.autoscaler.nodes() if scene.autoscaler else []
    if nodes:
        scene.world.fire("claim-deleted")
        name = key_of(rng.choice(nodes))[1]
        await drains.terminate_node(scene.world, rng, name, within=rng.choice((None, 60.0, 120.0)))


@fault(120, shared=True)
async def sizes_change(scene: Scene, rng: random.Random) -> None:
    """A job's owner requests another number, within other bounds, or none; healing restores the old values."""
    user = some_user(scene, rng)
    scene.world.fire("scale")
    elastic = (user.job or {}).get("spec", {}).get("elastic")
    if elastic and rng.random() < 0.6:
        bounds = {"maxReplicas": 4, "growAfterSeconds": rng.choice((0, 5)), "growTimeoutSeconds": 60}
        sizes = rng.choice(([1, 2, 3, 4], [1, 3], [2, 4], [1, 4]))
        each = int((user.job or {})["spec"].get("processesPerReplica", 1))
        named = rng.choice(({"sizes": sizes}, {"sizes": sizes}, {"globalBatchSize": sizes[-1] * each * sizes[0]}))
        user.edit(elastic=bounds | {"minReplicas": sizes[0], **named})
    user.edit(replicas=rng.randint(1, 4))


@fault(150, shared=True)
async def priority_changes(scene: Scene, rng: random.Random) -> None:
    """From its next pods on a job's priority is above, or below, its own members': a priority is permanent."""
    user = some_user(scene, rng)
    name = rng.choice(sorted(CLASSES))
    scene.world.fire("edit-template")
    try:
        user.template(lambda raw: raw["spec"].update(priorityClassName=name), f"priority {name or 'none'}")
    except Refused:
        return
