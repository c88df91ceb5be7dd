"""Damage to the object storage behind a job's back: permissions revoked, checkpoints deleted."""

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
    """The store refuses a job's keys for a while, and its members have to restart meanwhile."""
    user, refused = some_user(scene, rng), scene.world.bucket.refused
    scene.world.fire("keys-revoked")
    refused.add(user.root)
    await asyncio.sleep(rng.uniform(0, 20))
    _kill_all(scene, user)
    await asyncio.sleep(rng.uniform(20, 90))
    refused.discard(user.root)


@fault(300)
async def checkpoints_deleted(scene: Scene, rng: random.Random) -> None:
    """A lifecycle rule that excludes only the log deletes a job's checkpoints, and its members have to restart."""
    user, objects = some_user(scene, rng), scene.world.bucket.objects
    entries = [json.loads(data) for key, data in objects.items() if key.startswith(f"{user.root}/log/")]
    folders = [one["manifest"]["key"].rpartition("/")[0] for one in entries if one["kind"] == "Committed"]
    scene.world.fire("stripped-root")
    for key in [one for one in objects if one.startswith(tuple(f"{user.root}/{folder}/" for folder in folders))]:
        del objects[key]
    scene.world.tell("user", "stripped", root=user.root)
    _kill_all(scene, user)


@fault(150, apart=True)
async def commit_damaged(scene: Scene, rng: random.Random) -> None:
    """An object of a job's newest commit is changed or deleted, an older one exists, and all restart; if one alone is
    killed, the others report their progress."""
    user, objects = some_user(scene, rng), scene.world.bucket.objects
    entries = [json.loads(data) for key, data in objects.items() if key.startswith(f"{user.root}/log/")]
    commits = sorted((one for one in entries if one["kind"] == "Committed"), key=lambda one: -int(one["seq"]))
    there = [one for one in commits if f"{user.root}/{one['manifest']['key']}" in objects]
    if len(there) < 2 or there[0] is not commits[0]:
        return
    folder = there[0]["manifest"]["key"].rpartition("/")[0]
    shards = sorted(one for one in objects if one.startswith(f"{user.root}/{folder}/") and "shard" in one)
    if not shards:
        return
    key = rng.choice(shards)
    if rng.random() < 0.5:
        objects[key] = bytes(byte ^ 1 for byte in objects[key])
    else:
        del objects[key]
    scene.world.fire("damaged-commit")
    told = {"uid": there[0]["uid"], "seq": int(there[0]["seq"]), "step": int(there[0]["step"])}
    scene.world.tell("user", "damaged", root=user.root, key=key, **told)
    pods = [pod for pod in user.pods() if node_of(pod) in scene.kubelets]
    for pod in pods if rng.random() < 0.3 else rng.sample(pods, min(1, len(pods))):
        scene.world.fire("kill-pod")
        scene.kubelets[node_of(pod)].kill_pod(pod)


def _kill_all(scene: Scene, user: User) -> None:
    for pod in user.pods():
        if node_of(pod) in scene.kubelets:
            scene.world.fire("kill-pod")
            scene.kubelets[node_of(pod)].kill_pod(pod)
