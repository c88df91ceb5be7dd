"""What is done to the object storage behind a job's back: rights that are taken away, checkpoints that are deleted."""

from __future__ import annotations

import asyncio
import json
import random

from tests.simulation.faults.registry import fault, some_user
from tests.simulation.objects import node_of
from tests.simulation.scene import Scene
from tests.simulation.users import User


@fault(300)
async def keys_revoked(scene: Scene, rng: random.Random) -> None:
    """The store refuses a job's keys for a while, and its members have to begin anew meanwhile."""
    user, refused = some_user(scene, rng), scene.world.bucket.refused
    scene.world.fire("keys-revoked")
    refused.add(user.root)
    await asyncio.sleep(rng.uniform(0, 20))
    _kill_all(scene, user)
    await asyncio.sleep(rng.uniform(20, 90))
    refused.discard(user.root)


@fault(300)
async def checkpoints_deleted(scene: Scene, rng: random.Random) -> None:
    """A lifecycle rule that excludes only the log deletes a job's checkpoints, and its members have to begin anew."""
    user, objects = some_user(scene, rng), scene.world.bucket.objects
    entries = [json.loads(data) for key, data in objects.items() if key.startswith(f"{user.root}/log/")]
    folders = [one["manifest"]["key"].rpartition("/")[0] for one in entries if one["kind"] == "Committed"]
    scene.world.fire("stripped-root")
    for key in [one for one in objects if one.startswith(tuple(f"{user.root}/{folder}/" for folder in folders))]:
        del objects[key]
    scene.world.tell("user", "stripped", root=user.root)
    _kill_all(scene, user)


def _kill_all(scene: Scene, user: User) -> None:
    for pod in user.pods():
        if node_of(pod) in scene.kubelets:
            scene.world.fire("kill-pod")
            scene.kubelets[node_of(pod)].kill_pod(pod)
