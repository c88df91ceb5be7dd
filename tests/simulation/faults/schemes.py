"""Several events at once, at the worst moment: what independent faults meet once in thousands of histories."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

from tests.simulation import drains
from tests.simulation.checks.reading import assignment, plan_of, run_told, status_of, upcoming
from tests.simulation.faults.registry import fault, some_user
from tests.simulation.objects import (
    BUDGETS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    Json,
    Refused,
    clone,
    is_ready,
    key_of,
    node_of,
    owner_of,
    uid_of,
)
from tests.simulation.scene import Scene
from tests.simulation.users import User

MANY = 64
WORST_SECONDS = 60.0
"""So long a worst moment is waited for."""


async def _moment(scene: Scene, come: Callable[[], bool]) -> bool:
    """Whether it comes in time."""
    until = scene.world.now + WORST_SECONDS
    while not come():
        if scene.world.now >= until:
            return False
        await asyncio.sleep(0.1)
    return True


def _members(user: User) -> list[Json]:
    """Pods that train, by rank."""
    ready = [pod for pod in user.pods() if "rank" in assignment(pod) and is_ready(pod)]
    return sorted(ready, key=lambda pod: int(assignment(pod)["rank"]))


def _starts(user: User) -> bool:
    return bool(upcoming(status_of(user.job or {})).get("members"))


@fault(250)
async def death_while_leaving(scene: Scene, rng: random.Random) -> None:
    """One member hangs, all are asked to save, and another dies: none can save any more."""
    user = some_user(scene, rng)
    members = _members(user)
    if len(members) < 2:
        return
    scene.world.fire("hung-agent")
    hung, dead = rng.sample(members, 2)
    scene.kubelets[node_of(hung)].hang_pod(hung)
    user.edit(suspend=True)
    await asyncio.sleep(rng.uniform(0.2, 3.0))
    scene.kubelets[node_of(dead)].kill_pod(dead)
    await asyncio.sleep(rng.uniform(60, 100))
    user.edit(suspend=False)


@fault(250)
async def replaced_pod(scene: Scene, rng: random.Random) -> None:
    """`kubectl replace --force` of a running member: another pod of its name, owner and labels."""
    pods = _members(some_user(scene, rng))
    if not pods:
        return
    scene.world.fire("force-delete-pod")
    pod = clone(rng.choice(pods))
    scene.world.tell("user", "replace --force", pod=pod["metadata"]["name"])
    scene.world.server.delete(PODS, *key_of(pod), by="user", grace=0)
    kept = {name: pod["metadata"][name] for name in ("name", "labels", "annotations", "ownerReferences")}
    scene.world.server.create(PODS, key_of(pod)[0], {"metadata": kept, "spec": pod["spec"]}, by="user")


@fault(250)
async def behind_the_others(scene: Scene, rng: random.Random) -> None:
    """A member that has not heard of the newest commit is the first to end; another may end with it, which has."""
    user = some_user(scene, rng)
    members = _members(user)
    if len(members) < 2:
        return
    pod = members[-1]
    told, commits = assignment(pod), _commits(scene, pod)
    if len(commits) < 2:
        return
    new, old = commits[:2]
    step = _step(scene, pod)
    words = {"v": 1, "outcome": "peer-lost", "run": told["run"], "rank": told["rank"], "step": step}
    scene.world.fire("foreign-outcome")
    scene.kubelets[node_of(pod)].kill_pod(pod, json.dumps(words | {"opened": told["run"], "commit": old}))
    if rng.random() < 0.5:
        other = members[-2]
        words |= {"rank": assignment(other)["rank"], "opened": told["run"], "commit": new}
        scene.kubelets[node_of(other)].kill_pod(other, json.dumps(words))


def _commits(scene: Scene, pod: Json) -> list[Json]:
    """Of the run that the pod trains in, the newest first."""
    mine = (one.facts for one in reversed(scene.world.facts) if one.what == "committed")
    run = owner_of(pod), run_told(pod)
    return [{"seq": one["seq"], "step": one["step"]} for one in mine if (one["uid"], int(one["run"])) == run]


def _step(scene: Scene, pod: Json) -> int:
    """The last one of the run that the pod trains in, as a true report has it: what status tells rests on reports."""
    run = owner_of(pod), run_told(pod)
    done = (one.facts for one in scene.world.facts if one.what == "step")
    return max((int(one["step"]) for one in done if (one["uid"], int(one["run"])) == run), default=0)


@fault(250)
async def log_is_ahead(scene: Scene, rng: random.Random) -> None:
    """A member finds runs in the log of which status knows nothing: it was restored from a backup."""
    user = some_user(scene, rng)
    pods = _members(user)
    if len(pods) < 2:
        return
    pod = pods[-1]
    told, commits = assignment(pod), _commits(scene, pod)
    if not commits:
        return
    scene.world.fire("foreign-outcome")
    words = {"v": 1, "outcome": "fenced", "run": told["run"], "rank": told["rank"]}
    words["step"] = _step(scene, pod)
    opened = run_told(pod) + rng.randint(1, 5)
    leaves = rng.random() < 0.5
    if leaves:  # the next run has its number by then
        user.edit(suspend=True)
        await asyncio.sleep(rng.uniform(0.1, 0.6))
    scene.kubelets[node_of(pod)].kill_pod(pod, json.dumps(words | {"opened": opened, "commit": commits[0]}))
    if leaves:
        await asyncio.sleep(rng.uniform(5, 40))
        user.edit(suspend=False)


@fault(300)
async def predecessor_comes_back(scene: Scene, rng: random.Random) -> None:
    """A member hangs without its label, its job is recreated, and when that is about to start the label is back."""
    user = some_user(scene, rng)
    done = user.relabel("perdure.dev/job", None) if _members(user) else None
    if done is None:
        return
    scene.world.fire("relabel")
    scene.world.fire("delete-job")
    pod, label = done
    if node_of(pod) in scene.kubelets:
        scene.kubelets[node_of(pod)].hang_pod(pod)
    user.delete()
    await asyncio.sleep(rng.uniform(0.05, 2.0))
    user.apply()
    if await _moment(scene, lambda: _starts(user)):
        user.put_label(pod, "perdure.dev/job", label)


@fault(250)
async def name_taken(scene: Scene, rng: random.Random) -> None:
    """A user's pods have the names of the next members."""
    user = some_user(scene, rng)
    if user.job is None:
        return
    scene.world.fire("name-taken")
    first, taken = int(status_of(user.job).get("nextMember") or 0), list[str]()
    for number in range(first, first + rng.randint(1, 3)):
        name = f"{user.key[1]}-{uid_of(user.job)[:4]}-{number}"
        body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
        try:
            scene.world.server.create(PODS, user.key[0], body, by="user")
            taken.append(name)
        except Refused:
            break
    user.delete_pod()
    await asyncio.sleep(rng.uniform(30, 120))
    for name in taken:
        there = scene.world.server.find(PODS, user.key[0], name)
        if there is not None:
            user.delete_that(there, 0)


@fault(250)
async def nodes_join(scene: Scene, rng: random.Random) -> None:
    """Members land on nodes that are younger than the operator's news of nodes."""
    scene.world.fire(f"lag-of-{NODES}")
    scene.world.knobs.lagging[NODES] = rng.choice((1.0, 5.0, 30.0))
    others = [name for name in sorted(scene.kubelets) if scene.world.node(name) is not None]
    for _ in range(2):
        scene.add_node(f"node-{len(scene.kubelets)}")
    for name in others:  # the old ones are full
        drains.cordon(scene.world, name, True)
    await asyncio.sleep(rng.uniform(5, 60))
    for name in others:
        drains.cordon(scene.world, name, False)
    scene.world.knobs.lagging.pop(NODES, None)


@fault(250)
async def spec_fight(scene: Scene, rng: random.Random) -> None:
    """Two tools write the same field of a job in turn."""
    user = some_user(scene, rng)
    if user.job is None or user.fought_over:
        return
    scene.world.fire("spec-fight")
    user.fought_over = True
    until = scene.world.now + rng.uniform(30, 70)
    while scene.world.now < until:
        most = rng.randint(100, 900)

        def write(raw: Json, most: int = most) -> None:
            raw["spec"]["failure"]["maxInfrastructureFailures"] = most

        if user.job is not None:
            scene.world.server.change(JOBS, *user.key, write, by="tool")
        await asyncio.sleep(rng.uniform(0.4, 0.8))
    user.fought_over = False


@fault(250)
async def shared_root_wakes(scene: Scene, rng: random.Random) -> None:
    """Another user's job with the same root is resumed just when this one is about to start."""
    user = some_user(scene, rng)
    scene.world.fire("stranger")
    body, server = clone(user.body), scene.world.server
    body["metadata"]["name"] = name = f"stranger-{rng.getrandbits(16):04x}"
    body["spec"]["suspend"] = True
    body["spec"]["template"]["spec"]["containers"][0]["image"] = ""
    server.create(JOBS, user.key[0], body, by="user")
    try:
        user.delete()
        await asyncio.sleep(1.5)
        user.apply()
        if await _moment(scene, lambda: _starts(user) and not plan_of(status_of(user.job or {}))):
            server.change(JOBS, user.key[0], name, lambda raw: raw["spec"].update(suspend=False), by="user")
        await asyncio.sleep(rng.uniform(5, 60))
    finally:  # the end of the trouble removes it, too
        server.delete(JOBS, user.key[0], name, by="user")


@fault(250)
async def budget_gone_at_start(scene: Scene, rng: random.Random) -> None:
    """A job's budget is deleted while its members start, and no new one is admitted."""
    user, policy = some_user(scene, rng), scene.world.server.policy
    user.delete_pod()
    if not await _moment(scene, lambda: _starts(user) and user.budget() is not None):
        return
    policy.refuse_budgets = 'admission webhook "policy.example" denied the request: no'
    budget = user.budget()
    if budget is not None:
        scene.world.fire("delete-budget")
        scene.world.server.delete(BUDGETS, *key_of(budget), by="user")
    await asyncio.sleep(rng.uniform(10, 60))
    policy.refuse_budgets = ""


@fault(250)
async def root_of_another(scene: Scene, rng: random.Random) -> None:
    """While a job starts, its owner writes the root of another job that trains, and corrects it later."""
    user = some_user(scene, rng)
    others = [one for one in scene.users if one is not user and "volumes" not in one.body["spec"]["template"]["spec"]]
    if not others or "volumes" in user.body["spec"]["template"]["spec"]:
        return
    other = rng.choice(others)
    user.delete_pod()
    if not await _moment(scene, lambda: _starts(user) and bool(plan_of(status_of(other.job or {})))):
        return
    scene.world.fire("root-edited")
    user.edit(checkpoint=other.body["spec"]["checkpoint"])
    await asyncio.sleep(rng.uniform(5, 40))
    user.edit(checkpoint=user.body["spec"]["checkpoint"])


@fault(250)
async def frozen_renewal(scene: Scene, rng: random.Random) -> None:
    """A leader freezes while it renews its Lease, and there is work just as it thaws: another leads by then.

    It learns of that with its next call.
    """
    leader, renewal = scene.operators.leader(), f"replace {LEASES}"
    if leader is None or len(scene.operators.replicas) < 2:
        return
    for _ in range(5000):
        if leader.link.under_way[renewal]:
            break
        await asyncio.sleep(0.001)
    scene.world.fire("operator-freeze")
    scene.world.tell(leader.identity, "freezes", seconds=20.0)
    leader.process.freeze(20.0)
    await asyncio.sleep(19.98)
    for size in rng.choices(range(1, 5), k=8):
        for user in scene.users:
            user.edit(replicas=size)
        await asyncio.sleep(0.005)


@fault(600, alone=True, apart=True, to_its_end=True)
async def pool_vanishes(scene: Scene, rng: random.Random) -> None:
    """A job of many members trains on nodes of its own, one on each, and all are deleted within some seconds."""
    names = [f"many-{number:02}" for number in range(MANY)]
    user = scene.users[0]
    if names[0] in scene.kubelets:
        return
    for name in names:
        scene.add_node(name)
    for node in sorted(set(scene.kubelets) - set(names)):
        drains.cordon(scene.world, node, True)
    user.template(lambda raw: raw["spec"].update(_one_on_each_node(user.key[1])), "one on each node")
    user.edit(replicas=MANY, elastic=None)
    if not await _moment(scene, lambda: len(_members(user)) == MANY):
        return
    await asyncio.sleep(rng.uniform(10, 30))
    scene.world.fire("pool-vanished")
    for name in names:
        drains.delete_node(scene.world, name)
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.0, 1.0)))
    await asyncio.sleep(rng.uniform(60, 120))


def _one_on_each_node(job: str) -> Json:
    term = {"labelSelector": {"matchLabels": {"perdure.dev/job": job}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@fault(250)
async def late_assignment(scene: Scene, rng: random.Random) -> None:
    """A member gets its rank half a minute late, when it has already been asked to leave and does not know it."""
    user, calls = some_user(scene, rng), scene.world.knobs.calls
    user.delete_pod()
    if not await _moment(scene, lambda: _starts(user)):
        return
    fired, calls.late_once = scene.world.fired["late-write"], PODS
    if await _moment(scene, lambda: scene.world.fired["late-write"] > fired):
        await asyncio.sleep(11.0)
        for pod in _members(user):
            scene.world.fire("hung-agent")
            scene.kubelets[node_of(pod)].hang_pod(pod)
        user.edit(suspend=True)
        await asyncio.sleep(rng.uniform(30, 60))
        user.edit(suspend=False)
    calls.late_once = ""


@fault(250)
async def late_budget(scene: Scene, rng: random.Random) -> None:
    """A job grows again before the budget's lowering has arrived."""
    user, calls = some_user(scene, rng), scene.world.knobs.calls
    if len(_members(user)) < 2:
        return
    fired, calls.late_once = scene.world.fired["late-write"], BUDGETS
    user.edit(replicas=1)
    if await _moment(scene, lambda: scene.world.fired["late-write"] > fired):
        user.edit(replicas=rng.randint(3, 4))
    calls.late_once = ""


@fault(400)
async def status_restored(scene: Scene, rng: random.Random) -> None:
    """A backup from some time ago is written over a job's status."""
    user = some_user(scene, rng)
    saved = clone(status_of(user.job or {}))
    uid = uid_of(user.job) if user.job else ""
    await asyncio.sleep(rng.choice((5, 20, 60)))
    if not saved or user.job is None or uid_of(user.job) != uid:
        return
    scene.world.fire("status-restored")
    known = {"run": saved.get("run"), "root": user.root, "commit": int(saved.get("commitSeq") or 0)}
    scene.world.tell("backup", "restores status", job=user.key[1], **known)

    def restore(raw: Json) -> None:
        raw["status"] = saved

    scene.world.server.change_status(JOBS, *user.key, restore, by="backup")
