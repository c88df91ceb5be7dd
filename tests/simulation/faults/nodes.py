"""Nodes that leave, die, are cut off, or only look like it."""

from __future__ import annotations

import asyncio
import random

from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from tests.simulation import drains
from tests.simulation.autoscaler import PREFIX as LAUNCHED
from tests.simulation.faults.registry import fault, some_kubelet, some_node
from tests.simulation.objects import NODES
from tests.simulation.scene import Scene


@fault(90)
async def drain(scene: Scene, rng: random.Random) -> None:
    """`kubectl drain`, and uncordon later."""
    if node := some_node(scene, rng):
        await drains.kubectl_drain(scene.world, node, back_after=rng.uniform(1, 120))


@fault(120)
async def cordon_for_a_moment(scene: Scene, rng: random.Random) -> None:
    if node := some_node(scene, rng):
        drains.cordon(scene.world, node, True)
        await asyncio.sleep(rng.choice((0.3, 0.9, 2.0, 10.0)))
        drains.cordon(scene.world, node, False)


@fault(150, to_its_end=True, apart=True)
async def mere_cordon(scene: Scene, rng: random.Random) -> None:
    """Without a drain: one node, or all of them, take no new pods for some minutes."""
    names = [node for node in sorted(scene.kubelets) if scene.world.node(node) is not None]
    chosen = rng.choice((names, rng.sample(names, min(len(names), 1)), rng.sample(names, min(len(names), 1))))
    scene.world.fire("mere-cordon")
    for node in chosen:
        drains.cordon(scene.world, node, True)
    await asyncio.sleep(rng.uniform(40, 240))
    for node in chosen:
        drains.cordon(scene.world, node, False)


@fault(200)
async def drain_two(scene: Scene, rng: random.Random) -> None:
    """As an upgrade does, one after the other begins."""
    nodes = {node for _ in range(2) if (node := some_node(scene, rng))}
    async with asyncio.TaskGroup() as group:
        for node in sorted(nodes):
            group.create_task(drains.kubectl_drain(scene.world, node, back_after=rng.uniform(30, 90)))
            await asyncio.sleep(rng.uniform(0.0, 8.0))


@fault(200)
async def autoscaler(scene: Scene, rng: random.Random) -> None:
    if (node := some_node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        await drains.autoscaler_removes(scene.world, node)
        await asyncio.sleep(rng.uniform(30, 90))
        _return_node(scene, node)


@fault(200)
async def karpenter(scene: Scene, rng: random.Random) -> None:
    if (node := some_node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        await drains.karpenter_removes(scene.world, rng, node, taints=True)
        await asyncio.sleep(rng.uniform(30, 90))
        _return_node(scene, node)


@fault(200)
async def node_deleted_without_taint(scene: Scene, rng: random.Random) -> None:
    if (node := some_node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        await drains.karpenter_removes(scene.world, rng, node, taints=False)
        await asyncio.sleep(rng.uniform(30, 90))
        _return_node(scene, node)


def _return_node(scene: Scene, node: str) -> None:
    """Another machine of the same name, on clouds that reuse names."""
    if scene.world.node(node) is None and not node.startswith(LAUNCHED):
        scene.register(node)
        scene.kubelets[node].boot()


@fault(200)
async def node_object_deleted(scene: Scene, rng: random.Random) -> None:
    if (node := some_node(scene, rng)) and len(scene.world.server.all(NODES)) > 2:
        scene.world.fire("node-object-deleted")
        drains.delete_node(scene.world, node)
        await asyncio.sleep(rng.uniform(20, 90))
        _return_node(scene, node)


@fault(150)
async def node_power(scene: Scene, rng: random.Random) -> None:
    kubelet = some_kubelet(scene, rng)
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
    """The node reaches nothing; its containers go on."""
    kubelet = some_kubelet(scene, rng)
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


@fault(150, apart=True)
async def node_clock(scene: Scene, rng: random.Random) -> None:
    """The clocks of a node, or of all, are set: what their kubelets write of times is minutes off from now on."""
    scene.world.fire("node-clock")
    for kubelet in list(scene.kubelets.values()) if rng.random() < 0.5 else [some_kubelet(scene, rng)]:
        kubelet.skew = rng.choice((-600.0, -60.0, -2.0, 60.0, 600.0))


@fault(150)
async def kubelet_silent(scene: Scene, rng: random.Random) -> None:
    """Its containers train on."""
    kubelet = some_kubelet(scene, rng)
    scene.world.fire("kubelet-silent")
    kubelet.disconnect()
    await asyncio.sleep(rng.choice((3, 20, 70, 120)))
    kubelet.reconnect()


@fault(300)
async def all_kubelets_silent(scene: Scene, rng: random.Random) -> None:
    """Or all but one, as where a zone's gateway is gone."""
    if sum(not kubelet.connected for kubelet in scene.kubelets.values()) > 1:
        return  # one outage at a time: the end of the first would be that of the second
    scene.world.fire("all-kubelets-silent")
    silent = list(scene.kubelets.values())[rng.choice((0, 1)) :]
    for kubelet in silent:
        kubelet.disconnect()
    await asyncio.sleep(rng.choice((60, 120, 200, 300, 300)))
    for kubelet in silent:
        kubelet.reconnect()


@fault(150)
async def node_flaps(scene: Scene, rng: random.Random) -> None:
    """Ready is False for a while: the runtime answers slowly."""
    kubelet = some_kubelet(scene, rng)
    scene.world.fire("node-flaps")
    kubelet.report("False", reason="KubeletNotReady")
    await asyncio.sleep(rng.choice((1, 8, 40)))
    if kubelet.hears:
        kubelet.report("True")


@fault(200)
async def no_execute(scene: Scene, rng: random.Random) -> None:
    if node := some_node(scene, rng):
        scene.world.fire("no-execute")
        what = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
        drains.taint(scene.world, node, what, True)
        await asyncio.sleep(rng.uniform(20, 120))
        drains.taint(scene.world, node, what, False)


@fault(150)
async def announcement(scene: Scene, rng: random.Random) -> None:
    """A row of the table of signals comes true of a node, some time or in turns, and is taken back."""
    if node := some_node(scene, rng):
        rows = [one for one in DEFAULT_SIGNALS if one.source in drains.SHOWN]  # some jobs heed those that are off
        source = rng.choice(sorted({one.source for one in rows}))  # there are more conditions than all others together
        row = rng.choice([one for one in rows if one.source is source])
        scene.world.fire("announcement")
        for _ in range(rng.choice((1, 1, 1, 5))):
            drains.announce(scene.world, node, row, True)
            await asyncio.sleep(rng.choice((0.3, 2.0, 20.0, 60.0)))
            drains.announce(scene.world, node, row, False)
            await asyncio.sleep(rng.choice((0.3, 5.0)))


@fault(150)
async def file_delay(scene: Scene, rng: random.Random) -> None:
    kubelet = some_kubelet(scene, rng)
    scene.world.fire("file-delay")
    kubelet.file_delay = rng.choice((2.0, 15.0, 90.0))
    await asyncio.sleep(rng.uniform(20, 100))
    kubelet.file_delay = 0.0


@fault(200)
async def image_pull(scene: Scene, rng: random.Random) -> None:
    kubelet = some_kubelet(scene, rng)
    kubelet.pull_fails = 0.8
    await asyncio.sleep(rng.uniform(20, 100))
    kubelet.pull_fails = 0.0


@fault(150, apart=True)
async def slow_pull(scene: Scene, rng: random.Random) -> None:
    """Nodes that have never had the image: it is large, and the registry far away."""
    scene.world.fire("cold-nodes")
    seconds = rng.choice((60.0, 300.0))
    for kubelet in scene.kubelets.values():
        kubelet.slow_pull = seconds
    await asyncio.sleep(rng.uniform(100, 400))
    for kubelet in scene.kubelets.values():
        kubelet.slow_pull = 0.0


@fault(200)
async def stuck_terminating(scene: Scene, rng: random.Random) -> None:
    kubelet = some_kubelet(scene, rng)
    kubelet.stuck = 0.7
    await asyncio.sleep(rng.uniform(150, 500))
    kubelet.free()
