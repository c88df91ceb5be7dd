"""Replicas of the operator that crash, freeze, are cut off or have a wrong clock; storage that fails."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.faults.registry import fault
from tests.simulation.scene import Scene


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


@fault(200)
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


@fault(600, to_its_end=True)
async def storage_outage(scene: Scene, rng: random.Random) -> None:
    """Longer than any request, rendezvous or save is given."""
    scene.world.fire("storage-outage")
    scene.world.bucket.down = True
    await asyncio.sleep(rng.uniform(620, 900))
    scene.world.bucket.down = False


@fault(150)
async def storage_faults(scene: Scene, rng: random.Random) -> None:
    bucket = scene.world.bucket
    scene.world.fire("storage-faults")
    bucket.error_rate, bucket.lost_answer_rate, bucket.slow_seconds = rng.random() * 0.3, rng.random() * 0.3, 1.0
    await asyncio.sleep(rng.uniform(10, 90))
    bucket.error_rate = bucket.lost_answer_rate = bucket.slow_seconds = 0.0
