"""Containers that are killed, pods that are deleted, scripts that misbehave."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.checks.reading import assignment
from tests.simulation.faults.registry import fault, some_kubelet, some_user
from tests.simulation.objects import PODS, Json, key_of, terminal, terminating
from tests.simulation.scene import Scene, foreign_pod
from tests.simulation.users import User


@fault(100)
async def delete_pod(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("delete-pod")
    some_user(scene, rng).delete_pod(rng.choice((None, None, 1, 5, 120)))


@fault(200)
async def force_delete_pod(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("force-delete-pod")
    some_user(scene, rng).delete_pod(0)


@fault(60)
async def kill_pod(scene: Scene, rng: random.Random) -> None:
    """The container of a running member is killed from outside."""
    kubelet = some_kubelet(scene, rng)
    if kubelet.kill_one(rng):
        scene.world.fire("kill-pod")


@fault(200)
async def code_failure(scene: Scene, rng: random.Random) -> None:
    behaviour = scene.world.behaviours["/".join(some_user(scene, rng).key)]
    scene.world.fire("code-failure")
    behaviour.crash_per_step = rng.choice((0.01, 0.1))
    await asyncio.sleep(rng.uniform(5, 60))
    behaviour.crash_per_step = 0.0


@fault(200)
async def peers_blame_themselves(scene: Scene, rng: random.Random) -> None:
    """A rank that loses a peer ends with an exception of its own."""
    behaviour = scene.world.behaviours["/".join(some_user(scene, rng).key)]
    scene.world.fire("self-blame")
    behaviour.blames_itself = True
    await asyncio.sleep(rng.uniform(30, 120))
    behaviour.blames_itself = False


@fault(200)
async def foreign_outcome(scene: Scene, rng: random.Random) -> None:
    """A pod's owner may write of another run."""
    kubelet = some_kubelet(scene, rng)
    words = rng.choice((
        '{"v":1,"outcome":"completed","run":0,"rank":0,"opened":0,"step":3,"seconds":{}}',
        '{"v":1,"outcome":"checkpointed","run":99999,"rank":0,"opened":0,"step":3,"seconds":{}}',
        '{"v":1,"outcome":"peer-lost","run":99999,"rank":0,"opened":0,"step":7777,"seconds":{}}',
    ))  # fmt: skip
    if kubelet.kill_one(rng, words):
        scene.world.fire("foreign-outcome")


@fault(200)
async def stopped_by_hand(scene: Scene, rng: random.Random) -> None:
    """A member that is not rank 0 dies, and says that it was only stopped."""
    words = '{"v":1,"outcome":"stopped","run":0,"rank":1,"opened":0,"step":0,"seconds":{}}'
    for pod in some_user(scene, rng).pods():
        kubelet = scene.kubelets.get(pod["spec"].get("nodeName", ""))
        if kubelet is not None and int(assignment(pod).get("rank") or 0) > 0:
            scene.world.fire("foreign-outcome")
            kubelet.kill_pod(pod, words)
            return


@fault(100, apart=True)
async def kubelet_rejects(scene: Scene, rng: random.Random) -> None:
    """For a while a node, or every node, admits no new pod, or few; after a restart it may reject its running pods."""
    names = sorted(scene.kubelets)
    chosen = [scene.kubelets[name] for name in rng.choice((names, rng.sample(names, 1), rng.sample(names, 1)))]
    for kubelet in chosen:
        kubelet.rejects = rng.choice((0.3, 1.0))
    if chosen[0].hears and rng.random() < 0.5 and chosen[0].readmit_one(rng):
        scene.world.fire("kill-pod")
    await asyncio.sleep(rng.uniform(10, 90))
    for kubelet in chosen:
        kubelet.rejects = 0.0


@fault(100, apart=True)
async def kubelet_evicts(scene: Scene, rng: random.Random) -> None:
    """A node ends a member: it is short of memory, has to admit a critical pod, or shuts down."""
    kubelet = some_kubelet(scene, rng)
    if kubelet.hears and kubelet.end_one(rng):
        scene.world.fire("kill-pod")


@fault(150)
async def hung_agent(scene: Scene, rng: random.Random) -> None:
    """PID 1 of a container is stopped: it reads nothing and hears no signal; its processes train on."""
    kubelet = some_kubelet(scene, rng)
    if kubelet.hang_one(rng):
        scene.world.fire("hung-agent")


@fault(200)
async def ended_pods_are_deleted(scene: Scene, rng: random.Random) -> None:
    """As autoscalers do with pods that have succeeded, within a second."""
    until = scene.world.now + rng.uniform(30, 120)
    while scene.world.now < until:
        for pod in scene.world.server.all(PODS):
            if terminal(pod) and not terminating(pod):
                scene.world.fire("ended-pod-deleted")
                scene.world.server.delete(PODS, *key_of(pod), by="autoscaler")
        await asyncio.sleep(rng.uniform(0.02, 0.5))


@fault(200)
async def reaper(scene: Scene, rng: random.Random) -> None:
    """Something deletes every pod of a job as soon as it sees it."""
    user = some_user(scene, rng)
    scene.world.fire("reaper")
    until = scene.world.now + rng.uniform(20, 90)
    while scene.world.now < until:
        for pod in user.pods():
            if not terminating(pod):
                user.delete_that(pod, rng.choice((None, 1)))
        await asyncio.sleep(rng.uniform(0.1, 1.0))


@fault(250)
async def foreign_pod_with_labels(scene: Scene, rng: random.Random) -> None:
    user, name = some_user(scene, rng), f"foreign-{rng.getrandbits(16):04x}"
    scene.world.fire("foreign-pod")
    foreign_pod(scene.world, user, name, alone=rng.random() < 0.5)
    await asyncio.sleep(rng.uniform(30, 150))
    there = scene.world.server.find(PODS, user.key[0], name)
    if there is not None:
        user.delete_that(there)


@fault(120)
async def noisy_pods(scene: Scene, rng: random.Random) -> None:
    """A client writes an annotation to a job's pods several times a second, as mesh and scan agents do."""
    user = some_user(scene, rng)
    scene.world.fire("noisy-pods")
    until = scene.world.now + rng.uniform(10, 60)
    while scene.world.now < until:
        for pod in user.pods():
            user.note(pod, "example.com/scanned", f"{scene.world.now:.1f}")
        await asyncio.sleep(rng.uniform(0.1, 0.3))


@fault(250)
async def exit_without_session(scene: Scene, rng: random.Random) -> None:
    """`python nosuch.py | tee log`."""
    behaviour = scene.world.behaviours["/".join(some_user(scene, rng).key)]
    scene.world.fire("exit-without-session")
    behaviour.exits_without_session = True
    await asyncio.sleep(rng.uniform(5, 40))
    behaviour.exits_without_session = False


@fault(250, to_its_end=True)
async def out_of_memory(scene: Scene, rng: random.Random) -> None:
    behaviour = scene.world.behaviours["/".join(some_user(scene, rng).key)]
    if behaviour.oom_at_step is not None:
        return
    scene.world.fire("oom")
    behaviour.oom_at_step = rng.randint(5, 60)
    await asyncio.sleep(rng.choice((30, 150, 300)))
    behaviour.oom_at_step = None


@fault(100, apart=True)
async def before_the_trainer(scene: Scene, rng: random.Random) -> None:
    """From its next pods on a job has init containers, native sidecars or both; for a while some of them fail."""
    user = some_user(scene, rng)
    behaviour = scene.world.behaviours["/".join(user.key)]
    given: list[Json] = [
        {"name": "data", "image": "data"},
        {"name": "proxy", "image": "proxy", "restartPolicy": "Always"},
        {"name": "warm", "image": "warm"},
    ]
    chosen = rng.sample(given, rng.randint(1, 3))

    def add(raw: Json) -> None:
        raw["spec"]["initContainers"] = chosen

    scene.world.fire("before-the-trainer")
    user.template(add, f"with {[one['name'] for one in chosen]} before its trainer")
    add(user.body["spec"]["template"])
    behaviour.init_fails = rng.choice((0.0, 0.2, 0.6))
    behaviour.init_pull_fails = rng.choice((0.0, 0.0, 0.8))
    user.delete_pod()
    await asyncio.sleep(rng.uniform(30, 120))
    behaviour.init_fails = behaviour.init_pull_fails = 0.0


@fault(100, apart=True)
async def readiness_lost(scene: Scene, rng: random.Random) -> None:
    """A member is not Ready for a while, or in turns, and its node is; its processes train on."""
    worker = some_kubelet(scene, rng).unready_one(rng)
    if worker is None:
        return
    scene.world.fire("unready-pod")
    for _ in range(rng.choice((1, 1, 4))):
        worker.seem(ready=False)
        await asyncio.sleep(rng.choice((0.5, 5.0, 40.0, 150.0)))
        worker.seem(ready=True)
        await asyncio.sleep(rng.choice((0.2, 3.0)))


@fault(250)
async def hanging_rank(scene: Scene, rng: random.Random) -> None:
    """For a while every rank may get into a step that never ends; one that is asked to leave is killed in the end."""
    user = some_user(scene, rng)
    behaviour = scene.world.behaviours["/".join(user.key)]
    scene.world.fire("hang")
    behaviour.hang_per_step = 0.05
    await asyncio.sleep(rng.uniform(5, 40))
    behaviour.hang_per_step = 0.0
    scene.world.after(rng.uniform(0, 20), _kill_all, scene, user)


def _kill_all(scene: Scene, user: User) -> None:
    """The reaction of a watchdog, or a user."""
    for pod in user.pods():
        if pod["spec"].get("nodeName") in scene.kubelets:
            scene.kubelets[pod["spec"]["nodeName"]].kill_pod(pod)
