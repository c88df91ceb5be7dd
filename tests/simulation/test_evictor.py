"""The rules of Evictions, as observed on a real API server, and the controller that does not exist yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest

from tests.simulation.apiserver import ApiServer
from tests.simulation.controllers import Budgets
from tests.simulation.eviction_rules import EVICTOR
from tests.simulation.evictor import LATE_SECONDS, PATIENCE, Evictor
from tests.simulation.objects import BUDGETS, EPOCH, EVICTIONS, PODS, REQUESTS, Json, Refused, stamp, uid_of
from tests.simulation.world import World
from tests.support import evictions
from tests.support.evictions import OPERATOR

NS = "team"
Change = Callable[[Json], object]


def pod(name: str = "p1", **spec: object) -> Json:
    container = {"name": "c", "image": "c"}
    return {"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"containers": [container], **spec}}


def named(name: str, priority: int) -> Json:
    return {"name": name, "priority": priority}


def moment(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


@pytest.fixture
def server() -> ApiServer:
    """At second 100, with the gate on."""
    server = ApiServer(lambda: 100.0, random.Random(1))  # noqa: S311 - repeatable
    server.evictions = True
    return server


@pytest.fixture
def begun(server: ApiServer) -> ApiServer:
    """An Eviction e whose turn is the operator's."""
    server.create(EVICTIONS, NS, evictions.eviction(NS, "p1", "u1", "e"), by="test")
    tell(server, lambda _: evictions.turn_of_the_operator(moment(100)))
    return server


def tell(server: ApiServer, how: Callable[[Json], Json]) -> None:
    def change(raw: Json) -> None:
        raw["status"] = how(raw.get("status") or {})

    server.change_status(EVICTIONS, NS, "e", change, by="test")


def answer(server: ApiServer, name: str, **fields: str) -> None:
    def change(raw: Json) -> None:
        next(one for one in raw["status"]["responders"] if one["name"] == name).update(fields)

    server.change_status(EVICTIONS, NS, "e", change, by="test")


@pytest.mark.parametrize("state", ["Completed", "Interrupted"])
def test_what_a_real_api_server_takes_from_a_controller_is_taken(begun: ApiServer, state: str) -> None:
    answer(begun, OPERATOR, heartbeatTime=stamp(100), completionTime=stamp(100), message="done")
    tell(begun, lambda status: evictions.handed_on(status, moment(100), state))
    assert begun.get(EVICTIONS, NS, "e")["status"]["targetResponders"][1]["state"] == "Active"


@pytest.mark.parametrize("end", [evictions.canceled, evictions.evicted])
def test_both_ends_are_taken_and_stay(begun: ApiServer, end: Callable[[Json, datetime], Json]) -> None:
    answer(begun, OPERATOR, completionTime=stamp(100))
    tell(begun, lambda status: end(status, moment(100)))
    with pytest.raises(Refused, match="cannot be reverted"):
        tell(begun, lambda status: status | {"conditions": []})


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        (EVICTOR, {"heartbeatTime": stamp(100)}, "immutable"),
        (OPERATOR, {"heartbeatTime": stamp(60)}, "present time"),
        (OPERATOR, {"heartbeatTime": stamp(90)}, "after startTime"),
        (OPERATOR, {"completionTime": stamp(140)}, "present time"),
        (OPERATOR, {"expectedCompletionTime": stamp(60)}, "past"),
        (OPERATOR, {"startTime": ""}, "Required"),
    ],
)
def test_answers_that_the_api_refuses(begun: ApiServer, name: str, fields: dict[str, str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        answer(begun, name, **fields)


def test_a_heartbeat_does_not_go_back(begun: ApiServer) -> None:
    answer(begun, OPERATOR, heartbeatTime=stamp(120))
    with pytest.raises(Refused, match="decreased"):
        answer(begun, OPERATOR, heartbeatTime=stamp(110))


def test_a_turn_that_is_over_is_over(begun: ApiServer) -> None:
    tell(begun, lambda status: evictions.handed_on(status, moment(100), "Interrupted"))
    with pytest.raises(Refused, match="may not become Active"):
        tell(begun, lambda _: evictions.turn_of_the_operator(moment(100)))
    with pytest.raises(Refused, match="immutable"):
        answer(begun, OPERATOR, heartbeatTime=stamp(100))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"evictionResponders": [named("a.example/b", 999)]}, "reserved"),
        ({"evictionResponders": 2 * [named("a.example/b", 1000)]}, "Duplicate"),
        ({"evictionResponders": [named(f"a.example/{n}", 1000) for n in range(11)]}, "Too many"),
        ({"evictionResponders": [named("a.example/b", 1000)], "schedulingGroup": {"podGroupName": "g"}}, "Forbidden"),
    ],
)
def test_pods_that_the_api_refuses(server: ApiServer, spec: Json, words: str) -> None:
    with pytest.raises(Refused, match=words):
        server.create(PODS, NS, pod(**spec), by="test")


def test_a_pod_names_its_responders_for_good(server: ApiServer) -> None:
    server.create(PODS, NS, pod(), by="test")
    more = [named("a.example/b", 1000)]
    with pytest.raises(Refused, match="may not change evictionResponders"):
        server.change(PODS, NS, "p1", lambda raw: raw["spec"].update(evictionResponders=more), by="test")


def test_without_the_gate_no_pod_is_named(server: ApiServer) -> None:
    server.evictions = False
    made = server.create(PODS, NS, pod(evictionResponders=[named("a.example/b", 1000)]), by="test")
    assert "evictionResponders" not in made["spec"]
    assert not server.serves(EVICTIONS)


class Cluster:
    """A world with the controller, and a pod p1 that runs on a node."""

    def __init__(self, *responders: Json) -> None:
        self.world = World(1)
        self.world.server.evictions = True
        self.evictor = Evictor(self.world)
        Budgets(self.world)
        made = self.world.server.create(PODS, NS, pod(evictionResponders=list(responders)), by="test")
        self.uid = uid_of(made)
        self.world.server.bind(NS, "p1", "node-1")
        self.phase("Running")

    def phase(self, phase: str) -> None:
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        status = {"phase": phase, "conditions": [ready]}
        self.world.server.change_status(PODS, NS, "p1", lambda raw: raw.update(status=status), by="kubelet")

    def ask(self, requester: str = "example.com/one") -> None:
        spec = {"requester": requester, "intent": "Eviction", "target": {"pod": {"name": "p1", "uid": self.uid}}}
        name = requester.rpartition("/")[2]
        self.world.server.create(REQUESTS, NS, {"metadata": {"name": name}, "spec": spec}, by="test")

    def withdraw(self, name: str) -> None:
        self.world.server.change(REQUESTS, NS, name, lambda raw: raw["spec"].update(intent="Withdrawn"), by="test")

    def wait(self, seconds: float) -> None:
        self.world.loop.run_until_complete(asyncio.sleep(seconds))

    def say(self, name: str, **fields: str) -> None:
        def change(raw: Json) -> None:
            next(one for one in raw["status"]["responders"] if one["name"] == name).update(fields)

        self.world.server.change_status(EVICTIONS, NS, self.uid, change, by="test")

    @property
    def now(self) -> str:
        return stamp(self.world.now)

    @property
    def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.status["targetResponders"]}

    @property
    def status(self) -> Json:
        found: Json = self.world.server.get(EVICTIONS, NS, self.uid)["status"]
        return found

    @property
    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.status.get("conditions") or ()]


@pytest.fixture
def make() -> Iterator[Callable[..., Cluster]]:
    made = list[Cluster]()

    def new(*responders: Json) -> Cluster:
        made.append(Cluster(*responders))
        return made[-1]

    yield new
    for one in made:
        one.world.loop.close()


@pytest.fixture
def asked(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(named("a.example/late", 5000), named(OPERATOR, 10000))
    cluster.ask()
    cluster.wait(2)
    return cluster


def test_turns_go_by_priority(asked: Cluster) -> None:
    assert asked.states == {OPERATOR: "Active", "a.example/late": "Inactive", EVICTOR: "Inactive"}
    asked.say(OPERATOR, completionTime=asked.now)
    asked.wait(6)
    assert asked.states == {OPERATOR: "Completed", "a.example/late": "Active", EVICTOR: "Inactive"}


def test_a_silent_responder_has_had_its_turn_and_the_last_one_evicts(asked: Cluster) -> None:
    asked.wait(2 * PATIENCE[1] + 20)
    assert asked.states == {OPERATOR: "Interrupted", "a.example/late": "Interrupted", EVICTOR: "Active"}
    assert asked.world.server.get(PODS, NS, "p1")["metadata"]["deletionTimestamp"]
    asked.world.server.finish_delete(PODS, asked.world.server.get(PODS, NS, "p1"), by="kubelet")
    asked.wait(10)
    assert asked.states[EVICTOR] == "Completed"
    assert asked.reasons == ["PodDeleted"]


def test_the_last_one_heeds_a_budget(make: Callable[..., Cluster]) -> None:
    cluster = make()
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    cluster.world.server.create(BUDGETS, NS, {"metadata": {"name": "b"}, "spec": spec}, by="test")
    cluster.wait(2)
    cluster.ask()
    cluster.wait(30)
    assert "deletionTimestamp" not in cluster.world.server.get(PODS, NS, "p1")["metadata"]
    assert cluster.states == {EVICTOR: "Active"}


def test_the_last_withdrawal_cancels(asked: Cluster) -> None:
    asked.ask("example.com/two")
    asked.wait(2)
    asked.withdraw("one")
    asked.wait(2)
    assert asked.reasons == []
    asked.world.server.delete(REQUESTS, NS, "two", by="test")
    asked.wait(2)
    assert asked.reasons == ["CanceledDueToNoRequesters"]
    assert asked.states[OPERATOR] == "Canceled"


def test_a_pod_that_ends_is_evicted_once_that_is_reported(asked: Cluster) -> None:
    asked.phase("Succeeded")
    asked.wait(LATE_SECONDS / 2)
    assert asked.reasons == []
    asked.say(OPERATOR, completionTime=asked.now)
    asked.wait(2)
    assert asked.reasons == ["PodTerminal"]
    assert asked.states[OPERATOR] == "Completed"


def test_a_responder_that_does_not_report_is_not_waited_for_for_ever(asked: Cluster) -> None:
    asked.phase("Failed")
    asked.wait(LATE_SECONDS + 10)
    assert asked.reasons == ["PodTerminal"]
    assert asked.states[OPERATOR] == "Interrupted"
