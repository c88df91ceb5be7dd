"""Evictions from the watch to the operator's answer, around a cluster in memory; and how they are found at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from perdure.wire import ANNOTATION_ASSIGNMENT, Leave, Train, read_assignment
from perdure_operator.cluster.election import LeaseSettings
from perdure_operator.cluster.protocol import (
    EVICTIONS,
    PODS,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Json,
    NotFound,
    Operation,
    Resource,
    Unavailable,
)
from perdure_operator.loop import evictions as looked_for
from perdure_operator.loop.leader import Clocks, Leader
from tests.support import evictions
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW
from tests.support.stage import Stage


class Refusing(MemoryCluster):
    """Whose answers, or LISTs, of Evictions end in an error."""

    def __init__(self, *, answers: Exception | None = None, lists: Exception | None = None) -> None:
        super().__init__()
        self._answers, self._lists = answers, lists
        self.asked = 0

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        self.asked += 1
        if self._answers:
            raise self._answers
        return await super().patch_status(resource, namespace, name, operations)

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        if resource == EVICTIONS and self._lists:
            raise self._lists
        return await super().list(resource, namespace, selector=selector)

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        yield await self.list(resource, namespace, selector=selector)


def training(cluster: MemoryCluster | None = None) -> Stage:
    stage = Stage(cluster, responds=True)
    for node in ("n1", "n2", "n3"):
        stage.node(node)
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage


def ask(stage: Stage, pod: str) -> None:
    """The pod's eviction is requested, and it is the operator's turn."""
    uid = next(raw["metadata"]["uid"] for raw in stage.pods() if raw["metadata"]["name"] == pod)
    raw = evictions.eviction("ns", pod, uid)
    asyncio.run(stage.cluster.create(EVICTIONS, "ns", raw))
    status = evictions.turn_of_the_operator(stage.now)
    stage.cluster.change(EVICTIONS, "ns", raw["metadata"]["name"], lambda one: one.update(status=status))


def answer(stage: Stage, pod: str) -> Json:
    return evictions.answer_of(asyncio.run(stage.cluster.get(EVICTIONS, "ns", f"evict-{pod}")))


def told(stage: Stage) -> list[type]:
    """What the two first members are to do."""
    words = [raw["metadata"]["annotations"][ANNOTATION_ASSIGNMENT] for raw in stage.pods()]
    return [type(read_assignment(one)) for one in words[:2]]


class TestAnswers:
    def test_a_request_moves_the_member_and_is_answered_in_its_place(self) -> None:
        stage = training()
        first = stage.names()[0]
        ask(stage, first)
        stage.settle()
        said = answer(stage, first)
        assert said["heartbeatTime"] == evictions.stamp(NOW)
        assert said["message"] == f"{first} is about to be replaced"
        raw = asyncio.run(stage.cluster.get(EVICTIONS, "ns", f"evict-{first}"))
        assert raw["status"]["responders"][1] == {"name": evictions.EVICTOR}
        stage.wait(1)
        assert told(stage) == [Leave, Leave]

    def test_a_request_that_came_before_its_pod_was_known_counts(self) -> None:
        stage = training()
        first = stage.names()[0]
        ask(stage, first)
        successor = stage.restarted()
        successor.start()
        assert answer(successor, first)["heartbeatTime"]
        successor.wait(1)
        assert told(successor) == [Leave, Leave]

    def test_a_request_about_a_pod_of_no_job_moves_no_member(self) -> None:
        stage = training()
        asyncio.run(stage.cluster.create(EVICTIONS, "ns", evictions.eviction("ns", "stranger", "u")))
        before = list(stage.cluster.writes)
        stage.wait(5)
        assert stage.cluster.writes == before

    @pytest.mark.parametrize(
        "error", [Conflict("changed"), Invalid("not your turn"), Forbidden("no"), NotFound("gone")]
    )
    def test_an_answer_that_is_refused_holds_up_nothing_and_is_not_tried_at_once(
        self, error: ApiError, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster = Refusing(answers=error)
        stage = training(cluster)
        ask(stage, stage.names()[0])
        stage.settle()
        stage.wait(1)
        assert told(stage) == [Leave, Leave]
        stage.wait(5)
        assert cluster.asked == 1
        stage.wait(20)
        assert cluster.asked == 2
        assert caplog.text.count("it is not answered now, and later again") == 2
        assert "again in" not in caplog.text  # no round has failed

    def test_without_the_watch_for_them_nothing_is_known_of_requests(self) -> None:
        stage = Stage()
        for node in ("n1", "n2"):
            stage.node(node)
        stage.apply()
        stage.start()
        stage.run_pods(["n1", "n2"])
        stage.settle()
        assert all("evictionResponders" not in raw["spec"] for raw in stage.pods())
        ask(stage, stage.names()[0])
        stage.wait(1)
        assert told(stage) == [Train, Train]

    def test_what_is_deleted_is_forgotten(self) -> None:
        stage = training()
        first = stage.names()[0]
        ask(stage, first)
        stage.settle()
        stage.cluster.remove(EVICTIONS, "ns", f"evict-{first}")
        stage.wait(2)
        assert told(stage) == [Train, Train]
        assert stage.cache.keys(EVICTIONS) == []

    @pytest.mark.parametrize("error", [Forbidden("no"), NotFound("not served any more")])
    def test_where_they_cannot_be_listed_jobs_go_on(self, error: ApiError) -> None:
        stage = training(Refusing(lists=error))
        assert told(stage) == [Train, Train]

    def test_a_heartbeat_follows_without_an_event(self) -> None:
        stage = training()
        first = stage.names()[0]
        ask(stage, first)
        stage.settle()
        stage.wait(1)
        stage.wait(25)
        stage.wait(60)
        assert answer(stage, first)["heartbeatTime"] == evictions.stamp(NOW + timedelta(seconds=86))


class TestFound:
    def test_not_served_is_said_once_and_nothing_else_is_asked(self, caplog: pytest.LogCaptureFixture) -> None:
        assert not found(Refusing(lists=AssertionError("listed")), caplog)
        assert len(caplog.messages) == 1
        assert "does not serve evictions.lifecycle.k8s.io/v1alpha1" in caplog.messages[0]

    def test_served_and_readable(self, caplog: pytest.LogCaptureFixture) -> None:
        assert found(serving(Refusing()), caplog)
        assert "serves evictions" in caplog.messages[0]

    def test_without_the_right_they_are_not_answered_and_it_is_said_what_to_do(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert not found(serving(Refusing(lists=Forbidden("no"))), caplog)
        assert "install the chart's roles" in caplog.messages[0]

    def test_a_server_that_does_not_answer_stops_no_start(self, caplog: pytest.LogCaptureFixture) -> None:
        assert not found(serving(Refusing(lists=Unavailable("no answer"))), caplog)
        assert "cannot tell" in caplog.messages[0]

    @pytest.mark.parametrize("known", [True, False])
    def test_what_has_changed_since_the_start_begins_a_new_process(self, known: bool) -> None:
        same, other = (serving(Refusing()), Refusing()) if known else (Refusing(), serving(Refusing()))
        asyncio.run(looked_for.require_unchanged(same, None, known=known))
        with pytest.raises(looked_for.Outdated):
            asyncio.run(looked_for.require_unchanged(other, None, known=known))

    def test_a_right_that_is_still_lacking_is_no_change(self) -> None:
        lacking = serving(Refusing(lists=Forbidden("no")))
        asyncio.run(looked_for.require_unchanged(lacking, None, known=False))

    def test_the_leader_ends_without_having_failed_and_gives_its_lease_back(self) -> None:
        cluster = MemoryCluster()

        async def changed() -> None:
            raise looked_for.Outdated("they are served now")

        async def scene() -> Leader:
            leader = Leader(
                cluster, LeaseSettings("system"), "one", workers=0, clocks=Clocks(sleep=forever), unchanged=changed
            )
            leader.start()
            async with asyncio.timeout(10):
                await leader.over.wait()
            await leader.stop()
            return leader

        leader = asyncio.run(scene())
        assert not leader.failed
        assert not leader.leading


async def forever(_: float) -> None:
    await asyncio.Event().wait()


def serving(cluster: Refusing) -> Refusing:
    cluster.served = {PODS, EVICTIONS}
    return cluster


def found(cluster: Refusing, caplog: pytest.LogCaptureFixture) -> bool:
    with caplog.at_level(logging.INFO):
        return asyncio.run(looked_for.found(cluster, None))
