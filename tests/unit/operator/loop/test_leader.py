"""The leader continues its work whatever happens while it reads everything live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from perdure_operator.cluster.election import LeaseSettings
from perdure_operator.cluster.protocol import JOBS, LEASES, Json, Resource, Unavailable
from perdure_operator.loop.leader import Clocks, Leader
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job


class FailsFirst(MemoryCluster):
    """Whose first LISTs of jobs end in these errors, one each."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        if resource == JOBS and self.errors:
            raise self.errors.pop(0)
        async for page in super().pages(resource, namespace, selector=selector):
            yield page


@pytest.mark.parametrize(
    "error", [Unavailable("overloaded"), RecursionError("a deep object"), TypeError("a strange object")], ids=repr
)
def test_a_resync_that_fails_is_repeated_and_ends_no_leader(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cluster = FailsFirst(error)
    asyncio.run(cluster.create(JOBS, "ns", job()))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 20:  # the Lease is renewed forever
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def scene() -> None:
        settings = LeaseSettings(namespace="system", seconds=15)
        settled = asyncio.Event()
        leader = Leader(cluster, settings, "one", workers=0, clocks=Clocks(sleep=sleep), settle=settled.set)
        leader.start()
        async with asyncio.timeout(10):
            assert await leader.queue.get() == ("ns", "digits")
            await settled.wait()
        assert not leader.over.is_set()
        await leader.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(scene())
    expected = isinstance(error, Unavailable)
    said = "not all objects could be read again, this is tried once more in 1 s: overloaded"
    unexpected = "an unexpected error as all objects were read again: jobs go on, tried again in 10 s"
    assert (said if expected else unexpected) in caplog.messages
    first, *_, last = caplog.messages
    assert first.startswith("this process is leading as one: it alone writes until it ends or loses lease system/")
    assert last == "this process has released lease system/perdure-operator: another can lead at once"


@pytest.mark.parametrize(("first", "waits"), [(True, [1, 2, 4, 30, 60, 15, 15]), (False, [1, 2, 4, 30, 60, 32, 60])])
def test_a_resync_that_fails_again_waits_longer_and_as_long_as_the_server_asks(first: bool, waits: list[float]) -> None:
    """Until the first has succeeded, the leader does nothing: it is not put off for a minute."""
    asked = [None, None, None, 30.0, 3600.0, None, None]
    cluster = FailsFirst(*(Unavailable("overloaded", retry_after=each) for each in asked))
    slept: list[float] = []

    async def scene() -> None:
        settled = asyncio.Event()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0)

        leader = Leader(
            cluster,
            LeaseSettings(namespace="system", seconds=15),
            "one",
            workers=0,
            clocks=Clocks(sleep=sleep, chance=lambda: 0.5),
            settle=settled.set,
        )
        if not first:
            leader._look_at(set())
        resync = asyncio.create_task(leader._resync())
        async with asyncio.timeout(10):
            await settled.wait()
        resync.cancel()

    asyncio.run(scene())
    assert slept[: len(asked)] == waits


def test_a_leader_that_cannot_list_one_kind_shows_that_it_does_nothing() -> None:
    cluster = FailsFirst(*[Unavailable("no such right")] * 5)
    shown: list[tuple[bool, bool]] = []

    async def scene() -> None:
        settled = asyncio.Event()

        async def sleep(_: float) -> None:
            if cluster.errors:
                facts = leader.freeze({}).facts
                shown.append((facts.leading, facts.synced))
            await asyncio.sleep(0)

        settings = LeaseSettings(namespace="system", seconds=15)
        leader = Leader(cluster, settings, "one", workers=0, clocks=Clocks(sleep=sleep), settle=settled.set)
        leader.start()
        async with asyncio.timeout(10):
            await settled.wait()
        facts = leader.freeze({}).facts
        await leader.stop()
        assert (facts.leading, facts.synced) == (True, True)

    asyncio.run(scene())
    assert set(shown) == {(True, False)}


def test_a_leader_whose_lease_another_has_taken_ends_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    cluster = MemoryCluster()

    async def scene() -> Leader:
        settings, led = LeaseSettings(namespace="system", seconds=1), asyncio.Event()
        leader = Leader(cluster, settings, "one", workers=0, settle=led.set)
        leader.start()
        await led.wait()
        cluster.change(LEASES, "system", "perdure-operator", lambda raw: raw["spec"].update(holderIdentity="two"))
        async with asyncio.timeout(10):
            await leader.over.wait()
        return leader

    assert asyncio.run(scene()).failed
    ended = "this operator process ends, and its pod starts another: lease system/perdure-operator is held by two"
    assert caplog.messages[-1] == ended


def test_only_a_leader_that_has_read_all_jobs_shows_them_to_metrics() -> None:
    cluster = MemoryCluster()
    asyncio.run(cluster.create(JOBS, "ns", job()))

    async def scene() -> None:
        settled = asyncio.Event()
        leader = Leader(cluster, LeaseSettings(namespace="system", seconds=15), "one", workers=0, settle=settled.set)
        await leader._observer.sync()  # as a follower's watch fills its cache
        before = leader.freeze({("GET", "200"): 3})
        leader.start()
        async with asyncio.timeout(10):
            await settled.wait()
        after = leader.freeze({})
        await leader.stop()
        assert (before.facts.leading, before.facts.lease_age, before.jobs) == (False, None, None)
        assert before.facts.requests == {("GET", "200"): 3}
        assert after.jobs is not None
        assert [one.key for one in after.jobs] == [("ns", "digits")]
        assert after.facts.leading
        assert after.facts.lease_age is not None
        assert leader.freeze({}).jobs is None

    asyncio.run(scene())
