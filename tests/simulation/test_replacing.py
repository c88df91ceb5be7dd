"""When `checks.replacing` finds fault with the replacement of a member that has not begun."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case
from tests.simulation.checks.replacing import MEMORY_SECONDS, Replacing
from tests.simulation.member import run_member
from tests.simulation.objects import JOBS, NODES, PODS, Json, key_of, uid_of
from tests.simulation.scene import NAMESPACE, Scene
from tests.simulation.world import World

NODE = "node-0"


def found(*, going: bool) -> str:
    """What it says of a pod that is replaced on a node that has not changed for long."""
    world = World(0)

    async def story() -> str:
        scene = Scene(world, run_member)
        for one in scene.operators.replicas:
            one.restarting = True
            one.stop()
        case, server = Case(scene, everything=False), world.server
        replacing = Replacing(case)
        server.observe(replacing.on_change)
        await asyncio.sleep(60.0)
        if going:
            server.change(NODES, "", NODE, lambda raw: raw["metadata"].update(finalizers=["example.com/hold"]), by="")
            server.delete(NODES, "", NODE, by="cloud")
        await asyncio.sleep(MEMORY_SECONDS * 2)
        job = server.all(JOBS, NAMESPACE)[0]
        owner = {"kind": "TrainingJob", "name": key_of(job)[1], "uid": uid_of(job), "controller": True}
        body: Json = {"metadata": {"name": "m", "ownerReferences": [owner]}, "spec": {"nodeName": NODE}}
        body["spec"]["containers"] = [{"name": "c", "image": "c"}]
        server.create(PODS, NAMESPACE, body, by="operator")
        await asyncio.sleep(2.0)
        before, after = ({**job, "status": {"next": {"run": 2, "members": one}}} for one in (["m"], []))
        replacing.on_change(Change(0, "MODIFIED", JOBS, after, before, by="operator-0.1"))
        return case.violation.check if case.violation else ""

    return world.loop.run(story())


@pytest.mark.parametrize(("going", "said"), [(False, "groundless"), (True, "")])
def test_a_node_that_is_going_is_a_reason_however_long_it_has_not_changed(going: bool, said: str) -> None:
    assert found(going=going) == said
