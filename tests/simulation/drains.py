"""Whoever takes nodes away: `kubectl drain`, an autoscaler, Karpenter, a cloud that deletes a node object.

Each behaves as the real one does towards budgets: kubectl evicts by *name* and asks again every 5 seconds, Karpenter
backs off, the cluster autoscaler gives up after two minutes and takes its taint back.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Final

from perdure_operator.api.shipped import SHIPPED, VACATE_ANNOTATION
from perdure_operator.api.signals import SignalRow, Source
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
SHOWN: Final = frozenset(
    {Source.CONDITION, Source.TAINT, Source.LABEL, Source.ANNOTATION, Source.POD_CONDITION, Source.JOB}
)
"""What a node, each pod there, or their jobs show for as long as somebody wants it to."""
_CONDITIONS: Final = frozenset({Source.CONDITION, Source.POD_CONDITION})
AUTOSCALER: Final = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
KARPENTER: Final = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}


async def kubectl_drain(world: World, node: str, *, back_after: float | None) -> bool:
    """Cordon, evict, wait; later somebody uncordons it again. False where it did not end in time."""
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
    """Somebody deletes a node that Karpenter looks after, or one of a cloud whose deletions nobody announces."""
    world.fire("karpenter" if taints else "node-deletion-without-taint")
    await terminate_node(world, rng, node, taints=taints)


async def terminate_node(
    world: World, rng: random.Random, node: str, *, taints: bool = True, within: float | None = None
) -> None:
    """Delete the node behind a finalizer, taint it, evict, and let it go once it is empty.

    `within` is the claim's terminationGracePeriod: a pod's own grace before it is over the pod is deleted, whatever
    its budget says. A node whose kubelet is silent is let go as it is; pod GC deletes what was there.
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
    """Show on the node, or on what has to do with it, what the row matches, or take it back."""
    if world.node(node) is None:
        return
    key, says = row.key.replace("*", "Any"), row.value or "True"
    world.tell("monitor", row.name, node=node, on=on)
    reason = row.reasons[0] if row.reasons and on else ""
    cleared = "False" if says == "True" else "True"
    shown = partial(set_condition, kind=key, status=says if on else cleared, at=world.now, reason=reason)
    if row.source is Source.TAINT:
        taint(world, node, {"key": key, "value": row.value or "", "effect": row.effect or "NoSchedule"}, on)
    elif row.source is Source.CONDITION:
        world.server.change_status(NODES, "", node, shown, by="monitor")
    elif row.source is Source.POD_CONDITION:
        for pod in world.pods_on(node):
            if not (terminal(pod) or terminating(pod)):
                world.server.change_status(PODS, *key_of(pod), shown, by="monitor")
    elif row.source is Source.JOB:
        _ask_jobs(world, node, on)
    else:
        marks = "labels" if row.source is Source.LABEL else "annotations"

        def mark(raw: Json) -> None:
            others = {name: text for name, text in (raw["metadata"].get(marks) or {}).items() if name != key}
            raw["metadata"][marks] = others | ({key: says} if on else {})

        world.server.change(NODES, "", node, mark, by="monitor")


def announce_nothing(world: World) -> None:
    """What whoever watches has announced, and a person has asked for, is taken back."""
    for kind in (NODES, PODS):
        for raw in world.server.all(kind):
            said = [one["type"] for one in (raw.get("status") or {}).get("conditions") or () if one["status"] == "True"]
            for word in sorted({one.key for one in SHIPPED if one.source in _CONDITIONS} & set(said)):
                if not (kind == PODS and (terminal(raw) or terminating(raw))):
                    well = partial(set_condition, kind=word, status="False", at=world.now)
                    world.server.change_status(kind, *key_of(raw), well, by="monitor")
    for kind in (NODES, JOBS):
        for raw in world.server.all(kind):
            if VACATE_ANNOTATION in (raw["metadata"].get("annotations") or {}):
                world.server.change(kind, *key_of(raw), _withdraw, by="kubectl")


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
    """The node object goes, whatever still runs there."""
    if world.node(node) is not None:
        world.server.delete(NODES, "", node, by="cloud")
