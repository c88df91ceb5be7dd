"""Two things in a row, at the moment when they meet: what the others come to as well, in few of their histories.

Played only where they are named: the planted bugs name them, and `test_worst` sees that the code bears them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from tests.simulation.checks.reading import assignment
from tests.simulation.faults.registry import fault, some_user
from tests.simulation.kubelet import Kubelet
from tests.simulation.objects import Json, is_ready, node_of
from tests.simulation.scene import Scene
from tests.simulation.users import User

COME_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.2


async def _members(scene: Scene, user: User, least: int = 1) -> list[Json]:
    """Pods that train, by rank, once there are so many; none where they do not come."""
    found = list[Json]()

    def come() -> bool:
        found[:] = [pod for pod in user.pods() if "rank" in assignment(pod) and is_ready(pod)]
        return len(found) >= least

    await _moment(scene, come)
    return sorted(found, key=lambda pod: int(assignment(pod)["rank"])) if len(found) >= least else []


async def _moment(scene: Scene, come: Callable[[], bool]) -> None:
    for _ in range(int(COME_SECONDS / LOOK_SECONDS)):
        if come():
            return
        await asyncio.sleep(LOOK_SECONDS)


def _under(scene: Scene, pod: Json) -> Kubelet | None:
    return scene.kubelets.get(node_of(pod))


async def _suspended(user: User, seconds: float) -> None:
    user.world.fire("suspend")
    user.edit(suspend=True)
    await asyncio.sleep(seconds)
    user.edit(suspend=False)


@fault(250, alone=True)
async def node_dies_under_deleted(scene: Scene, rng: random.Random) -> None:
    """Somebody deletes a member, and before it has ended its machine loses power: nobody tells any more how it ends."""
    user = some_user(scene, rng)
    members = await _members(scene, user)
    kubelet = _under(scene, rng.choice(members)) if members else None
    if kubelet is None or not kubelet.alive:
        return
    scene.world.fire("delete-pod")
    scene.world.fire("node-power")
    for pod in members:
        if node_of(pod) == kubelet.name:
            user.delete_that(pod, rng.choice((None, 30)))
    await asyncio.sleep(rng.uniform(0.0, 0.5))
    scene.world.tell("node", "power off", node=kubelet.name)
    kubelet.die()
    await asyncio.sleep(rng.choice((150, 250)))
    scene.world.tell("node", "power on", node=kubelet.name)
    if scene.world.node(kubelet.name) is not None:
        kubelet.boot()


@fault(250, alone=True)
async def suspended_while_one_goes(scene: Scene, rng: random.Random) -> None:
    """A member has some seconds left, and now all of them are to save and leave."""
    user = some_user(scene, rng)
    members = await _members(scene, user, least=2)
    if members:
        scene.world.fire("delete-pod")
        user.delete_that(rng.choice(members), rng.choice((8, 12)))
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        await _suspended(user, rng.uniform(30, 60))


@fault(250, alone=True)
async def suspended_unheard(scene: Scene, rng: random.Random) -> None:
    """Members are to leave, and admission lets nobody change a pod."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    if await _members(scene, user):
        policy.refuse_patches = 'admission webhook "policy.example" denied the request: no'
        await _suspended(user, rng.uniform(60, 100))
        policy.refuse_patches = ""


@fault(300, to_its_end=True, alone=True)
async def suspended_with_some_hung(scene: Scene, rng: random.Random) -> None:
    """PID 1 of a member, or of all, is stopped for good, and all are to save and leave."""
    user = some_user(scene, rng)
    members = await _members(scene, user)
    for pod in members if rng.random() < 0.5 else members[-1:]:
        if kubelet := _under(scene, pod):
            scene.world.fire("hung-agent")
            kubelet.hang_pod(pod)
    if members:
        await _suspended(user, 260.0)


@fault(300, to_its_end=True, alone=True)
async def deleted_and_stuck(scene: Scene, rng: random.Random) -> None:
    """A member is deleted, and its kubelet never comes to an end with it."""
    user = some_user(scene, rng)
    members = await _members(scene, user)
    if members and (kubelet := _under(scene, pod := rng.choice(members))):
        kubelet.stuck = 1.0
        scene.world.fire("delete-pod")
        user.delete_that(pod, rng.choice((1, 5)))
        await asyncio.sleep(260.0)
        kubelet.free()


@fault(250, alone=True)
async def killed_without_patience(scene: Scene, rng: random.Random) -> None:
    """A member dies of a job that waits for no standby."""
    user = some_user(scene, rng)
    spec = dict(user.body["spec"]["disruption"])
    user.edit(disruption=spec | {"replacementTimeoutSeconds": 0})
    members = await _members(scene, user, least=2)
    if members and (kubelet := _under(scene, pod := rng.choice(members))):
        scene.world.fire("kill-pod")
        kubelet.kill_pod(pod)
        await asyncio.sleep(rng.uniform(20, 60))
    user.edit(disruption=spec)


@fault(300, alone=True)
async def emptied_while_suspended(scene: Scene, rng: random.Random) -> None:
    """A lifecycle rule deletes the checkpoints of a job that is suspended."""
    user, bucket = some_user(scene, rng), scene.world.bucket
    if not await _members(scene, user):
        return
    await asyncio.sleep(rng.uniform(20, 40))
    scene.world.fire("suspend")
    user.edit(suspend=True)
    await _moment(scene, lambda: not user.pods())
    scene.world.fire("emptied-root")
    for key in [one for one in bucket.objects if one.startswith(user.root + "/")]:
        del bucket.objects[key]
    told = int(((user.job or {}).get("status") or {}).get("commitSeq") or 0)
    scene.world.tell("user", "emptied", root=user.root, told=told)
    user.edit(suspend=False)
