"""Everything that may go wrong in a history, by name.

A fault is a coroutine that does something to the scene and, mostly, undoes it some time later. A fault that today's
operator is known not to bear carries the defect it waits for and stays out of the ordinary runs until that is mended;
`--all` lets it in.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation import drains
from tests.simulation.kubelet import Kubelet
from tests.simulation.objects import JOBS, NODES, PODS, Json, key_of, terminating
from tests.simulation.scene import Scene, foreign_pod
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


FAULTS: Final[dict[str, Fault]] = {}


def fault(every: float, *, waits_for: str = "") -> Callable[[Do], Do]:
    """Register under the function's name."""

    def register(do: Do) -> Do:
        name = do.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, do, every, waits_for)
        return do

    return register


def _node(scene: Scene, rng: random.Random) -> str | None:
    names = [one["metadata"]["name"] for one in scene.world.server.all(NODES) if not terminating(one)]
    return rng.choice(names) if names else None


def _kubelet(scene: Scene, rng: random.Random) -> Kubelet:
    return scene.kubelets[rng.choice(sorted(scene.kubelets))]


def _user(scene: Scene, rng: random.Random) -> User:
    return rng.choice(scene.users)


# nodes


@fault(90)
async def drain(scene: Scene, rng: random.Random) -> None:
    """`kubectl drain`, and uncordon later."""
    if node := _node(scene, rng):
        await drains.kubectl_drain(scene.world, node, back_after=rng.uniform(1, 120))


@fault(120)
async def cordon_for_a_moment(scene: Scene, rng: random.Random) -> None:
    if node := _node(scene, rng):
        drains.cordon(scene.world, node, True)
        await asyncio.sleep(rng.choice((0.3, 0.9, 2.0, 10.0)))
        drains.cordon(scene.world, node, False)


@fault(200)
async def drain_two(scene: Scene, rng: random.Random) -> None:
    """As an upgrade does, one after the other begins."""
    nodes = {node for _ in range(2) if (node := _node(scene, rng))}
    async with asyncio.TaskGroup() as group:
        for node in sorted(nodes):
            group.create_task(drains.kubectl_drain(scene.world, node, back_after=rng.uniform(30, 90)))
            await asyncio.sleep(rng.uniform(0.0, 8.0))


@fault(200)
async def autoscaler(scene: Scene, rng: random.Random) -> None:
    if (node := _node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        await drains.autoscaler_removes(scene.world, node)
        await asyncio.sleep(rng.uniform(30, 90))
        _return_node(scene, node)


@fault(200)
async def karpenter(scene: Scene, rng: random.Random) -> None:
    if (node := _node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        await drains.karpenter_removes(scene.world, rng, node, taints=True)
        await asyncio.sleep(rng.uniform(30, 90))
        _return_node(scene, node)


@fault(200, waits_for="a node with a deletionTimestamp and no taint makes pods without end")
async def node_deleted_without_taint(scene: Scene, rng: random.Random) -> None:
    if (node := _node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        await drains.karpenter_removes(scene.world, rng, node, taints=False)
        await asyncio.sleep(rng.uniform(30, 90))
        _return_node(scene, node)


def _return_node(scene: Scene, node: str) -> None:
    """Another machine of the same name."""
    if scene.world.node(node) is None:
        scene.register(node)
        scene.kubelets[node].boot()


@fault(200)
async def node_object_deleted(scene: Scene, rng: random.Random) -> None:
    if (node := _node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        scene.world.fire("node-object-deleted")
        drains.delete_node(scene.world, node)
        await asyncio.sleep(rng.uniform(20, 90))
        _return_node(scene, node)


@fault(150)
async def node_power(scene: Scene, rng: random.Random) -> None:
    kubelet = _kubelet(scene, rng)
    if kubelet.alive:
        scene.world.fire("node-power")
        scene.world.tell("node", "power off", node=kubelet.name)
        kubelet.die()
        await asyncio.sleep(rng.choice((5, 30, 100, 200)))
        scene.world.tell("node", "power on", node=kubelet.name)
        if scene.world.node(kubelet.name) is not None:
            kubelet.boot()


@fault(150)
async def partition(scene: Scene, rng: random.Random) -> None:
    """The node reaches nobody, its containers go on."""
    kubelet = _kubelet(scene, rng)
    scene.world.fire("partition")
    scene.world.tell("node", "cut off", node=kubelet.name)
    kubelet.disconnect()
    scene.world.network.cut.add(kubelet.name)
    if rng.random() < 0.5:
        scene.world.network.without_storage.add(kubelet.name)
    await asyncio.sleep(rng.choice((5, 30, 80, 150, 400)))
    scene.world.tell("node", "reached again", node=kubelet.name)
    scene.world.network.cut.discard(kubelet.name)
    scene.world.network.without_storage.discard(kubelet.name)
    kubelet.reconnect()


@fault(150)
async def kubelet_silent(scene: Scene, rng: random.Random) -> None:
    """Its containers train on."""
    kubelet = _kubelet(scene, rng)
    scene.world.fire("kubelet-silent")
    kubelet.disconnect()
    await asyncio.sleep(rng.choice((3, 20, 70, 120)))
    kubelet.reconnect()


@fault(300, waits_for="a control plane without nodes writes every member off")
async def all_kubelets_silent(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("all-kubelets-silent")
    for kubelet in scene.kubelets.values():
        kubelet.disconnect()
    await asyncio.sleep(rng.choice((60, 120, 200)))
    for kubelet in scene.kubelets.values():
        kubelet.reconnect()


@fault(150)
async def node_flaps(scene: Scene, rng: random.Random) -> None:
    """Ready is False for a while: the runtime answers slowly."""
    kubelet = _kubelet(scene, rng)
    scene.world.fire("node-flaps")
    kubelet.report("False", reason="KubeletNotReady")
    await asyncio.sleep(rng.choice((1, 8, 40)))
    if kubelet.hears:
        kubelet.report("True")


@fault(200)
async def no_execute(scene: Scene, rng: random.Random) -> None:
    if node := _node(scene, rng):
        scene.world.fire("no-execute")
        what = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
        drains.taint(scene.world, node, what, True)
        await asyncio.sleep(rng.uniform(20, 120))
        drains.taint(scene.world, node, what, False)


@fault(150)
async def file_delay(scene: Scene, rng: random.Random) -> None:
    kubelet = _kubelet(scene, rng)
    scene.world.fire("file-delay")
    kubelet.file_delay = rng.choice((2.0, 15.0, 90.0))
    await asyncio.sleep(rng.uniform(20, 100))
    kubelet.file_delay = 0.0


@fault(200)
async def image_pull(scene: Scene, rng: random.Random) -> None:
    kubelet = _kubelet(scene, rng)
    kubelet.pull_fails = 0.8
    await asyncio.sleep(rng.uniform(20, 100))
    kubelet.pull_fails = 0.0


@fault(200, waits_for="a member stuck Terminating is waited for with a deadline in the past")
async def stuck_terminating(scene: Scene, rng: random.Random) -> None:
    kubelet = _kubelet(scene, rng)
    kubelet.stuck = 0.7
    await asyncio.sleep(rng.uniform(60, 300))
    kubelet.free()


# pods


@fault(100)
async def delete_pod(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("delete-pod")
    _user(scene, rng).delete_pod(rng.choice((None, None, 1, 5, 120)))


@fault(200)
async def force_delete_pod(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("force-delete-pod")
    _user(scene, rng).delete_pod(0)


@fault(60)
async def kill_pod(scene: Scene, rng: random.Random) -> None:
    """The container of a running member is killed from outside."""
    kubelet = _kubelet(scene, rng)
    if kubelet.kill_one(rng):
        scene.world.fire("kill-pod")


@fault(200)
async def code_failure(scene: Scene, rng: random.Random) -> None:
    behaviour = scene.world.behaviours["/".join(_user(scene, rng).key)]
    scene.world.fire("code-failure")
    behaviour.crash_per_step = rng.choice((0.01, 0.1))
    await asyncio.sleep(rng.uniform(5, 60))
    behaviour.crash_per_step = 0.0


@fault(200, waits_for="replacing members has no back-off")
async def reaper(scene: Scene, rng: random.Random) -> None:
    """Something deletes every pod of a job as soon as it sees it."""
    user = _user(scene, rng)
    scene.world.fire("reaper")
    until = scene.world.now + rng.uniform(20, 90)
    while scene.world.now < until:
        for pod in user.pods():
            if not terminating(pod):
                user.delete_that(pod, rng.choice((None, 1)))
        await asyncio.sleep(rng.uniform(0.1, 1.0))


@fault(250, waits_for="a foreign Ready pod with our labels opens the budget")
async def foreign_pod_with_labels(scene: Scene, rng: random.Random) -> None:
    user, name = _user(scene, rng), f"foreign-{rng.getrandbits(16):04x}"
    scene.world.fire("foreign-pod")
    foreign_pod(scene.world, user, name)
    await asyncio.sleep(rng.uniform(30, 150))
    there = scene.world.server.find(PODS, user.key[0], name)
    if there is not None:
        user.delete_that(there)


# people


@fault(150)
async def scale(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("scale")
    _user(scene, rng).edit(replicas=rng.randint(1, 4))


@fault(200)
async def suspend_and_resume(scene: Scene, rng: random.Random) -> None:
    user = _user(scene, rng)
    scene.world.fire("suspend")
    user.edit(suspend=True)
    await asyncio.sleep(rng.choice((0.5, 3.0, 20.0, 80.0)))
    user.edit(suspend=False)


@fault(250)
async def edit_template(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("edit-template")
    image = f"trainer:{rng.randint(2, 9)}"
    _user(scene, rng).template(lambda raw: raw["spec"]["containers"][0].update(image=image), f"image {image}")


@fault(250)
async def invalid_template(scene: Scene, rng: random.Random) -> None:
    user = _user(scene, rng)
    scene.world.fire("invalid-template")
    user.template(lambda raw: raw["spec"]["containers"][0].update(image=""), "invalid template")
    await asyncio.sleep(rng.uniform(10, 120))
    user.template(lambda raw: raw["spec"]["containers"][0].update(image="trainer:1"), "valid template")


@fault(300)
async def delete_and_apply(scene: Scene, rng: random.Random) -> None:
    user = _user(scene, rng)
    scene.world.fire("delete-job")
    user.delete()
    await asyncio.sleep(rng.choice((0.05, 1.0, 30.0)))
    user.apply()


@fault(300, waits_for="orphaned members keep their budget and nobody releases drains")
async def orphan_and_apply(scene: Scene, rng: random.Random) -> None:
    user = _user(scene, rng)
    scene.world.fire("orphan-job")
    user.delete(orphan=True)
    await asyncio.sleep(rng.choice((2.0, 30.0)))
    user.apply()


@fault(250, waits_for="a budget edited by a user makes every round raise")
async def edit_budget(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("edit-budget")
    choices: list[Json] = [
        {"minAvailable": "50%"},
        {"maxUnavailable": 1},
        {"minAvailable": 0},
        {"maxUnavailable": "10%"},
    ]
    _user(scene, rng).edit_budget(rng.choice(choices))


@fault(250)
async def delete_budget(scene: Scene, rng: random.Random) -> None:
    budget = _user(scene, rng).budget()
    if budget is not None:
        scene.world.fire("delete-budget")
        scene.world.server.delete("poddisruptionbudgets", *key_of(budget), by="user")


@fault(250, waits_for="a label removed and restored is refused for ever")
async def remove_job_label(scene: Scene, rng: random.Random) -> None:
    await _without_label(scene, rng, "perdure.dev/job")


@fault(250, waits_for="a role label that a user changes")
async def remove_role_label(scene: Scene, rng: random.Random) -> None:
    await _without_label(scene, rng, "perdure.dev/role")


async def _without_label(scene: Scene, rng: random.Random, label: str) -> None:
    user = _user(scene, rng)
    scene.world.fire("relabel")
    done = user.relabel(label, None)
    await asyncio.sleep(rng.uniform(1, 60))
    if done is not None:
        user.put_label(done[0], label, done[1])


@fault(250)
async def sidecar(scene: Scene, rng: random.Random) -> None:
    """From its next run on the job has a container that never ends."""
    user = _user(scene, rng)
    scene.world.fire("sidecar")

    def add(raw: Json) -> None:
        raw["spec"]["containers"] = [raw["spec"]["containers"][0], {"name": "log", "image": "log"}]

    user.template(add, "with a sidecar")
    user.body["spec"]["template"]["spec"]["containers"].append({"name": "log", "image": "log"})


@fault(300, waits_for="a template with terminationGracePeriodSeconds: null")
async def null_grace(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("null-grace")
    _user(scene, rng).template(lambda raw: raw["spec"].update(terminationGracePeriodSeconds=None), "grace null")


@fault(300, waits_for="one unknown word in status freezes the job")
async def unknown_status(scene: Scene, rng: random.Random) -> None:
    """A newer operator has been here before."""
    user = _user(scene, rng)
    if user.job is not None:
        scene.world.fire("unknown-status")

        def change(raw: Json) -> None:
            raw.setdefault("status", {})["phase"] = "Pondering"

        scene.world.server.change_status(JOBS, *user.key, change, by="newer-operator")


@fault(300, waits_for="an absurd outcome makes later ones unreadable")
async def absurd_outcome(scene: Scene, rng: random.Random) -> None:
    """A pod's owner may write whatever they like."""
    kubelet = _kubelet(scene, rng)
    words = rng.choice((
        '{"v":1,"outcome":"failed","run":1,"rank":0,"opened":9007199254740992,"step":1,"seconds":{}}',
        '{"v":1,"outcome":"checkpointed","run":99999,"rank":-1,"step":-5,"commit":{"seq":1e99}}',
        '{"v":1,"outcome":"checkpointed","run":1,"rank":0,"step":9007199254740993,"opened":1}',
        "[" * 3000,
    ))  # fmt: skip
    if kubelet.kill_one(rng, words):
        scene.world.fire("absurd-outcome")


# the API server


async def _calls(scene: Scene, rng: random.Random, seconds: tuple[float, float], **faults: Any) -> None:
    calls = scene.world.knobs.calls
    for name, value in faults.items():
        setattr(calls, name, value)
    await asyncio.sleep(rng.uniform(*seconds))
    for name in faults:
        setattr(calls, name, type(calls)().__dict__[name])


@fault(100)
async def api_conflicts(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), conflict=rng.choice((0.1, 0.4)))


@fault(150)
async def api_overload(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), too_many=rng.choice((0.3, 0.9, 1.0)))


@fault(100)
async def api_errors(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), error=rng.choice((0.1, 0.5)))


@fault(100)
async def api_lost_answers(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), lost=rng.choice((0.1, 0.4)))


@fault(150)
async def api_timeouts(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 40), timeout=rng.choice((0.1, 0.3)))


@fault(100)
async def api_slow(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), slow=rng.choice((0.1, 0.5)))


@fault(250)
async def api_down(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (3, 40), down=True)


@fault(200)
async def quota(scene: Scene, rng: random.Random) -> None:
    scene.world.server.policy.pods_quota = rng.randint(0, 3)
    await asyncio.sleep(rng.uniform(10, 100))
    scene.world.server.policy.pods_quota = None


@fault(200)
async def webhook_refuses_pods(scene: Scene, rng: random.Random) -> None:
    policy = scene.world.server.policy
    policy.refuse_creates = 'admission webhook "policy.example" denied the request: no'
    policy.dry_run_passes = rng.random() < 0.5
    await asyncio.sleep(rng.uniform(10, 80))
    policy.refuse_creates = ""


@fault(250, waits_for="admission refuses the member patch: nobody was asked to leave")
async def webhook_refuses_patches(scene: Scene, rng: random.Random) -> None:
    policy = scene.world.server.policy
    policy.refuse_patches = 'admission webhook "policy.example" denied the request: no'
    await asyncio.sleep(rng.uniform(10, 80))
    policy.refuse_patches = ""


@fault(250, waits_for="a stale budget refusal blocks promotion until restart")
async def webhook_refuses_budgets(scene: Scene, rng: random.Random) -> None:
    policy = scene.world.server.policy
    policy.refuse_budgets = 'admission webhook "policy.example" denied the request: no'
    await asyncio.sleep(rng.uniform(10, 80))
    policy.refuse_budgets = ""


@fault(150)
async def budget_controller_slow(scene: Scene, rng: random.Random) -> None:
    scene.budgets.slow = rng.choice((2.0, 10.0))
    await asyncio.sleep(rng.uniform(20, 90))
    scene.budgets.slow = 0.0


@fault(200)
async def scheduler_paused(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("scheduler-paused")
    scene.scheduler.paused = True
    await asyncio.sleep(rng.uniform(5, 60))
    scene.scheduler.paused = False


# watches


async def _watches(scene: Scene, rng: random.Random, **faults: Any) -> None:
    watches = scene.world.knobs.watches
    for name, value in faults.items():
        setattr(watches, name, value)
    await asyncio.sleep(rng.uniform(20, 120))
    for name in faults:
        setattr(watches, name, type(watches)().__dict__[name])


@fault(120)
async def watch_delays(scene: Scene, rng: random.Random) -> None:
    await _watches(scene, rng, delay=rng.choice((0.5, 3.0, 20.0)))


@fault(120)
async def watch_drops(scene: Scene, rng: random.Random) -> None:
    await _watches(scene, rng, drop=rng.choice((0.02, 0.2)), gone=rng.choice((0.0, 0.5, 1.0)))


@fault(120)
async def watch_duplicates(scene: Scene, rng: random.Random) -> None:
    await _watches(scene, rng, duplicate=0.3)


@fault(150)
async def one_stream_lags(scene: Scene, rng: random.Random) -> None:
    kind = rng.choice((JOBS, PODS, NODES, "poddisruptionbudgets"))
    scene.world.fire(f"lag-of-{kind}")
    scene.world.knobs.lagging[kind] = rng.choice((1.0, 5.0, 30.0))
    await asyncio.sleep(rng.uniform(10, 60))
    scene.world.knobs.lagging.pop(kind, None)


@fault(250)
async def watch_silent(scene: Scene, rng: random.Random) -> None:
    await _watches(scene, rng, silent=True)


# the operator


@fault(60)
async def operator_crash(scene: Scene, rng: random.Random) -> None:
    """Somewhere between two awaits of the next few hundred."""
    leader = scene.operators.leader() or rng.choice(scene.operators.replicas)
    if leader.alive:
        scene.world.fire("operator-crash")
        leader.process.crash_in = int(rng.expovariate(1 / 60))


@fault(150)
async def operator_stop(scene: Scene, rng: random.Random) -> None:
    one = rng.choice(scene.operators.replicas)
    if one.alive:
        scene.world.fire("operator-stop")
        one.stop()


@fault(120)
async def operator_freeze(scene: Scene, rng: random.Random) -> None:
    leader = scene.operators.leader() or rng.choice(scene.operators.replicas)
    if leader.alive:
        scene.world.fire("operator-freeze")
        seconds = rng.choice((2.0, 14.0, 20.0, 45.0))
        scene.world.tell(leader.identity, "freezes", seconds=seconds)
        await asyncio.sleep(rng.random() * 3)
        leader.process.freeze(seconds)


@fault(150)
async def operator_cut_off(scene: Scene, rng: random.Random) -> None:
    one = rng.choice(scene.operators.replicas)
    scene.world.fire("operator-cut-off")
    one.link.cut = True
    await asyncio.sleep(rng.choice((3.0, 12.0, 40.0)))
    one.link.cut = False


@fault(200, waits_for="times in status are the operator's own clock's")
async def operator_clock(scene: Scene, rng: random.Random) -> None:
    """A replica's wall clock is minutes off; its successor's is right."""
    one = rng.choice(scene.operators.replicas)
    scene.world.fire("operator-clock")
    one.skew = rng.choice((-660.0, -60.0, 60.0, 660.0))
    scene.world.tell(one.identity, "clock off", seconds=one.skew)


# storage


@fault(150)
async def storage_down(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("storage-down")
    scene.world.bucket.down = True
    await asyncio.sleep(rng.choice((3, 20, 90)))
    scene.world.bucket.down = False


@fault(150)
async def storage_faults(scene: Scene, rng: random.Random) -> None:
    bucket = scene.world.bucket
    scene.world.fire("storage-faults")
    bucket.error_rate, bucket.lost_answer_rate, bucket.slow_seconds = rng.random() * 0.3, rng.random() * 0.3, 1.0
    await asyncio.sleep(rng.uniform(10, 90))
    bucket.error_rate = bucket.lost_answer_rate = bucket.slow_seconds = 0.0
