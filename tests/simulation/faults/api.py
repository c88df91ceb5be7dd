"""An API server that refuses, forgets, lags and lies; controllers that are late."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.simulation.answers import FORMS
from tests.simulation.faults.registry import fault
from tests.simulation.objects import JOBS, NODES, PODS
from tests.simulation.scene import Scene


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


@fault(120, apart=True)
async def api_throttles(scene: Scene, rng: random.Random) -> None:
    """It has no time, and says from when on it may have."""
    seconds = rng.choice((2.0, 7.0, 20.0))
    await _calls(scene, rng, (5, 60), too_many=rng.choice((0.3, 0.9, 1.0)), retry_after=seconds)


@fault(100)
async def api_errors(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), error=rng.choice((0.1, 0.5)))


@fault(120, apart=True)
async def api_errors_without_status(scene: Scene, rng: random.Random) -> None:
    """Errors and refusals of too many requests whose bodies are no Status, or not a whole one; some ask for a pause."""
    odd = {"form": rng.choice(tuple(FORMS)), "retry_after": rng.choice((None, None, 2.0, 7.0))}
    await _calls(scene, rng, (5, 60), error=rng.choice((0.1, 0.5)), too_many=rng.choice((0.0, 0.3)), **odd)


@fault(150, apart=True)
async def api_behind_a_proxy(scene: Scene, rng: random.Random) -> None:
    """A proxy has lost the server, or knows no way to it, and says so in its own words: nothing is known of objects."""
    await _calls(scene, rng, (5, 60), error=rng.choice((0.3, 1.0)), statuses=(404, 404, 502, 503), form="proxy")


@fault(120, apart=True)
async def api_answers_cut(scene: Scene, rng: random.Random) -> None:
    """Bodies end early, whatever their status."""
    await _calls(scene, rng, (5, 60), cut=rng.choice((0.05, 0.3)))


@fault(120, apart=True)
async def api_forgets(scene: Scene, rng: random.Random) -> None:
    """Its storage is compacted: 410 ends watches, and lists after their first page."""
    calls = scene.world.knobs.calls
    calls.forgets_lists = rng.choice((0.3, 1.0))
    await _watches(scene, rng, expired=rng.choice((0.02, 0.2)))
    calls.forgets_lists = 0.0


@fault(100)
async def api_lost_answers(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), lost=rng.choice((0.1, 0.4)))


@fault(150)
async def api_late_writes(scene: Scene, rng: random.Random) -> None:
    """A write without an answer that is carried out half a minute later."""
    await _calls(scene, rng, (5, 60), late=rng.choice((0.1, 0.3)))


@fault(150)
async def api_timeouts(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 40), timeout=rng.choice((0.1, 0.3)))


@fault(100)
async def api_slow(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (5, 60), slow=rng.choice((0.1, 0.5)))


@fault(150)
async def api_slow_for_one_kind(scene: Scene, rng: random.Random) -> None:
    """Leases are renewed in time all the same."""
    kind = rng.choice((JOBS, PODS, PODS))
    await _calls(scene, rng, (20, 90), slow=0.7, slow_kind=kind)


@fault(250)
async def api_down(scene: Scene, rng: random.Random) -> None:
    await _calls(scene, rng, (3, 40), down=True)


@fault(600, to_its_end=True)
async def control_plane_outage(scene: Scene, rng: random.Random) -> None:
    """Longer than any Lease, deadline or patience: the operator reaches nothing, and training goes on."""
    scene.world.fire("control-plane-outage")
    seconds = rng.uniform(620, 900)
    await _calls(scene, rng, (seconds, seconds), down=True)


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


@fault(250)
async def webhook_refuses_patches(scene: Scene, rng: random.Random) -> None:
    policy = scene.world.server.policy
    policy.refuse_patches = 'admission webhook "policy.example" denied the request: no'
    await asyncio.sleep(rng.uniform(10, 80))
    policy.refuse_patches = ""


@fault(150, apart=True)
async def right_lost(scene: Scene, rng: random.Random) -> None:
    """The operator may not write one kind of thing: a right was taken, or a policy stands in the way."""
    policy, what = scene.world.server.policy, rng.choice(("refuse_status", "refuse_deletes", "refuse_events"))
    setattr(policy, what, "forbidden: ServiceAccount perdure-operator cannot do this")
    await asyncio.sleep(rng.choice((2.0, 15.0, 60.0, 150.0)))
    setattr(policy, what, "")


@fault(120, apart=True)
async def mesh(scene: Scene, rng: random.Random) -> None:
    """From now on a mesh injects its proxy into every new pod."""
    scene.world.fire("mesh")
    scene.world.server.policy.mesh = True
    await asyncio.sleep(rng.uniform(60, 400))
    scene.world.server.policy.mesh = False


@fault(250)
async def webhook_refuses_budgets(scene: Scene, rng: random.Random) -> None:
    policy = scene.world.server.policy
    policy.refuse_budgets = 'admission webhook "policy.example" denied the request: no'
    await asyncio.sleep(rng.uniform(10, 80))
    policy.refuse_budgets = ""


@fault(300)
async def pod_security(scene: Scene, rng: random.Random) -> None:
    """A user makes the namespace stricter, and takes it back."""
    scene.world.server.policy.pod_security = True
    await asyncio.sleep(rng.uniform(10, 80))
    scene.world.server.policy.pod_security = False


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
