"""What jobs share behaves as in Kubernetes: priorities, quotas, and machines that come when pods find none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.autoscaler import Autoscaler
from tests.simulation.controllers import Budgets
from tests.simulation.history import Request
from tests.simulation.objects import BUDGETS, NODES, PODS, Json, Refused, condition, node_of, stamp, terminating
from tests.simulation.pool import Ask, Pool, draw, drawn
from tests.simulation.resources import CPU, GPU
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import World

NS = "team"


class Place:
    """Machines, a scheduler, and pods that end when they are deleted."""

    def __init__(self, *machines: int) -> None:
        self.world = World(1)
        self.scheduler = Scheduler(self.world)
        self.budgets = Budgets(self.world)
        for number, units in enumerate(machines):
            self.node(f"node-{number}", units)

    def node(self, name: str, units: int = 1) -> None:
        server, now = self.world.server, self.world.now
        server.create(NODES, "", {"metadata": {"name": name}, "spec": {}}, by="test")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(now)}
        status = {"allocatable": {CPU: "64", GPU: str(units)}, "conditions": [ready]}
        server.change_status(NODES, "", name, lambda raw: raw.update(status=status), by="test")

    def pod(self, name: str, units: int = 1, cls: str = "", labels: Json | None = None) -> None:
        container = {"name": "c", "image": "c", "resources": {"limits": {GPU: str(units)}}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 5} | (
            {"priorityClassName": cls} if cls else {}
        )
        self.world.server.create(
            PODS, NS, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}, by="test"
        )

    def runs(self, name: str) -> None:
        """Its container is up, and ready."""

        def change(raw: Json) -> None:
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(self.world.now)}
            raw["status"] = raw["status"] | {"phase": "Running", "conditions": [ready]}

        self.world.server.change_status(PODS, NS, name, change, by="kubelet")

    def ends(self, name: str) -> None:
        self.world.server.finish_delete(PODS, self.find(name), by="kubelet")

    def find(self, name: str) -> Json:
        return self.world.server.get(PODS, NS, name)

    def on(self, name: str) -> str:
        return node_of(self.find(name))

    def dooms(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.world.server.all(PODS) if terminating(one)}

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        self.world.loop.run(story)


def test_pods_are_bound_as_far_as_their_requests_go() -> None:
    here = Place(2)

    async def story() -> None:
        for name in ("a", "b", "c"):
            here.pod(name)
        await asyncio.sleep(1)
        assert [here.on(name) for name in ("a", "b", "c")] == ["node-0", "node-0", ""]
        said = condition(here.find("c"), "PodScheduled")
        assert said is not None
        assert (said["reason"], said["message"]) == (
            "Unschedulable",
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        )

    here.play(story())


def test_a_higher_priority_takes_the_room_of_the_lowest_and_comes_once_that_has_gone() -> None:
    here = Place(1, 1)

    async def story() -> None:
        here.pod("low", cls="low")
        here.pod("middle")
        await asyncio.sleep(1)
        here.pod("high", cls="high")
        await asyncio.sleep(1)
        assert here.dooms() == {"low"}
        said = condition(here.find("low"), "DisruptionTarget")
        assert said is not None
        assert said["reason"] == "PreemptionByScheduler"
        assert here.find("high")["status"]["nominatedNodeName"] == here.on("low")
        freed = here.on("low")
        here.pod("other")  # comes too late: the room is promised
        here.ends("low")
        await asyncio.sleep(1)
        assert (here.on("high"), here.on("other")) == (freed, "")

    here.play(story())


def test_a_policy_of_never_takes_no_room_and_equals_take_none_from_each_other() -> None:
    here = Place(1)

    async def story() -> None:
        here.pod("there")
        await asyncio.sleep(1)
        here.pod("patient", cls="patient")
        here.pod("equal")
        await asyncio.sleep(1)
        assert here.dooms() == set()
        here.ends("there")
        await asyncio.sleep(1)
        assert (here.on("patient"), here.on("equal")) == ("node-0", "")

    here.play(story())


def test_a_budget_is_heeded_where_another_victim_will_do_and_only_there() -> None:
    here = Place(1, 1)

    async def story() -> None:
        here.pod("guarded", cls="low", labels={"app": "guarded"})
        here.pod("free", cls="low")
        await asyncio.sleep(1)
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
        here.world.server.create(BUDGETS, NS, {"metadata": {"name": "b"}, "spec": spec}, by="test")
        here.runs("guarded")
        await asyncio.sleep(1)
        here.pod("first", cls="high")
        await asyncio.sleep(1)
        assert here.dooms() == {"free"}
        here.pod("second", cls="high")
        await asyncio.sleep(1)
        assert here.dooms() == {"free", "guarded"}

    here.play(story())


def test_a_quota_refuses_what_is_above_it_with_the_sums() -> None:
    here = Place(4)

    async def story() -> None:
        here.world.server.policy.hard[NS] = {GPU: 2.0}
        here.pod("a", 2)
        with pytest.raises(Refused, match=r"exceeded quota: share, requested: requests.*gpu=1, used: .*gpu=2"):
            here.pod("b")
        assert here.world.fired["quota"] == 1

    here.play(story())


def test_a_class_that_is_not_there_is_refused() -> None:
    here = Place(1)

    async def story() -> None:
        with pytest.raises(Refused, match="no PriorityClass with name nosuch was found"):
            here.pod("a", cls="nosuch")

    here.play(story())


def test_machines_are_launched_for_pods_that_find_none_up_to_the_limit_and_removed_when_they_are_empty() -> None:
    here = Place(1)
    pool = Pool(GPU, 1, 1, 2, None, ())
    scaler = Autoscaler(here.world, pool, here.node)

    async def story() -> None:
        for name in ("a", "b", "c", "d"):
            here.pod(name)
        await asyncio.sleep(120)
        assert sorted(here.on(name) for name in ("a", "b", "c", "d")) == ["", "node-0", "pool-0", "pool-1"]
        for name in ("a", "b", "c", "d"):
            if here.on(name) in ("", "pool-0"):
                here.world.server.delete(PODS, NS, name, by="test", grace=0)
        await asyncio.sleep(30)
        assert len(scaler.nodes()) == 2
        await asyncio.sleep(30)
        assert [one["metadata"]["name"] for one in scaler.nodes()] == ["pool-1"]

    here.play(story())


def test_a_pod_that_fits_on_no_machine_launches_none() -> None:
    here = Place(1)
    scaler = Autoscaler(here.world, Pool(GPU, 1, 1, 2, None, ()), here.node)

    async def story() -> None:
        here.pod("large", 2)
        await asyncio.sleep(120)
        assert scaler.nodes() == []

    here.play(story())


def test_in_a_drawn_pool_each_job_fits_alone_and_some_cannot_all_be_there() -> None:
    rng = random.Random(1)  # noqa: S311
    pools = [draw(rng) for _ in range(300)]
    assert all(pool.holds(ask.units) >= ask.least for pool in pools for ask in pool.asks)
    assert any(pool.limit for pool in pools)
    assert any(pool.quota for pool in pools)
    assert any(sum(ask.least * ask.units for ask in pool.asks) > pool.machine * pool.most for pool in pools)
    two = Ask(1, 2, None, "", 60, 100)
    assert not Pool(GPU, 1, 1, 0, None, (two, two)).is_fair
    assert Pool(GPU, 1, 2, 0, None, (two, two)).is_fair  # each may hold one, and releases it


def test_a_share_of_the_seeds_has_a_pool_and_aimed_faults_have_one_where_they_need_it() -> None:
    assert 50 <= sum(drawn(seed) is not None for seed in range(1000)) <= 150
    assert all(Request(seed, only=("scale",)).pool() is None for seed in range(50))
    assert all(Request(seed, only=("others-come",)).pool() for seed in range(50))
