"""Everything that takes nodes away: `kubectl drain`, an autoscaler, Karpenter, a cloud that deletes a node object.

Each treats budgets as the real one does: kubectl evicts by *name* and retries every 5 seconds, Karpenter backs off, the
cluster autoscaler gives up after two minutes and removes its taint.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from perdure_operator.api.default_signals import DEFAULT_SIGNALS, VACATE_ANNOTATION
from perdure_operator.api.signal_rows import OF_PODS, SignalRow, SignalSource
from tests.simulation.controllers import evict
from tests.simulation.objects import (
    JOBS,
    NODES,
    PODS,
    Json,
    Refused,
    condition,
    key_of,
    owner_of,
    set_condition,
    terminal,
    terminating,
    uid_of,
)
from tests.simulation.world import World

PATIENCE_SECONDS: Final = 600.0
SHOWN: Final = frozenset(SignalSource) - {
    SignalSource.CORDON,
    SignalSource.NODE_DELETION,
    SignalSource.SILENCE,
    SignalSource.EVICTION,
}
"""A signal of a node, of each pod there, or of their jobs, for as long as its source wants."""
_CONDITIONS: Final = frozenset({SignalSource.CONDITION, SignalSource.POD_CONDITION})
AUTOSCALER: Final = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
KARPENTER: Final = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}


async def kubectl_drain(world: World, node: str, *, back_after: float | None) -> bool:
    """Cordon, evict, wait; later uncordon. False if it did not end in time."""
    world.fire("drain")
    world.tell("kubectl", "drain", node=node)
    cordon(world, node, True)
    pods = [pod for pod in world.pods_on(node) if not terminal(pod) or terminating(pod)]
    done = False
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with asyncio.TaskGroup() as group:
                for pod in pods:
                    group.create_task(_evict_until_gone(world, pod, 5.0))
        done = True
    except TimeoutError:
        world.tell("kubectl", "drain gave up", node=node)
    world.tell("kubectl", "drained", node=node, done=done)
    if back_after is not None:
        await asyncio.sleep(back_after)
        cordon(world, node, False)
    return done


async def _evict_until_gone(world: World, pod: Json, every: float) -> None:
    namespace, name = key_of(pod)
    while True:
        try:
            evict(world, namespace, name)
            break
        except Refused as refused:
            if refused.status == 404:
                return
            await asyncio.sleep(every)
    while True:  # as kubectl waits: until the pod is gone, or another has its name
        there = world.server.find(PODS, namespace, name)
        if there is None or uid_of(there) != uid_of(pod):
            return
        await asyncio.sleep(1.0)


async def autoscaler_removes(world: World, node: str) -> None:
    """Taint, evict for at most two minutes, then delete the node, or untaint it."""
    world.fire("autoscaler")
    taint(world, node, AUTOSCALER, True)
    try:
        async with asyncio.timeout(120):
            async with asyncio.TaskGroup() as group:
                for pod in world.pods_on(node):
                    group.create_task(_evict_until_gone(world, pod, 10.0))
    except TimeoutError:
        taint(world, node, AUTOSCALER, False)
        return
    delete_node(world, node)


async def karpenter_removes(world: World, rng: random.Random, node: str, *, taints: bool) -> None:
    """Delete a node that Karpenter manages, or one of a cloud whose deletions are not announced."""
    world.fire("karpenter" if taints else "node-deletion-without-taint")
    await terminate_node(world, rng, node, taints=taints)


async def terminate_node(
    world: World, rng: random.Random, node: str, *, taints: bool = True, within: float | None = None
) -> None:
    """Delete the node behind a finalizer, taint it, evict, and release it once it is empty.

    `within` is the claim's terminationGracePeriod: a pod's own grace before its end the pod is deleted, whatever its
    budget says. A node with a silent kubelet is released as it is; pod GC deletes its pods.
    """
    if world.node(node) is None:
        return
    deadline = None if within is None else world.now + within
    _hold(world, node, ["karpenter.sh/termination"])
    world.server.delete(NODES, "", node, by="karpenter")
    if taints:
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        taint(world, node, KARPENTER, True)
    delay = 0.5
    while pods := [pod for pod in world.pods_on(node) if not terminal(pod)]:
        if taints and _is_silent(world, node):
            break
        refused = sum(not _ask_to_go(world, pod, deadline) for pod in pods)
        if refused:
            delay = min(delay * 2, 10.0)
        await asyncio.sleep(delay)
    if world.node(node) is not None:
        _hold(world, node, [])


def _hold(world: World, node: str, finalizers: list[str]) -> None:
    world.server.change(NODES, "", node, lambda raw: raw["metadata"].update(finalizers=finalizers), by="karpenter")


def _is_silent(world: World, node: str) -> bool:
    there = world.node(node)
    return there is None or (condition(there, "Ready") or {}).get("status") == "Unknown"


def _ask_to_go(world: World, pod: Json, deadline: float | None) -> bool:
    """Evict it, or delete it where there is no more time; False where its budget refuses."""
    if deadline is not None and world.now >= deadline - int(pod["spec"]["terminationGracePeriodSeconds"]):
        world.server.delete(PODS, *key_of(pod), by="karpenter", uid=uid_of(pod))
        return True
    try:
        evict(world, *key_of(pod))
    except Refused:
        return False
    return True


def cordon(world: World, node: str, on: bool) -> None:
    def change(raw: Json) -> None:
        if on:
            raw["spec"]["unschedulable"] = True
        else:
            raw["spec"].pop("unschedulable", None)

    if world.node(node) is not None:
        world.server.change(NODES, "", node, change, by="kubectl")


def taint(world: World, node: str, what: Json, on: bool) -> None:
    def change(raw: Json) -> None:
        others = [one for one in raw["spec"].get("taints") or () if one["key"] != what["key"]]
        raw["spec"]["taints"] = [*others, dict(what)] if on else others

    if world.node(node) is not None:
        world.server.change(NODES, "", node, change, by="taint")


def announce(world: World, node: str, row: SignalRow, on: bool) -> None:
    """Show what the row matches, on the node or an object related to it, or withdraw it."""
    if world.node(node) is None:
        return
    world.tell("monitor", row.name, node=node, on=on)
    if row.source is SignalSource.JOB:
        _ask_jobs(world, node, on)
    elif row.source is SignalSource.TAINT:
        taint(world, node, {"key": _key(row), "value": row.value or "", "effect": row.effect or "NoSchedule"}, on)
    elif row.source is SignalSource.CONDITION:
        world.server.change_status(NODES, "", node, _state(world, row, on), by="monitor")
    elif row.source in OF_PODS:
        for pod in _alive(world, node):
            world.server.change_status(PODS, *key_of(pod), _state(world, row, on), by="monitor")
    else:
        world.server.change(NODES, "", node, partial(_mark, row, on), by="monitor")


def announce_nothing(world: World) -> None:
    """Withdraw the announcements of watchers and the requests of users."""
    for node in [key_of(raw)[1] for raw in world.server.all(NODES)]:
        for row in DEFAULT_SIGNALS:
            if row.source in SHOWN and _is_shown(world, node, row):
                announce(world, node, row, False)
    for raw in world.server.all(JOBS):
        if VACATE_ANNOTATION in (raw["metadata"].get("annotations") or {}):
            world.server.change(JOBS, *key_of(raw), _withdraw, by="kubectl")


def _is_shown(world: World, node: str, row: SignalRow) -> bool:
    """Taints are many others' too, and jobs are asked by name."""
    there = world.node(node)
    pods = _alive(world, node)
    if there is None or row.source in (SignalSource.TAINT, SignalSource.JOB):
        return False
    if row.source is SignalSource.DEVICE:
        containers = (one for pod in pods for one in pod["status"].get("containerStatuses") or ())
        return any("allocatedResourcesStatus" in one for one in containers)
    if row.source in _CONDITIONS:
        seen = [there] if row.source is SignalSource.CONDITION else pods
        return any((condition(raw, _key(row)) or {}).get("status") == (row.value or "True") for raw in seen)
    return _key(row) in (there["metadata"].get(_marks(row)) or {})


def _alive(world: World, node: str) -> list[Json]:
    return [pod for pod in world.pods_on(node) if not (terminal(pod) or terminating(pod))]


def _key(row: SignalRow) -> str:
    return row.key.replace("*", "Any")


def _state(world: World, row: SignalRow, on: bool) -> Callable[[Json], None]:
    if row.source is SignalSource.DEVICE:
        return partial(_show_device, row.value or "Unhealthy" if on else "")
    bad = row.value or "True"
    status = bad if on else "False" if bad == "True" else "True"
    reason = row.reasons[0] if row.reasons and on else ""
    return partial(set_condition, kind=_key(row), status=status, at=world.now, reason=reason)


def _show_device(health: str, raw: Json) -> None:
    """Of the trainer's container, as the kubelet does; "" takes it back."""
    for one in (raw["status"].get("containerStatuses") or ())[:1]:
        one.pop("allocatedResourcesStatus", None)
        if health:
            sick = {"resourceID": "gpu-0", "health": health}
            one["allocatedResourcesStatus"] = [{"name": "example.com/gpu", "resources": [sick]}]


def _marks(row: SignalRow) -> str:
    return "labels" if row.source is SignalSource.LABEL else "annotations"


def _mark(row: SignalRow, on: bool, raw: Json) -> None:
    others = {name: text for name, text in (raw["metadata"].get(_marks(row)) or {}).items() if name != _key(row)}
    raw["metadata"][_marks(row)] = others | ({_key(row): row.value or "True"} if on else {})


def _withdraw(raw: Json) -> None:
    others = raw["metadata"]["annotations"]
    raw["metadata"]["annotations"] = {name: text for name, text in others.items() if name != VACATE_ANNOTATION}


def _ask_jobs(world: World, node: str, on: bool) -> None:
    """By the annotation of each job: off this node, or one of its pods there, or all together."""
    for job in world.server.all(JOBS):
        mine = [key_of(pod)[1] for pod in world.pods_on(node) if owner_of(pod) == uid_of(job)]
        words = (node, f"{node},{mine[0]}" if mine else node, "true")[len(mine) % 3]
        text = words if on else ""

        def mark(raw: Json, text: str = text) -> None:
            others = raw["metadata"].get("annotations") or {}
            raw["metadata"]["annotations"] = others | {VACATE_ANNOTATION: text}

        world.server.change(JOBS, *key_of(job), mark, by="kubectl")


def delete_node(world: World, node: str) -> None:
    """The node object is deleted, whatever still runs there."""
    if world.node(node) is not None:
        world.server.delete(NODES, "", node, by="cloud")
