"""What one event and one look at a job cost, counted in steps of the interpreter: nothing grows with other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.wire import LABEL_JOB, LABEL_ROLE
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json, Resource
from perdure_operator.cluster.read import records
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.watch import Watch
from perdure_operator.serving.metrics.counted import Echoes
from tests.support import raw as builders
from tests.support.memory_cluster import MemoryCluster
from tests.support.steps import steps

FEW, MANY = 4, 200


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of objects that are parsed from now on."""
    calls: list[str] = []
    read = records.read

    def reading(resource: Resource, raw: Json, *known: Any) -> records.AnyRecord:
        calls.append(raw["metadata"]["name"])
        return read(resource, raw, *known)

    monkeypatch.setattr(records, "read", reading)
    return calls


class Cluster:
    """Jobs of one namespace, their members on one node each, and a watch that has reported everything."""

    def __init__(self, jobs: int, members: int = 4) -> None:
        self.version = 0
        self.cache = Cache()
        self.watch = Watch(self.cache, Queue(), Echoes())
        self.observer = Observer(MemoryCluster(), self.cache)
        for number in range(jobs):
            self.tell(JOBS, self.job(number, members))
            self.tell(BUDGETS, self.budget(number))
            for member in range(members):
                self.tell(PODS, self.pod(number, member))
            self.tell(NODES, self.node(number))
        for job in self.cache.jobs():
            self.observer.written(job.key, job.uid, deleted=False)

    def tell(self, resource: Resource, raw: Json, kind: str = "MODIFIED") -> None:
        self.watch.take_in(resource, kind, raw)

    def meta(self, name: str, **fields: Any) -> Json:
        self.version += 1
        return {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": str(self.version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        } | fields

    def job(self, number: int, members: int) -> Json:
        names = [f"j{number}-uid--{member}" for member in range(members)]
        status = {"next": {"run": 1, "members": names}, "nextMember": members}
        return builders.job(f"j{number}") | {"metadata": self.meta(f"j{number}", generation=1), "status": status}

    def labels(self, number: int) -> Json:
        return {LABEL_JOB: f"j{number}", LABEL_UID: f"uid-of-j{number}", LABEL_ROLE: "member"}

    def pod(self, number: int, member: int, **status: Any) -> Json:
        owner = {"uid": f"uid-of-j{number}", "controller": True}
        name = f"j{number}-uid--{member}"
        metadata = self.meta(name, labels=self.labels(number), ownerReferences=[owner])
        return {"metadata": metadata, "spec": {"nodeName": f"n{number}"}, "status": status}

    def budget(self, number: int, minimum: int = 4) -> Json:
        owner = {"uid": f"uid-of-j{number}", "controller": True}
        spec = {"minAvailable": minimum, "selector": {"matchLabels": self.labels(number)}}
        return {"metadata": self.meta(f"j{number}-uid-", ownerReferences=[owner]), "spec": spec}

    def node(self, number: int, *, cordoned: bool = False) -> Json:
        return {"metadata": self.meta(f"n{number}", namespace=""), "spec": {"unschedulable": cordoned}}

    def look(self, number: int = 1) -> None:
        seen = asyncio.run(self.observer.observe(("ns", f"j{number}")))
        assert seen
        assert seen.budget


def each_event(cluster: Cluster) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "a pod becomes Ready", lambda: cluster.tell(PODS, cluster.pod(1, 1, podIP="10.0.0.1"))
    yield "a pod is deleted", lambda: cluster.tell(PODS, cluster.pod(1, 1), "DELETED")
    yield "a node is cordoned", lambda: cluster.tell(NODES, cluster.node(1, cordoned=True))
    yield "a budget is raised", lambda: cluster.tell(BUDGETS, cluster.budget(1, 5))
    yield "a job is changed", lambda: cluster.tell(JOBS, cluster.job(1, 5))
    yield "a look", cluster.look


def test_an_event_and_a_look_cost_the_same_however_many_jobs_there_are() -> None:
    few, many = Cluster(FEW), Cluster(MANY)
    for one in (few, many):
        one.look()  # values computed once are computed
    for (what, work), (_, same) in zip(each_event(few), each_event(many), strict=True):
        small = steps(work)
        assert steps(same) <= 1.1 * small, what


def test_a_look_grows_with_the_members_and_no_faster() -> None:
    few, many = Cluster(2, members=40), Cluster(2, members=400)
    for one in (few, many):
        one.look()
    assert steps(many.look) <= 11 * steps(few.look)


@pytest.mark.parametrize(("version", "parsed"), [(10, 0), (11, 1)])
def test_an_object_is_parsed_once_for_each_of_its_versions(
    version: int, parsed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(1)
    metadata = {"namespace": "ns", "name": "p", "uid": "p", "labels": cluster.labels(0)}
    raw: Json = {"metadata": metadata | {"resourceVersion": "10"}}
    cluster.tell(PODS, raw)
    calls = counted(monkeypatch)
    cluster.tell(PODS, {"metadata": metadata | {"resourceVersion": str(version)}})
    assert len(calls) == parsed


def test_a_resync_reads_only_what_it_did_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    cache = Cache()
    observer = Observer(cluster, cache)

    async def play() -> None:
        for number in range(30):
            await cluster.create(PODS, "ns", {"metadata": {"name": f"p{number}", "labels": {LABEL_JOB: "j"}}})
        await observer.sync()

    asyncio.run(play())
    cluster.change(PODS, "ns", "p7", lambda raw: raw["status"].update(podIP="10.0.0.7"))
    calls = counted(monkeypatch)
    (change,) = asyncio.run(observer.sync())
    assert calls == ["p7"]
    assert change.after is not None
    assert change.after.key == ("ns", "p7")


def test_others_get_their_turn_while_a_resync_reads_its_slices() -> None:
    cluster = MemoryCluster()
    cluster.page = 1000
    observer = Observer(cluster, Cache())
    turns = []

    async def play() -> None:
        for number in range(100):
            await cluster.create(PODS, "ns", {"metadata": {"name": f"p{number}", "labels": {LABEL_JOB: "j"}}})
        resync = asyncio.create_task(observer.sync())
        while not resync.done():
            await asyncio.sleep(0)
            turns.append(1)

    asyncio.run(play())
    assert len(turns) >= 100 / 25
