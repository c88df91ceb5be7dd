"""A pool of nodes vanishes under a job: the calls that follow grow with the members, not with their square."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from perdure_operator.cluster.batching import AT_ONCE
from perdure_operator.cluster.protocol import NODES, PODS, Json, Resource, Unavailable
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job
from tests.support.stage import KEY, Stage

FEW, MANY = 8, 64


class Counting(MemoryCluster):
    """Counts requests, and how many wait for an answer at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = Counter[str]()
        self.under_way = 0
        self.most = 0
        self.down = False

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        self.gets[resource.plural] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.down:
            raise Unavailable("no answer in 10 s")
        return await super().get(resource, namespace, name)


Order = Callable[[Stage, list[str], list[str]], None]


def _pool(members: int) -> list[str]:
    return [f"n{number:02}" for number in range(members)]


def _training(members: int) -> tuple[Stage, Counting]:
    """One member on each node of a pool."""
    cluster = Counting()
    stage = Stage(cluster)
    for node in _pool(members):
        stage.node(node)
    stage.apply(job(replicas=members, disruption={}))
    stage.start()
    stage.run_pods(_pool(members))
    stage.settle()
    assert stage.status().phase == "Running"
    cluster.gets.clear()
    cluster.most = 0
    return stage, cluster


def _nodes_then_pods(stage: Stage, names: list[str], nodes: list[str]) -> None:
    for node in nodes:
        stage.cluster.remove(NODES, "", node)
        stage.settle()
    for name in names:
        stage.cluster.remove(PODS, "ns", name)
        stage.settle()


def _each_with_its_pod(stage: Stage, names: list[str], nodes: list[str]) -> None:
    for name, node in zip(names, nodes, strict=True):
        stage.cluster.remove(NODES, "", node)
        stage.settle()
        stage.cluster.remove(PODS, "ns", name)
        stage.settle()


def _pods_then_nodes(stage: Stage, names: list[str], nodes: list[str]) -> None:
    for name in names:
        stage.cluster.remove(PODS, "ns", name)
        stage.settle()
    for node in nodes:
        stage.cluster.remove(NODES, "", node)
        stage.settle()


def _calls(order: Order, members: int) -> int:
    stage, cluster = _training(members)
    order(stage, stage.names(), _pool(members))
    return cluster.gets.total()


@pytest.mark.parametrize("order", [_nodes_then_pods, _each_with_its_pod, _pods_then_nodes])
def test_what_is_asked_for_grows_with_the_members(order: Order) -> None:
    assert _calls(order, MANY) <= _calls(order, FEW) * MANY / FEW


def test_a_member_that_is_not_there_is_asked_for_once_however_long_status_cannot_say_so() -> None:
    stage, cluster = _training(FEW)
    for name in stage.names():
        cluster.remove(PODS, "ns", name)
        assert asyncio.run(stage.observer.observe(KEY))
    assert cluster.gets == {"pods": FEW}


def test_some_are_asked_for_at_once_and_never_all_of_them() -> None:
    stage, cluster = _training(MANY)
    for node in _pool(MANY):
        stage.cluster.remove(NODES, "", node)
    stage.settle()
    assert cluster.most == AT_ONCE


def test_after_an_error_no_other_node_is_asked_for() -> None:
    """A server that does not answer would be waited for by each of them."""
    stage, cluster = _training(MANY)
    for node in _pool(MANY):
        stage.cluster.remove(NODES, "", node)
    cluster.down = True
    with pytest.raises(Unavailable):
        asyncio.run(stage.observer.observe(KEY))
    assert cluster.gets.total() == AT_ONCE
    assert cluster.under_way == 0


def test_a_node_of_the_same_name_is_read_again_where_a_pod_was_put_on_it_before_the_watch_showed_it() -> None:
    stage, cluster = _training(2)
    cluster.remove(NODES, "", "n00")
    first = stage.names()[0]
    assert not _seen_under(stage, first)
    tell, cluster.watch = cluster.watch, lambda kind, resource, raw: resource == NODES or tell(kind, resource, raw)
    stage.node("n00")
    assert not _seen_under(stage, first)  # the watch is what tells of it
    raw = asyncio.run(cluster.get(PODS, "ns", first))
    raw["metadata"]["name"] = other = f"{first[:-1]}7"
    asyncio.run(cluster.create(PODS, "ns", raw))
    cluster.change(PODS, "ns", other, lambda pod: pod.update(status=raw["status"]))
    assert _seen_under(stage, other)


def _seen_under(stage: Stage, pod: str) -> bool:
    """Whether the node under it is there, for the operator."""
    seen = asyncio.run(stage.observer.observe(KEY))
    assert seen is not None
    (node,) = (one.node for one in seen.pods if one.name == pod)
    return next(one.exists for one in seen.nodes if one.name == node)
