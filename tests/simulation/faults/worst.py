"""Two events in a row, at the moment when they meet: what the other faults reach as well, in few of their histories.

Played only when named: the planted bugs name them, and `test_worst` checks that the code survives them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from perdure.wire import AFTER_COMPLETION_SECONDS
from tests.simulation import drains
from tests.simulation.apiserver import Change
from tests.simulation.checks.reading import assignment, finished
from tests.simulation.controllers import evict
from tests.simulation.faults.registry import fault, some_user
from tests.simulation.kubelet import Kubelet
from tests.simulation.objects import (
    JOBS,
    NODES,
    PODS,
    Json,
    Refused,
    is_ready,
    key_of,
    node_of,
    owner_of,
    phase_of,
    terminating,
    uid_of,
)
from tests.simulation.scene import Scene, foreign_pod
from tests.simulation.users import User

COME_SECONDS: Final = 60.0
GOAL_SECONDS: Final = 420.0
LOOK_SECONDS: Final = 0.2


async def _members(user: User, least: int = 1) -> list[Json]:
    """Pods that train, by rank, once there are so many; none where they do not come."""
    found = list[Json]()

    def come() -> bool:
        found[:] = [pod for pod in user.pods() if "rank" in assignment(pod) and is_ready(pod)]
        return len(found) >= least

    await _moment(come)
    return sorted(found, key=lambda pod: int(assignment(pod)["rank"])) if len(found) >= least else []


async def _made(scene: Scene, user: User) -> Json | None:
    """The next pod that is made for the job, in the moment when it is; None where none is in time."""
    made: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
    uid = uid_of(user.job) if user.job else ""

    def look(change: Change) -> None:
        if change.event == "ADDED" and owner_of(change.raw) == uid and not made.done():
            made.set_result(change.raw)

    scene.world.server.observe(look, PODS)
    try:
        async with asyncio.timeout(COME_SECONDS):
            return await made
    except TimeoutError:
        return None


async def _moment(come: Callable[[], bool], seconds: float = COME_SECONDS) -> bool:
    """Whether it comes in time."""
    for _ in range(int(seconds / LOOK_SECONDS)):
        if come():
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False


def _under(scene: Scene, pod: Json) -> Kubelet | None:
    return scene.kubelets.get(node_of(pod))


def _crash_all(scene: Scene) -> None:
    """Every replica of the operator: the standbys have seen what the leader has."""
    scene.world.fire("operator-crash")
    for one in scene.operators.replicas:
        if one.alive:
            one.process.crash_in = 0


def _take(scene: Scene, user: User, pod: Json) -> None:
    """Delete it by force, and no watch tells of it for a while."""
    scene.world.fire("force-delete-pod")
    scene.world.fire(f"lag-of-{PODS}")
    scene.world.knobs.lagging[PODS] = 30.0
    user.delete_that(pod, 0)


async def _suspended(user: User, seconds: float) -> None:
    user.world.fire("suspend")
    user.edit(suspend=True)
    await asyncio.sleep(seconds)
    user.edit(suspend=False)


@fault(250, alone=True)
async def node_dies_under_deleted(scene: Scene, rng: random.Random) -> None:
    """A member is deleted, and before it has ended its machine loses power: its end is never reported."""
    user = some_user(scene, rng)
    members = await _members(user)
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
    """A member has some seconds left, and now all of them have to save and leave."""
    user = some_user(scene, rng)
    members = await _members(user, least=2)
    if members:
        scene.world.fire("delete-pod")
        user.delete_that(rng.choice(members), rng.choice((8, 12)))
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        await _suspended(user, rng.uniform(30, 60))


@fault(250, alone=True)
async def suspended_unheard(scene: Scene, rng: random.Random) -> None:
    """Members have to leave, and admission refuses every change of a pod."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    if await _members(user):
        policy.refuse_patches = 'admission webhook "policy.example" denied the request: no'
        await _suspended(user, rng.uniform(60, 100))
        policy.refuse_patches = ""


@fault(400, to_its_end=True, alone=True)
async def written_off_unheard(scene: Scene, rng: random.Random) -> None:
    """A machine loses power under a member, and while that one is written off admission refuses every change of a
    pod."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    members = await _members(user, least=2)
    kubelet = _under(scene, rng.choice(members)) if members else None
    if kubelet is None or not kubelet.alive:
        return
    scene.world.fire("node-power")
    scene.world.tell("node", "power off", node=kubelet.name)
    kubelet.die()
    policy.refuse_patches = 'admission webhook "policy.example" denied the request: no'
    here = [key_of(pod)[1] for pod in members if node_of(pod) == kubelet.name]
    await _moment(lambda: any(terminating(pod) for pod in user.pods() if key_of(pod)[1] in here), 200.0)
    await asyncio.sleep(rng.uniform(1, 5))
    policy.refuse_patches = ""
    await asyncio.sleep(150.0)
    scene.world.tell("node", "power on", node=kubelet.name)
    if scene.world.node(kubelet.name) is not None:
        kubelet.boot()


@fault(300, to_its_end=True, alone=True)
async def suspended_with_some_hung(scene: Scene, rng: random.Random) -> None:
    """PID 1 of a member, or of all, is stopped permanently, and all have to save and leave."""
    user = some_user(scene, rng)
    members = await _members(user)
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
    members = await _members(user)
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
    members = await _members(user, least=2)
    if members and (kubelet := _under(scene, pod := rng.choice(members))):
        scene.world.fire("kill-pod")
        kubelet.kill_pod(pod)
        await asyncio.sleep(rng.uniform(20, 60))
    user.edit(disruption=spec)


@fault(300, alone=True)
async def emptied_while_suspended(scene: Scene, rng: random.Random) -> None:
    """A lifecycle rule deletes the checkpoints of a job that is suspended."""
    user, bucket = some_user(scene, rng), scene.world.bucket
    if not await _members(user):
        return
    await asyncio.sleep(rng.uniform(20, 40))
    scene.world.fire("suspend")
    user.edit(suspend=True)
    await _moment(lambda: not user.pods())
    scene.world.fire("emptied-root")
    for key in [one for one in bucket.objects if one.startswith(user.root + "/")]:
        del bucket.objects[key]
    told = int(((user.job or {}).get("status") or {}).get("commitSeq") or 0)
    scene.world.tell("user", "emptied", root=user.root, told=told)
    user.edit(suspend=False)


@fault(250, alone=True)
async def suspended_until_empty(scene: Scene, rng: random.Random) -> None:
    """Only its status is left of a suspended job, and nothing that remembers more."""
    user = some_user(scene, rng)
    if await _members(user):
        scene.world.fire("suspend")
        user.edit(suspend=True)
        await _moment(lambda: not user.pods())
        _crash_all(scene)
        await asyncio.sleep(rng.uniform(0.0, 5.0))
        user.edit(suspend=False)


@fault(300, to_its_end=True, alone=True)
async def hung_at_the_end(scene: Scene, rng: random.Random) -> None:
    """PID 1 of a member is stopped permanently, and the job reaches its goal."""
    user = min(scene.users, key=lambda one: one.goal)
    members = await _members(user, least=2)
    if members and user.goal <= 300 and (kubelet := _under(scene, pod := rng.choice(members[1:]))):
        scene.world.fire("hung-agent")
        kubelet.hang_pod(pod)
        if await _moment(lambda: finished(user.job or {}), GOAL_SECONDS):
            for other in scene.users:  # an hour of their training would show nothing
                other.edit(activeDeadlineSeconds=1)
            await asyncio.sleep(AFTER_COMPLETION_SECONDS + 300.0)


@fault(250, alone=True)
async def restarted_without_session(scene: Scene, rng: random.Random) -> None:
    """`python nosuch.py | tee log`, as the command of a run that begins."""
    user = some_user(scene, rng)
    behaviour = scene.world.behaviours["/".join(user.key)]
    if await _members(user):
        scene.world.fire("exit-without-session")
        behaviour.exits_without_session = True
        await _suspended(user, rng.uniform(1, 5))
        await asyncio.sleep(rng.uniform(20, 40))
        behaviour.exits_without_session = False


@fault(250, alone=True)
async def budget_made_unheard(scene: Scene, rng: random.Random) -> None:
    """A budget is refused for a while, then it is made, and the answer is lost."""
    user, policy, calls = some_user(scene, rng), scene.world.server.policy, scene.world.knobs.calls
    scene.world.fire("delete-job")
    user.delete()
    await _moment(lambda: user.job is None)
    policy.refuse_budgets = 'admission webhook "policy.example" denied the request: no'
    user.apply()
    await _moment(lambda: bool(user.pods()), rng.uniform(5, 15))
    policy.refuse_budgets, calls.lost = "", 1.0
    await _moment(lambda: user.budget() is not None, 30.0)
    calls.lost = 0.0


@fault(250, alone=True)
async def foreign_pod_that_no_budget_counts(scene: Scene, rng: random.Random) -> None:
    """A user's pod has a member's labels, the budget may not be raised for it, and a member's node is drained."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    members = await _members(user)
    if not members:
        return
    policy.refuse_budgets = 'admission webhook "policy.example" denied the request: no'
    foreign_pod(scene.world, user, "foreign", alone=False)
    await asyncio.sleep(rng.uniform(40, 60))
    scene.world.fire("drain")
    for pod in members:
        with suppress(Refused):
            evict(scene.world, *key_of(pod))
    await asyncio.sleep(rng.uniform(1, 5))
    policy.refuse_budgets = ""


@fault(250, alone=True)
async def taken_under_quota(scene: Scene, rng: random.Random) -> None:
    """One of two new members is refused, and the other is deleted as soon as it exists."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    if not await _members(user, least=2):
        return
    scene.world.fire("suspend")
    user.edit(suspend=True)
    await _moment(lambda: not user.pods())
    policy.pods_quota = len(scene.world.server.each(PODS)) + 1
    user.edit(suspend=False)
    if pod := await _made(scene, user):
        _take(scene, user, pod)
        await asyncio.sleep(rng.uniform(5, 30))
    scene.world.knobs.lagging.pop(PODS, None)
    policy.pods_quota = None


@fault(250, alone=True)
async def taken_unheard(scene: Scene, rng: random.Random) -> None:
    """A member is created and the answer is lost; it is deleted before the operator looks."""
    user, calls = some_user(scene, rng), scene.world.knobs.calls
    if not await _members(user):
        return
    user.delete_pod(1)
    calls.lost, calls.lost_kind = 1.0, PODS  # status has allotted the name, and is answered
    if pod := await _made(scene, user):
        _take(scene, user, pod)
    calls.lost, calls.lost_kind = 0.0, ""
    await asyncio.sleep(rng.uniform(10, 30))
    scene.world.knobs.lagging.pop(PODS, None)


@fault(250, alone=True)
async def taken_in_a_crash(scene: Scene, rng: random.Random) -> None:
    """A member is created, the operator dies, and the member is deleted before the next one leads."""
    user = some_user(scene, rng)
    if not await _members(user):
        return
    user.delete_pod(1)
    if pod := await _made(scene, user):
        _crash_all(scene)
        scene.world.fire("force-delete-pod")
        user.delete_that(pod, 0)


@fault(250, alone=True)
async def started_from_an_invalid_template(scene: Scene, rng: random.Random) -> None:
    """An edit that makes pods impossible, and then members have to be recreated."""
    user = some_user(scene, rng)
    if not await _members(user):
        return
    await asyncio.sleep(5.0)
    scene.world.fire("invalid-template")
    user.template(lambda raw: raw["spec"]["containers"][0].update(image=""), "invalid template")
    await asyncio.sleep(rng.uniform(2, 10))
    await _suspended(user, rng.uniform(1, 30))
    await asyncio.sleep(rng.uniform(70, 100))
    user.template(lambda raw: raw["spec"]["containers"][0].update(image="trainer:1"), "valid template")


@fault(250, alone=True)
async def deleted_at_its_first_line(scene: Scene, rng: random.Random) -> None:
    """New members are deleted while PID 1 begins: one without a handler yet does not notice."""
    user = some_user(scene, rng)
    if not await _members(user):
        return
    scene.world.fire("delete-pod")
    scene.world.fire("suspend")
    user.edit(suspend=True)
    await _moment(lambda: not user.pods())
    user.edit(suspend=False)
    pod = await _made(scene, user)
    if pod is None:
        return
    for _ in range(1000):
        there = scene.world.server.find(PODS, *key_of(pod))
        if there is None or phase_of(there) == "Running":
            break
        await asyncio.sleep(0.005)
    user.delete_that(pod)


@fault(300, to_its_end=True, alone=True)
async def goes_and_no_other_has_room(scene: Scene, rng: random.Random) -> None:
    """A node is being deleted, without a taint, and for a while no other takes pods."""
    world, full = scene.world, {"key": "full", "effect": "NoSchedule"}
    members = await _members(some_user(scene, rng))
    node = node_of(rng.choice(members)) if members else ""
    others = [key_of(one)[1] for one in world.server.all(NODES) if key_of(one)[1] != node]
    if not node or world.node(node) is None:
        return
    for name in others:
        drains.taint(world, name, full, True)
    world.fire("node-deletion-without-taint")
    world.server.change(NODES, "", node, lambda raw: raw["metadata"].update(finalizers=["cloud"]), by="cloud")
    world.server.delete(NODES, "", node, by="cloud")
    await asyncio.sleep(rng.uniform(90, 150))
    for name in others:
        drains.taint(world, name, full, False)
    await drains.karpenter_removes(world, rng, node, taints=False)
    await asyncio.sleep(30.0)
    if world.node(node) is None:
        scene.register(node)
        scene.kubelets[node].boot()


@fault(400, to_its_end=True, alone=True)
async def grown_and_left_alone(scene: Scene, rng: random.Random) -> None:
    """A run grows, no leaver can report how that ended, and nothing else happens."""
    user = max(scene.users, key=lambda one: one.goal)
    user.edit(replicas=1)
    await asyncio.sleep(rng.uniform(30, 40))
    if await _members(user):
        scene.world.fire("scale")
        user.edit(replicas=rng.randint(2, 3))
        await asyncio.sleep(280.0)


@fault(250, alone=True)
async def scaled_while_one_goes(scene: Scene, rng: random.Random) -> None:
    """A member has some seconds left, and the job changes its size."""
    user = some_user(scene, rng)
    if members := await _members(user, least=2):
        scene.world.fire("delete-pod")
        scene.world.fire("scale")
        user.delete_that(rng.choice(members), rng.choice((30, 60)))
        await asyncio.sleep(rng.uniform(0.0, 3.0))
        user.edit(replicas=rng.choice([one for one in (1, 2, 3, 4) if one != len(members)]))


@fault(250, alone=True)
async def late_status(scene: Scene, rng: random.Random) -> None:
    """A status arrives half a minute late, when others have been written since."""
    user, calls = some_user(scene, rng), scene.world.knobs.calls
    members = await _members(user)
    fired, calls.late_once = scene.world.fired["late-write"], JOBS
    if members:
        user.delete_pod(1)
        await _moment(lambda: scene.world.fired["late-write"] > fired)
    calls.late_once = ""


@fault(250, alone=True)
async def started_without_address(scene: Scene, rng: random.Random) -> None:
    """Members are recreated, and the network plugin gives no pod an address for its first seconds."""
    user = some_user(scene, rng)
    if not await _members(user):
        return
    usual = {name: kubelet.late_address for name, kubelet in scene.kubelets.items()}
    for kubelet in scene.kubelets.values():
        kubelet.late_address = 1.0
    await _suspended(user, rng.uniform(1, 20))
    await asyncio.sleep(30.0)
    for name, share in usual.items():
        scene.kubelets[name].late_address = share


@fault(60, alone=True)
async def deleted_with_little_grace(scene: Scene, rng: random.Random) -> None:
    """Somebody deletes a member's pod, and leaves it less time than a save takes."""
    user = some_user(scene, rng)
    members = await _members(user, 2)
    if members:
        await asyncio.sleep(rng.uniform(5, 30))
        scene.world.fire("delete-pod")
        user.delete_that(members[-1], rng.choice((2, 5, 7)))
        await asyncio.sleep(20)


@fault(250, alone=True, to_its_end=True)
async def moved_while_no_status_is_written(scene: Scene, rng: random.Random) -> None:
    """The operator may not write status for long, and a member's node is cordoned meanwhile."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    members = await _members(user)
    if not members or policy.refuse_status:
        return
    scene.world.fire("right-lost")
    policy.refuse_status = "forbidden: ServiceAccount perdure-operator cannot do this"
    drains.cordon(scene.world, node_of(members[0]), True)
    await asyncio.sleep(rng.uniform(240, 260))
    policy.refuse_status = ""
