"""Trouble in the midst of a live hand-over: each waits for a party to come to a certain point, and strikes there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from tests.simulation import drains
from tests.simulation.checks.reading import assignment, terminated
from tests.simulation.driving import Driver, drivers
from tests.simulation.faults.registry import fault, some_user
from tests.simulation.objects import PODS, Json, is_ready, key_of, node_of
from tests.simulation.scene import Scene
from tests.simulation.users import User
from tests.simulation.world import Fact

OLD: Final = ("preparing", "moving", "telling", "voted", "took-over")
NEW: Final = ("preparing", "moving", "running-on", "telling", "voted", "took-over")
POINTS: Final = (
    *(("newcomer", phase) for phase in NEW),
    *((part, phase) for part in ("stayer", "leaver") for phase in OLD[:-1]),
    *(("decider", phase) for phase in (*OLD, "deciding", "deciding")),
    ("stayer", "took-over"),
    ("any", "asking"),
    ("any", "aborted"),
)
"""Which party, and its next action."""
IN_AN_ACT: Final = (
    *(("moving", who) for who in ("decider", "leaver")),
    *(("deciding", who) for who in ("leaver", "leaver", "newcomer")),
)
"""The decider's next action, and whose process is killed."""
COME_SECONDS: Final = 90.0
LOOK_SECONDS: Final = 0.1


def _members(user: User) -> list[Json]:
    return [pod for pod in user.pods() if "rank" in assignment(pod) and is_ready(pod)]


def _disturb(scene: Scene, rng: random.Random, user: User) -> None:
    """A reason to move: a node is cordoned for a while, or the job's size is changed."""
    members = _members(user)
    if members and rng.random() < 0.6:
        scene.world.fire("drain")
        node = node_of(rng.choice(members))
        scene.world.tell("kubectl", "cordon", node=node)
        drains.cordon(scene.world, node, True)
        scene.world.after(rng.uniform(40, 120), drains.cordon, scene.world, node, False)
    else:
        scene.world.fire("scale")
        user.edit(replicas=rng.randint(1, 4))


async def _point(
    scene: Scene, rng: random.Random, points: tuple[tuple[str, str], ...] = POINTS, *, disturb: bool = True
) -> Driver | None:
    """A party at one of these points, a moment after it got there; None if none gets there in time.

    `disturb`: start a hand-over now.
    """
    part, phase = rng.choice(points)
    found: asyncio.Future[Driver] = asyncio.get_running_loop().create_future()

    def listen(fact: Fact) -> None:
        if fact.what != "party" or fact.facts["phase"] != phase or found.done():
            return
        if part not in ("any", fact.facts["part"]) and not (part == "decider" and fact.facts["decides"]):
            return
        here = (each for each in drivers(scene.world.network) if each.pod["metadata"]["name"] == fact.who)
        driver = next((each for each in here if each.party.number == fact.facts["number"]), None)
        if driver is not None:
            found.set_result(driver)

    if disturb:
        _disturb(scene, rng, some_user(scene, rng))
    scene.world.listeners.append(listen)
    try:
        async with asyncio.timeout(COME_SECONDS):
            driver = await found
    except TimeoutError:
        return None
    finally:
        scene.world.listeners.remove(listen)
    await asyncio.sleep(rng.choice((0.0, 0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.5))))
    return driver


def _stored(scene: Scene, driver: Driver) -> Json | None:
    return scene.world.server.find(PODS, *key_of(driver.pod))


def _kill(scene: Scene, driver: Driver | None) -> None:
    if driver and (pod := _stored(scene, driver)) and node_of(pod) in scene.kubelets:
        scene.world.fire("kill-pod")
        scene.kubelets[node_of(pod)].kill_pod(pod)


@fault(120)
async def party_killed(scene: Scene, rng: random.Random) -> None:
    _kill(scene, await _point(scene, rng))


@fault(120, alone=True, apart=True)
async def killed_in_an_act(scene: Scene, rng: random.Random) -> None:
    """One process of a party is killed in an act; its agent lives, and tells how far it had come."""
    act, who = rng.choice(IN_AN_ACT)
    decider = await _point(scene, rng, (("decider", act),))
    if decider is None:
        return
    others = [each for each in drivers(scene.world.network) if each.block == decider.block and each is not decider]
    victim = decider if who == "decider" else next((each for each in others if each.party.part == who), None)
    if victim is not None:
        scene.world.fire("kill-pod")
        scene.world.tell("node", "kills", pod=key_of(victim.pod)[1])
        victim.ground.kill()


@fault(120)
async def party_frozen(scene: Scene, rng: random.Random) -> None:
    """Its process is stopped for a while: its sent messages travel on, and it does nothing."""
    if driver := await _point(scene, rng):
        scene.world.fire("frozen-trainer")
        driver.ground.freeze(rng.choice((0.5, 3.0, 12.0, 30.0, 70.0)))


@fault(150)
async def party_cut_off(scene: Scene, rng: random.Random) -> None:
    """Its node reaches nothing for a while, or everything but the object storage."""
    driver = await _point(scene, rng)
    pod = _stored(scene, driver) if driver else None
    if pod is None or node_of(pod) not in scene.kubelets:
        return
    kubelet, network = scene.kubelets[node_of(pod)], scene.world.network
    scene.world.fire("partition")
    scene.world.tell("node", "cut off", node=kubelet.name)
    whole = rng.random() < 0.7
    if whole:
        kubelet.disconnect()
        network.cut.add(kubelet.name)
    if not whole or rng.random() < 0.5:
        network.without_storage.add(kubelet.name)
    await asyncio.sleep(rng.choice((2, 8, 25, 80)))
    scene.world.tell("node", "reached again", node=kubelet.name)
    network.cut.discard(kubelet.name)
    network.without_storage.discard(kubelet.name)
    if whole:
        kubelet.reconnect()


@fault(150)
async def party_deleted(scene: Scene, rng: random.Random) -> None:
    """Its pod is deleted: SIGTERM, with much grace or little."""
    driver = await _point(scene, rng)
    pod = _stored(scene, driver) if driver else None
    if pod is not None:
        scene.world.fire("delete-pod")
        scene.users[0].delete_that(pod, rng.choice((None, 5, 120)))


@fault(150)
async def partys_agent_hung(scene: Scene, rng: random.Random) -> None:
    """PID 1 of its container is stopped: no vote is acknowledged, and no word is reported."""
    driver = await _point(scene, rng)
    pod = _stored(scene, driver) if driver else None
    if pod is not None and node_of(pod) in scene.kubelets:
        scene.world.fire("hung-agent")
        scene.kubelets[node_of(pod)].hang_pod(pod)


@fault(120)
async def deciding_put(scene: Scene, rng: random.Random) -> None:
    """The object storage fails just when the decider appends Opened: before, meanwhile, or with the answer."""
    points = (("decider", "telling"), ("decider", "voted"), ("decider", "deciding"), ("decider", "deciding"))
    if not await _point(scene, rng, points):
        return
    bucket, kind, seconds = scene.world.bucket, rng.choice(("down", "lost", "slow")), rng.choice((1, 6, 25, 60))
    scene.world.fire("storage-down" if kind == "down" else "storage-faults")
    scene.world.tell("storage", kind, seconds=seconds)
    bucket.down = kind == "down"
    bucket.lost_answer_rate = 0.9 if kind == "lost" else 0.0
    bucket.slow_seconds = 8.0 if kind == "slow" else 0.0
    await asyncio.sleep(seconds)
    bucket.down, bucket.lost_answer_rate, bucket.slow_seconds = False, 0.0, 0.0


@fault(120)
async def operator_dies_in_a_handover(scene: Scene, rng: random.Random) -> None:
    await _point(scene, rng)
    leader = scene.operators.leader()
    if leader and leader.alive:
        scene.world.fire("operator-crash")
        leader.process.crash_in = int(rng.expovariate(1 / 40))


@fault(120)
async def second_reason(scene: Scene, rng: random.Random) -> None:
    """Another event happens to the job meanwhile."""
    driver = await _point(scene, rng)
    owner = driver.pod["metadata"]["ownerReferences"][0]["name"] if driver else ""
    user = next((one for one in scene.users if one.key[1] == owner), None)
    if user is None:
        return
    acts: dict[str, Callable[[], object]] = {
        "scale": lambda: user.edit(replicas=rng.randint(1, 4)),
        "drain": lambda: _disturb(scene, rng, user),
        "edit-template": lambda: user.template(
            lambda raw: raw["spec"]["containers"][0].update(image=f"trainer:{rng.randint(2, 9)}"), "another image"
        ),
        "delete-pod": user.delete_pod,
        "suspend": lambda: user.edit(suspend=True),
    }
    what = rng.choice(sorted(acts))
    scene.world.fire(what)
    acts[what]()
    if what == "suspend":
        await asyncio.sleep(rng.choice((0.5, 5.0, 40.0)))
        user.edit(suspend=False)


@fault(120)
async def leaver_killed_saving(scene: Scene, rng: random.Random) -> None:
    """The members that should save and leave are killed first: their successors know about them."""
    user = some_user(scene, rng)
    _disturb(scene, rng, user)
    until = scene.world.now + COME_SECONDS
    while not (leavers := [pod for pod in user.pods() if assignment(pod).get("leave") and not terminated(pod)]):
        if scene.world.now >= until:
            return
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.sleep(rng.uniform(0.0, 2.0))
    scene.world.fire("kill-pod")
    for pod in leavers:
        if node_of(pod) in scene.kubelets:
            scene.kubelets[node_of(pod)].kill_pod(pod)


@fault(200)
async def newcomers_killed(scene: Scene, rng: random.Random) -> None:
    """The joining members die before they vote, and so do their replacements."""
    phase = rng.choice(("preparing", "running-on", "telling"))
    for turn in range(4):
        _kill(scene, await _point(scene, rng, (("newcomer", phase),), disturb=not turn))
