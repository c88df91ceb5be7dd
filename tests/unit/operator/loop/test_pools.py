"""Jobs of policy Goodput get their sizes of the pool's devices, by status alone; no other job sees any of it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from perdure.wire.scaling import ScalingHints
from perdure_operator.api.status import Scaling, TrainingJobStatus
from perdure_operator.cluster.protocol import JOBS, NODES, Conflict, Forbidden, Json, Resource, Unavailable
from perdure_operator.cluster.read.records import JobRecord, NodeRecord, read
from perdure_operator.decide.packing import Pool
from perdure_operator.decide.sharing import PoolJob, Speedup
from perdure_operator.loop.pools import AS_CAPACITY, AS_IT_HAS, BY_SPEED, MINIMUM, PoolKeeper, pool_of, sizes_in
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job
from tests.support.stage import Stage

SCALES = ScalingHints(
    initial_batch=256, most_batch=65536, per_rank_low=32, per_rank_high=256, accumulates=True, noise=1e7,
    alpha=0.0, beta=0.001, c_in=0.0, d_in=0.0, c_out=0.0, d_out=0.0, profiled=2,
)  # fmt: skip
FLAT = replace(SCALES, noise=0.0, c_in=0.5, c_out=0.5)
SHARES = {"minReplicas": 1, "maxReplicas": 4, "policy": "Goodput", "growAfterSeconds": 0}


class Pools:
    """A cluster of four nodes with room for one member each, and what its jobs tell."""

    def __init__(self, *names: str, cluster: MemoryCluster | None = None, **elastic: Any) -> None:
        self.stage = Stage(cluster)
        self.nodes = [f"n{number}" for number in range(1, 5)]
        for node in self.nodes:
            self.stage.node(node)
        self.told: dict[str, ScalingHints] = {}
        self.age = 0.0
        self.keeper = PoolKeeper(self.stage.cache, self._hints, lambda: self.stage.now)
        for name in names:
            self.add(name, **elastic)

    def _hints(self, record: JobRecord, _now: datetime) -> tuple[ScalingHints, float] | None:
        told = self.told.get(record.key[1])
        return (told, self.age) if told else None

    def add(self, name: str, **elastic: Any) -> None:
        root = {"checkpoint": {"uri": f"s3://bucket/{name}"}}
        self.stage.apply(job(name, replicas=3, elastic=SHARES | elastic, **root))
        self.stage.start()
        self.run()

    def run(self) -> None:
        """Members that have no node get a free one, if there is one."""
        while True:
            taken = {raw["spec"].get("nodeName") for raw in self.stage.pods()}
            free = [node for node in self.nodes if node not in taken]
            waiting = [raw for raw in self.stage.pods() if not raw["spec"].get("nodeName")]
            if not free or not waiting:
                return
            self.stage.run_pods(free[:1] if len(free) == 1 else free)
            self.stage.settle()

    def look(self, after: float = 0.0) -> None:
        if after:
            self.stage.wait(after)
        asyncio.run(self.keeper.look(self.stage.actor, self.stage.queue))
        self.stage.settle()

    def status(self, name: str) -> TrainingJobStatus:
        raw = asyncio.run(self.stage.cluster.get(JOBS, "ns", name))
        return TrainingJobStatus.model_validate(raw.get("status") or {})

    def given(self, name: str) -> Scaling | None:
        return self.status(name).scaling

    def sizes(self, *names: str) -> list[int]:
        return [given.size for name in names if (given := self.given(name))]


def test_jobs_begin_with_their_minimum_and_get_more_by_what_they_tell() -> None:
    pools = Pools("good", "flat")
    assert len(pools.stage.pods()) == 2
    pools.look()
    assert pools.sizes("good", "flat") == [1, 1]
    given = pools.given("good")
    assert given is not None
    assert (given.why, given.speedup) == (MINIMUM, None)
    pools.told = {"good": SCALES, "flat": FLAT}
    pools.look(30)
    assert pools.sizes("good", "flat") == [1, 1], "not twice in a minute"
    pools.look(30)
    assert pools.sizes("good", "flat") == [3, 1]
    given = pools.given("good")
    assert given is not None
    assert given.why == BY_SPEED
    assert given.speedup == pytest.approx(3.0, abs=0.1)
    pools.stage.wait(2)
    assert len(pools.stage.pods()) == 4
    sized = pools.status("good").find("Sized")  # type: ignore[arg-type]  # its text
    assert sized is not None
    assert BY_SPEED in sized.message


def test_once_settled_nothing_is_written() -> None:
    pools = Pools("good", "flat")
    pools.told = {"good": SCALES, "flat": FLAT}
    for _ in range(3):
        pools.look(61)
        pools.run()
    pools.stage.settle()
    pools.stage.cluster.writes.clear()
    for _ in range(3):
        pools.look(61)
    assert [write for write in pools.stage.cluster.writes if "status" in str(write).lower()] == []


def test_a_newcomer_gets_its_minimum_from_a_job_that_has_more() -> None:
    pools = Pools("good", "flat")
    pools.told = {"good": SCALES, "flat": FLAT}
    pools.look()
    pools.look(61)
    pools.run()
    assert pools.sizes("good", "flat") == [3, 1]
    pools.add("new")
    pools.look(1)
    assert pools.sizes("good", "flat", "new") == [2, 1, 1]


def test_a_job_grows_once_the_devices_of_another_one_are_free() -> None:
    pools = Pools("one", "two")
    pools.told = {"one": SCALES, "two": FLAT}
    pools.look()
    pools.look(61)
    pools.stage.wait(2)
    pools.run()
    assert pools.sizes("one", "two") == [3, 1]
    pools.told = {"one": FLAT, "two": SCALES}
    pools.look(61)
    assert pools.sizes("one", "two") == [1, 1], "three pods of the first one are still there"
    on_nodes = [raw["metadata"]["name"] for raw in pools.stage.pods() if raw["spec"].get("nodeName")]
    for name in [name for name in on_nodes if name.startswith("one-")][1:]:
        pools.stage.end_pod(name, "")
    pools.look()
    assert pools.sizes("one", "two") == [1, 3]


def test_a_job_without_room_does_not_take_that_of_one_that_trains() -> None:
    """It was given its smallest size, and waits for it: an older one, or one that comes first by its name."""
    pools = Pools("trains", minReplicas=2)
    pools.told = {"trains": SCALES}
    pools.look()
    pools.stage.apply(job("a-waits", elastic=SHARES | {"minReplicas": 3}, checkpoint={"uri": "s3://bucket/a"}))
    pools.stage.settle()
    pools.look(1)
    assert pools.sizes("a-waits", "trains") == [3, 2]
    pools.look(61)
    assert pools.sizes("a-waits", "trains") == [3, 4]


def test_a_suspended_job_takes_no_part() -> None:
    pools = Pools("one", "two")
    pools.told = {"one": SCALES, "two": SCALES}
    pools.look()
    pools.look(61)
    assert pools.sizes("one", "two") == [2, 2]
    pools.stage.cluster.change(JOBS, "ns", "two", lambda raw: raw["spec"].update(suspend=True))
    pools.stage.settle()
    for raw in pools.stage.pods():
        if raw["metadata"]["name"].startswith("two-"):
            pools.stage.end_pod(raw["metadata"]["name"], "")
    pools.look(61)
    assert pools.sizes("one", "two") == [4, 2]


def test_a_job_that_tells_nothing_has_the_size_of_its_spec_after_five_minutes() -> None:
    pools = Pools("mute")
    pools.look()
    assert pools.sizes("mute") == [1]
    pools.look(299)
    assert pools.sizes("mute") == [1]
    pools.look(2)
    given = pools.given("mute")
    assert given is not None
    assert (given.size, given.why) == (3, AS_CAPACITY)
    pools.told = {"mute": FLAT}
    pools.look(61)
    assert pools.sizes("mute") == [1], "it has found its voice"


def test_a_job_that_tells_nothing_has_no_more_than_its_replicas_nor_its_largest_size() -> None:
    pools = Pools("mute", maxReplicas=2)
    pools.look()
    pools.look(301)
    assert pools.sizes("mute") == [2]


def test_a_job_that_tells_nothing_takes_no_more_than_an_equal_share_from_one_that_gains_by_more() -> None:
    pools = Pools("mute", "good")
    pools.told = {"good": SCALES}
    pools.look()
    pools.look(301)
    assert pools.sizes("mute", "good") == [2, 2]


def test_a_job_that_falls_silent_keeps_what_it_has() -> None:
    pools = Pools("good")
    pools.told = {"good": SCALES}
    pools.look()
    pools.look(61)
    before = pools.given("good")
    assert before is not None
    pools.told = {}
    pools.look(290)
    assert pools.given("good") == before
    pools.look(20)
    after = pools.given("good")
    assert after is not None
    assert (after.size, after.why, after.speedup) == (before.size, AS_IT_HAS, before.speedup)
    pools.look(1000)
    assert pools.given("good") == after


def test_a_new_leader_changes_nothing_before_it_has_listened() -> None:
    pools = Pools("good", "flat")
    pools.told = {"good": SCALES, "flat": FLAT}
    pools.look()
    pools.look(61)
    before = [pools.given(name) for name in ("good", "flat")]
    pools.keeper = replace(pools.keeper, heard={}, began=None)
    pools.told = {}
    pools.look(100)
    pools.look(290)
    assert [pools.given(name) for name in ("good", "flat")] == before


def test_spares_take_devices_of_the_pool_and_are_no_members() -> None:
    pools = Pools("good", spares=1)
    pools.look()
    pools.stage.wait(10)
    pools.run()
    assert len(pools.stage.pods()) == 2
    pools.told = {"good": SCALES}
    pools.look(61)
    assert pools.sizes("good") == [3]


def test_a_spare_that_has_no_room_takes_none_from_members() -> None:
    pools = _with_three_members(spares=1, maxReplicas=3)
    pools.stage.cordon(pools.nodes[3])
    pools.look(61)
    assert pools.sizes("good") == [3]


def test_old_hints_are_none() -> None:
    pools = Pools("good")
    pools.told, pools.age = {"good": SCALES}, 301.0
    pools.look()
    pools.look(61)
    assert pools.sizes("good") == [1]


def test_pools_of_other_names_and_jobs_of_policy_capacity_are_left_alone() -> None:
    pools = Pools("good")
    pools.add("follows", policy="Capacity")
    pools.add("none", policy=None)
    pools.stage.cluster.writes.clear()
    pools.look()
    assert pools.given("follows") is None
    assert pools.given("none") is None
    assert pools.given("good") is not None


def test_a_job_that_leaves_its_pool_follows_its_spec_again() -> None:
    pools = Pools("good")
    pools.look()
    pools.stage.cluster.change(JOBS, "ns", "good", lambda raw: raw["spec"]["elastic"].update(policy="Capacity"))
    pools.look()
    assert pools.given("good") is None
    pools.stage.wait(2)
    assert len(pools.stage.pods()) == 3


def test_a_run_that_comes_into_a_pool_keeps_its_size_until_more_is_known_of_it() -> None:
    pools = Pools("was", policy="Capacity")
    assert len(pools.stage.pods()) == 3
    pools.stage.cluster.change(JOBS, "ns", "was", lambda raw: raw["spec"]["elastic"].update(policy="Goodput"))
    for after in (2, 61, 61):
        pools.look(after)
        given = pools.given("was")
        assert given is not None
        assert (given.size, given.why) == (3, AS_IT_HAS)
    assert pools.status("was").run == 1
    pools.told = {"was": FLAT}
    pools.look(61)
    assert pools.sizes("was") == [1]


def test_a_job_that_is_elastic_no_more_has_no_size_of_a_pool() -> None:
    pools = Pools("good")
    pools.look()
    assert pools.given("good") is not None
    pools.stage.cluster.change(JOBS, "ns", "good", lambda raw: raw["spec"].pop("elastic"))
    pools.look()
    assert pools.given("good") is None


def test_a_job_that_found_no_room_is_given_no_more_than_it_has() -> None:
    pools = Pools("good", growTimeoutSeconds=30)
    pools.told = {"good": SCALES}
    pools.nodes = pools.nodes[:2]
    pools.look()
    pools.look(61)
    assert pools.sizes("good") == [4]
    pools.stage.wait(2)
    assert len(pools.stage.pods()) == 4
    for _ in range(10):
        pools.stage.wait(10)
    before = pools.status("good").growth
    assert before is not None
    have = pools.status("good").current
    assert have is not None
    pools.look(1)
    assert pools.sizes("good") == [len(have.plan.members)]
    pools.look(61)
    assert pools.sizes("good") == [4], "it tries again"
    for _ in range(10):
        pools.stage.wait(10)
    growth = pools.status("good").growth
    assert growth is not None
    assert growth.attempts == before.attempts + 1, "and then pauses for longer"
    pools.look(1)
    assert pools.sizes("good") == [len(have.plan.members)]
    pools.stage.cluster.change(JOBS, "ns", "good", lambda raw: raw["metadata"].update(generation=2))
    pools.look(61)
    assert pools.sizes("good") == [4], "at once after an edit of the spec"


@pytest.mark.parametrize(("how", "size"), [("live", 2), ("in place", 1)])
def test_a_job_that_restarts_for_another_size_has_to_gain_more_by_it(how: str, size: int) -> None:
    def was_resized(raw: Json) -> None:
        raw["status"]["history"][-1].update(how=how, disruption="SizeChange")

    pools = Pools("good", maxReplicas=2)
    pools.stage.cluster.change(JOBS, "ns", "good", was_resized)
    pools.told = {"good": replace(SCALES, most_batch=512, accumulates=False, c_in=0.17, c_out=0.17)}
    pools.look()
    pools.look(61)
    assert pools.sizes("good") == [size]


def _not_ready(raw: Json) -> None:
    raw["status"]["conditions"][0]["status"] = "Unknown"
    raw["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]


def _cordoned(raw: Json) -> None:
    raw["spec"]["unschedulable"] = True


@pytest.mark.parametrize(
    ("change", "disruption", "size"),
    [(_not_ready, {}, 4), (_cordoned, {"onCordon": "Ignore"}, 4), (_cordoned, {"onCordon": "Move"}, 2)],
)
def test_a_node_counts_while_members_train_on_it_and_need_not_leave(change: Any, disruption: Any, size: int) -> None:
    pools = _with_three_members()
    pools.stage.cluster.change(JOBS, "ns", "good", lambda raw: raw["spec"].update(disruption=disruption))
    for node in pools.nodes[:2]:
        pools.stage.cluster.change(NODES, "", node, change)
    pools.look(61)
    assert pools.sizes("good") == [size]


def test_a_silent_node_counts_no_more_once_its_member_has_ended() -> None:
    pools = _with_three_members(maxReplicas=3)
    pools.stage.cordon(pools.nodes[3])
    pools.stage.cluster.change(NODES, "", pools.nodes[0], _not_ready)
    pools.look(61)
    assert pools.sizes("good") == [3]
    pod = next(raw for raw in pools.stage.pods() if raw["spec"]["nodeName"] == pools.nodes[0])
    pools.stage.end_pod(pod["metadata"]["name"], "", exit_code=137)
    pools.look(1)
    assert pools.sizes("good") == [2]


def _with_three_members(**elastic: Any) -> Pools:
    """A job that trains on three of the four nodes when it joins its pool."""
    pools = Pools("good", policy=None, **elastic)
    pools.stage.cluster.change(JOBS, "ns", "good", lambda raw: raw["spec"]["elastic"].update(policy="Goodput"))
    pools.look()
    assert pools.sizes("good") == [3]
    pools.told = {"good": SCALES}
    return pools


class Refusing(MemoryCluster):
    """An API server that refuses each status with a size."""

    error: type[Exception] | None = None

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if self.error is not None and "scaling" in body["status"]:
            raise self.error("no")
        return await super().replace_status(resource, namespace, name, body)


def test_a_refused_size_costs_nothing_but_itself() -> None:
    cluster = Refusing()
    pools = Pools("one", "two", cluster=cluster)
    cluster.error = Forbidden
    pools.look()
    assert pools.sizes("one", "two") == []
    cluster.error = Unavailable
    pools.stage.wait(60)
    with pytest.raises(Unavailable):
        pools.look()
    cluster.error = None
    pools.look()
    assert pools.sizes("one", "two") == [1, 1]


def test_a_job_whose_size_is_refused_is_left_alone_for_a_minute() -> None:
    cluster = Refusing()
    pools = Pools("one", cluster=cluster)
    cluster.error = Forbidden
    pools.look()
    cluster.error = None
    pools.look(59)
    assert pools.sizes("one") == []
    pools.look(1)
    assert pools.sizes("one") == [1]


class Meanwhile(Refusing):
    """Each job becomes due while its size is under way, and a worker asks for one."""

    pools: Pools
    handed_out: list[object]

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if "scaling" in body["status"]:
            self.pools.stage.queue.add((namespace, name))
            self.handed_out.append(self.pools.stage.queue._schedule.pop(self.pools.stage.now.timestamp()))
        return await super().replace_status(resource, namespace, name, body)


@pytest.mark.parametrize("error", [None, Conflict, Forbidden, Unavailable])
def test_no_round_of_a_job_begins_while_its_size_is_under_way_and_one_does_afterwards(
    error: type[Exception] | None,
) -> None:
    cluster = Meanwhile()
    pools = cluster.pools = Pools("one", cluster=cluster)
    cluster.handed_out, cluster.error = [], error
    with contextlib.suppress(Unavailable):
        asyncio.run(pools.keeper.look(pools.stage.actor, pools.stage.queue))
    assert cluster.handed_out == [None]
    assert pools.stage.queue._schedule.pop(pools.stage.now.timestamp()) == ("ns", "one")


def test_a_job_that_a_worker_holds_is_given_its_size_at_the_next_look() -> None:
    pools = Pools("one")
    pools.stage.queue.add(("ns", "one"))
    assert pools.stage.queue._schedule.pop(pools.stage.now.timestamp()) == ("ns", "one")
    pools.look()
    assert pools.sizes("one") == []
    assert pools.stage.queue.holds(("ns", "one"))
    pools.stage.queue.done(("ns", "one"))
    pools.look()
    assert pools.sizes("one") == [1]


def test_a_pool_that_cannot_be_shared_does_not_stop_another(caplog: pytest.LogCaptureFixture) -> None:
    """A request that is so small that no node's memory can be counted in it."""
    pools = Pools()
    raw = job("odd", elastic=SHARES | {"pool": "odd"}, checkpoint={"uri": "s3://bucket/odd"})
    raw["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"memory": "1e-30"}}
    pools.stage.cluster.change(NODES, "", "n1", lambda node: node["status"].update(allocatable={"memory": "30Gi"}))
    pools.stage.apply(raw)
    pools.add("good")
    for _ in range(3):
        pools.look(1)
    assert pools.sizes("good") == [1]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "pool 'odd' of namespace ns: an unexpected error, its jobs keep their sizes, tried again in 60 s"
    ]


def _node(name: str = "n", **changes: Any) -> NodeRecord:
    raw: Json = {
        "metadata": {"name": name, "labels": {"pool": "gpu"}},
        "spec": changes.get("spec", {}),
        "status": {
            "conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
            "allocatable": {"cpu": "7900m", "memory": "30Gi", "nvidia.com/gpu": "4"},
        },
    }
    record = read(NODES, raw)
    assert isinstance(record, NodeRecord)
    return record


def _asks(requests: dict[str, str] | None = None, each: int = 1, **pod: Any) -> Any:
    raw = job(elastic=SHARES, processesPerReplica=each)
    raw["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": requests or {}}
    raw["spec"]["template"]["spec"].update(pod)
    record = read(JOBS, raw)
    assert isinstance(record, JobRecord)
    return record.spec


@pytest.mark.parametrize(
    ("asks", "node", "devices"),
    [
        (_asks(), _node(), 1),
        (_asks(each=4), _node(), 4),
        (_asks({"nvidia.com/gpu": "1"}), _node(), 4),
        (_asks({"nvidia.com/gpu": "2"}, each=2), _node(), 4),
        (_asks({"nvidia.com/gpu": "1", "cpu": "3"}), _node(), 2),
        (_asks({"memory": "31Gi"}), _node(), 0),
        (_asks({"example.com/other": "1"}), _node(), 0),
        (_asks(nodeSelector={"pool": "gpu"}), _node(), 1),
        (_asks(nodeSelector={"pool": "cpu"}), _node(), 0),
        (_asks(), _node(ready="False"), 0),
        (_asks(), _node(spec={"unschedulable": True}), 0),
        (_asks(), _node(spec={"taints": [{"key": "a", "effect": "NoSchedule"}]}), 0),
        (_asks(), _node(spec={"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}), 1),
        (
            _asks(tolerations=[{"key": "a", "operator": "Exists"}]),
            _node(spec={"taints": [{"key": "a", "effect": "NoSchedule"}]}),
            1,
        ),
    ],
)
def test_what_a_node_has_for_a_job(asks: Any, node: NodeRecord, devices: int) -> None:
    assert pool_of([asks], [node]).devices == devices


def test_a_node_has_at_least_the_devices_that_are_trained_on_there() -> None:
    """As while what serves its devices restarts: the node shows none."""
    asks = _asks({"example.com/other": "1"})
    assert pool_of([asks], [_node("a"), _node("b")], {"b": 2, "gone": 1}) == Pool(((2, 1),))
    assert pool_of([_asks(each=4)], [_node("a")], {"a": 1}) == Pool(((4, 1),))


class LookedAt(dict[str, str]):
    """Labels that count how often they were compared."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()


def test_a_node_is_looked_at_once_for_all_jobs_that_ask_for_the_same() -> None:
    """Each of hundreds of jobs with each of hundreds of nodes took half a second of every two."""
    some = {"nvidia.com/gpu": "1"}
    tolerates = [{"key": "a", "operator": "Exists"}]
    jobs = [_asks(some), _asks(some), _asks(some, tolerations=tolerates), _asks(some, tolerations=tolerates)]
    labels = LookedAt()
    assert pool_of(jobs, [replace(_node(), labels=labels)]).devices == 4
    assert labels.times == 2


def test_nodes_are_counted_by_their_shape() -> None:
    asks = _asks({"nvidia.com/gpu": "1"})
    assert pool_of([asks], [_node("a"), _node("b"), _node("c", ready="False")]) == Pool(((4, 2),))
    assert pool_of([], [_node()]) == Pool(())


def test_a_wish_for_a_node_stays_until_it_is_there() -> None:
    """The job has two members, and its third waits for a node of an autoscaler."""
    table = {size: Speedup(float(size), float(size)) for size in range(1, 5)}
    job_now = PoolJob("one", 10.0, 1, has=2, speedups=table)
    pool = Pool(((1, 2),))
    assert sizes_in(pool, [job_now], {"one": 2})[0] == {"one": 3}
    asked = replace(job_now, has=3)
    assert sizes_in(pool, [asked], {"one": 2})[0] == {"one": 3}
    larger = Pool(((1, 3),))
    assert sizes_in(larger, [asked], {"one": 2})[0] == {"one": 3}, "no second node before its member has joined"
    assert sizes_in(larger, [asked], {"one": 3})[0] == {"one": 4}


def test_no_node_is_wished_for_before_jobs_have_the_room_that_there_is() -> None:
    """Joiners that wait for a node would only delay those that have one."""
    table = {size: Speedup(float(size), float(size)) for size in range(1, 5)}
    grows, pool = PoolJob("one", 10.0, 1, has=1, speedups=table), Pool(((1, 3),))
    assert sizes_in(pool, [grows], {"one": 1}) == ({"one": 3}, pool)
    assert sizes_in(pool, [replace(grows, has=3)], {"one": 3})[1].devices == 4


def test_a_job_whose_nodes_have_left_does_not_wait_for_others() -> None:
    table = {size: Speedup(float(size), float(size)) for size in range(1, 5)}
    job_now, pool = PoolJob("one", 10.0, 1, has=3, speedups=table), Pool(((1, 2),))
    assert sizes_in(pool, [job_now], {"one": 3}) == ({"one": 2}, pool)


def test_no_job_gets_what_only_another_node_would_make_worth_having() -> None:
    """A size that takes two nodes here and one there has room here, too: nothing would be pending."""
    speeds = {1: Speedup(1.0, 1.0), 2: Speedup(1.9, 0.8)}
    jobs = [PoolJob(name, 10.0, 1, has=has, speedups=speeds) for name, has in (("one", 2), ("two", 1))]
    pool = Pool(((2, 1), (1, 2)))
    assert sizes_in(pool, jobs, {"one": 2, "two": 1}) == ({"one": 2, "two": 1}, pool)
