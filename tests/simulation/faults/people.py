"""What users do to their jobs and to what belongs to them."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from tests.simulation.faults.registry import fault, some_kubelet, some_user
from tests.simulation.objects import (
    BUDGETS,
    EVICTIONS,
    FOREGROUND,
    JOBS,
    ORPHAN,
    PODS,
    REQUESTS,
    REVISIONS,
    Json,
    Refused,
    clone,
    key_of,
    seconds_of,
    stamp,
    uid_of,
)
from tests.simulation.scene import NAMESPACE, Scene


@fault(150)
async def scale(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("scale")
    some_user(scene, rng).edit(replicas=rng.randint(1, 4))


@fault(200)
async def suspend_and_resume(scene: Scene, rng: random.Random) -> None:
    user = some_user(scene, rng)
    scene.world.fire("suspend")
    user.edit(suspend=True)
    await asyncio.sleep(rng.choice((0.5, 3.0, 20.0, 80.0)))
    user.edit(suspend=False)


@fault(250)
async def edit_template(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("edit-template")
    image = f"trainer:{rng.randint(2, 9)}"
    some_user(scene, rng).template(lambda raw: raw["spec"]["containers"][0].update(image=image), f"image {image}")


@fault(150, to_its_end=True, apart=True)
async def other_processes(scene: Scene, rng: random.Random) -> None:
    """A user wants members of another number of processes, and for minutes none can be had."""
    user = some_user(scene, rng)
    if user.job is None or user.job["spec"].get("elastic"):
        return
    scene.world.fire("other-processes")
    kubelets, policy, why = (
        list(scene.kubelets.values()),
        scene.world.server.policy,
        rng.choice(("image", "webhook", "")),
    )
    each = int(user.job["spec"].get("processesPerReplica", 1))
    for kubelet in kubelets if why == "image" else ():
        kubelet.pull_fails = 1.0
    policy.refuse_creates = 'admission webhook "policy.example" denied the request: no' if why == "webhook" else ""
    policy.dry_run_passes = rng.random() < 0.5
    user.edit(processesPerReplica=rng.choice([one for one in (1, 2, 3) if one != each]))
    await asyncio.sleep(rng.choice((20.0, 100.0, 300.0)))
    for kubelet in kubelets:
        kubelet.pull_fails = 0.0
    policy.refuse_creates = ""
    if rng.random() < 0.5:
        user.edit(processesPerReplica=each)


@fault(250)
async def invalid_template(scene: Scene, rng: random.Random) -> None:
    user = some_user(scene, rng)
    scene.world.fire("invalid-template")
    user.template(lambda raw: raw["spec"]["containers"][0].update(image=""), "invalid template")
    await asyncio.sleep(rng.uniform(10, 120))
    user.template(lambda raw: raw["spec"]["containers"][0].update(image="trainer:1"), "valid template")


@fault(300)
async def delete_and_apply(scene: Scene, rng: random.Random) -> None:
    user = some_user(scene, rng)
    scene.world.fire("delete-job")
    user.delete()
    await asyncio.sleep(rng.choice((0.05, 1.0, 30.0)))
    user.apply()


@fault(300)
async def orphan_and_apply(scene: Scene, rng: random.Random) -> None:
    user = some_user(scene, rng)
    scene.world.fire("orphan-job")
    user.delete(finalizer=ORPHAN)
    await asyncio.sleep(rng.choice((2.0, 30.0)))
    user.apply()


@fault(200, apart=True)
async def foreground_and_apply(scene: Scene, rng: random.Random) -> None:
    """`kubectl delete --cascade=foreground`: members go first, and the job when the last of what blocks it has gone."""
    user, server = some_user(scene, rng), scene.world.server
    if user.job is None:
        return
    scene.world.fire("foreground-job")
    owner = {"uid": uid_of(user.job), "name": user.key[1], "blockOwnerDeletion": True}
    name = f"held-{rng.getrandbits(16):04x}"
    metadata = {"name": name, "ownerReferences": [owner], "finalizers": ["example.com/hold"]}
    server.create(REVISIONS, user.key[0], {"metadata": metadata, "data": {}}, by="user")
    user.delete(finalizer=FOREGROUND)
    try:
        await asyncio.sleep(rng.choice((0.5, 5.0, 30.0, 90.0)))
    finally:  # the end of the trouble removes it, too
        server.change(REVISIONS, user.key[0], name, lambda raw: raw["metadata"].pop("finalizers"), by="user")
    await asyncio.sleep(10.0)  # its finalizer goes within seconds then
    user.apply()


@fault(300, to_its_end=True, apart=True)
async def namespace_deleted(scene: Scene, rng: random.Random) -> None:
    """Everything in it is deleted, in any order, and nothing new is created; later it exists again."""
    server, kinds = scene.world.server, [JOBS, PODS, BUDGETS, REVISIONS]
    if NAMESPACE in server.policy.ending:
        return
    kinds += [kind for kind in (REQUESTS, EVICTIONS) if server.serves(kind)]
    scene.world.fire("namespace-deleted")
    scene.world.tell("admin", "deletes namespace", name=NAMESPACE)
    server.policy.ending.add(NAMESPACE)
    rng.shuffle(kinds)
    for kind in kinds:
        await asyncio.sleep(rng.choice((0.0, 0.5, 5.0)))
        for raw in server.all(kind, NAMESPACE):
            server.delete(kind, *key_of(raw), by="user")
    while any(server.all(kind, NAMESPACE) for kind in kinds):
        await asyncio.sleep(1.0)
        for kind in kinds:
            for raw in server.all(kind, NAMESPACE):
                server.delete(kind, *key_of(raw), by="user")
    server.policy.ending.discard(NAMESPACE)
    for user in scene.users:
        await asyncio.sleep(rng.uniform(0.0, 5.0))
        user.apply()


@fault(250)
async def edit_budget(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("edit-budget")
    choices: list[Json] = [
        {"minAvailable": "50%"},
        {"maxUnavailable": 1},
        {"minAvailable": 0},
        {"maxUnavailable": "10%"},
        {"minAvailable": 9, "selector": {"matchLabels": {"app": "other"}}},
    ]
    user = some_user(scene, rng)
    if budget := user.budget():  # no number is wrong, and no pod is protected
        least = budget["spec"].get("minAvailable", 1)
        choices.append({"minAvailable": least, "selector": {"matchLabels": {"app": "other"}}})
    user.edit_budget(rng.choice(choices))


@fault(250)
async def delete_budget(scene: Scene, rng: random.Random) -> None:
    budget = some_user(scene, rng).budget()
    if budget is not None:
        scene.world.fire("delete-budget")
        scene.world.server.delete("poddisruptionbudgets", *key_of(budget), by="user")


@fault(250)
async def foreign_budget(scene: Scene, rng: random.Random) -> None:
    """A user puts a budget of their own in the place of a job's."""
    budget = some_user(scene, rng).budget()
    if budget is None:
        return
    scene.world.fire("delete-budget")
    scene.world.fire("foreign-budget")
    server, key = scene.world.server, key_of(budget)
    least = rng.choice((0, budget["spec"].get("minAvailable", 0)))
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": "other"}}}
    body = {"metadata": {"name": key[1]}, "spec": spec}
    server.delete("poddisruptionbudgets", *key, by="user")
    try:
        server.create("poddisruptionbudgets", key[0], body, by="user")
    except Refused:  # admission tells people so, too
        return

    def remove() -> None:
        there = server.find("poddisruptionbudgets", *key)
        if there is not None and "ownerReferences" not in there["metadata"]:
            server.delete("poddisruptionbudgets", *key, by="user")

    scene.world.after(rng.uniform(20, 120), remove)


@fault(250)
async def remove_job_label(scene: Scene, rng: random.Random) -> None:
    await _without_label(scene, rng, "perdure.dev/job")


@fault(250)
async def remove_role_label(scene: Scene, rng: random.Random) -> None:
    await _without_label(scene, rng, "perdure.dev/role")


async def _without_label(scene: Scene, rng: random.Random, label: str) -> None:
    user = some_user(scene, rng)
    scene.world.fire("relabel")
    done = user.relabel(label, None)
    await asyncio.sleep(rng.uniform(1, 60))
    if done is not None:
        user.put_label(done[0], label, done[1])


@fault(250)
async def sidecar(scene: Scene, rng: random.Random) -> None:
    """From its next run on the job has a container that never ends."""
    user = some_user(scene, rng)
    scene.world.fire("sidecar")

    def add(raw: Json) -> None:
        raw["spec"]["containers"] = [raw["spec"]["containers"][0], {"name": "log", "image": "log"}]

    user.template(add, "with a sidecar")
    user.body["spec"]["template"]["spec"]["containers"].append({"name": "log", "image": "log"})


@fault(300)
async def null_grace(scene: Scene, rng: random.Random) -> None:
    scene.world.fire("null-grace")
    some_user(scene, rng).template(lambda raw: raw["spec"].update(terminationGracePeriodSeconds=None), "grace null")


@fault(300)
async def unknown_status(scene: Scene, rng: random.Random) -> None:
    """A newer operator has been here before."""
    user = some_user(scene, rng)
    if user.job is not None:
        scene.world.fire("unknown-status")

        def change(raw: Json) -> None:
            raw.setdefault("status", {}).update({"phase": "Pondering", "momentum": {"since": 1}})

        scene.world.server.change_status(JOBS, *user.key, change, by="newer-operator")


@fault(300)
async def absurd_outcome(scene: Scene, rng: random.Random) -> None:
    """A pod's owner may write anything."""
    kubelet = some_kubelet(scene, rng)
    words = rng.choice((
        '{"v":1,"outcome":"failed","run":1,"rank":0,"opened":9007199254740992,"step":1,"seconds":{}}',
        '{"v":1,"outcome":"checkpointed","run":99999,"rank":-1,"step":-5,"commit":{"seq":1e99}}',
        '{"v":1,"outcome":"checkpointed","run":1,"rank":0,"step":9007199254740993,"opened":1}',
        "[" * 3000,
    ))  # fmt: skip
    if kubelet.kill_one(rng, words):
        scene.world.fire("absurd-outcome")


@fault(300)
async def emptied_root(scene: Scene, rng: random.Random) -> None:
    """A lifecycle rule deletes everything below a job's root."""
    user, bucket = some_user(scene, rng), scene.world.bucket
    scene.world.fire("emptied-root")
    for key in [one for one in bucket.objects if one.startswith(user.root + "/")]:
        del bucket.objects[key]
    told = int(((user.job or {}).get("status") or {}).get("commitSeq") or 0)
    scene.world.tell("user", "emptied", root=user.root, told=told)


@fault(300)
async def deadline_while_saving(scene: Scene, rng: random.Random) -> None:
    """Suspended just before activeDeadlineSeconds: time suspended does not count."""
    user = some_user(scene, rng)
    started = ((user.job or {}).get("status") or {}).get("startTime")
    if started is None or user.deadline:
        return
    scene.world.fire("deadline")
    user.deadline = True
    seconds = max(int(scene.world.now - seconds_of(started)) + rng.randint(1, 12), 1)
    user.edit(activeDeadlineSeconds=seconds)
    user.edit(suspend=True)
    await asyncio.sleep(rng.uniform(30, 60))
    user.edit(suspend=False)
    await asyncio.sleep(min(5.0, seconds / 2))
    user.edit(activeDeadlineSeconds=None)
    user.deadline = False


@fault(300)
async def stranger_with_my_root(scene: Scene, rng: random.Random) -> None:
    """Another user's job has this job's uri: suspended, finished, at another endpoint, or unable to start."""
    on_volumes = [one for one in scene.users if "volumes" in one.body["spec"]["template"]["spec"]]
    user = rng.choice(on_volumes) if on_volumes and rng.random() < 0.5 else some_user(scene, rng)
    scene.world.fire("stranger")
    body = clone(user.body)
    body["metadata"]["name"] = name = f"stranger-{rng.getrandbits(16):04x}"
    kind = rng.choice(("suspended", "finished", "elsewhere", "for a while"))
    body["spec"]["suspend"] = kind == "suspended"
    if kind != "suspended":
        body["spec"]["template"]["spec"]["containers"][0]["image"] = ""
    if kind == "elsewhere":
        _move_elsewhere(body["spec"])
    server = scene.world.server
    namespace = (
        user.key[0] if "volumes" in body["spec"]["template"]["spec"] else "strangers"
    )  # a claim is a namespace's
    server.create(JOBS, namespace, body, by="user")
    if kind == "finished":
        server.change_status(JOBS, namespace, name, partial(_finish, at=stamp(scene.world.now)), by="backup")
    user.delete()
    await asyncio.sleep(5.0)
    user.apply()
    if kind == "for a while":
        scene.world.after(rng.uniform(5, 60), partial(_remove, scene, namespace, name))


def _remove(scene: Scene, namespace: str, job: str) -> None:
    if scene.world.server.find(JOBS, namespace, job) is not None:  # its namespace may have been deleted
        scene.world.server.delete(JOBS, namespace, job, by="user")


def _move_elsewhere(spec: Json) -> None:
    """Of the same name, and another place."""
    volumes = spec["template"]["spec"].get("volumes")
    if not volumes:
        spec["checkpoint"]["s3"] = {"endpoint": "https://elsewhere.example"}
    elif "csi" in volumes[0]:
        volumes[0]["csi"]["volumeAttributes"]["share"] = "elsewhere"
    else:
        volumes[0]["persistentVolumeClaim"]["claimName"] = "elsewhere"


def _finish(raw: Json, *, at: str) -> None:
    """It came to its end long ago, and was put back with all the others."""
    end = {"type": "Completed", "status": "True", "reason": "Completed", "message": "run 3 has reached its goal"}
    raw["status"] = {"phase": "Completed", "run": 3, "conditions": [end | {"lastTransitionTime": at}]}
