"""One leader at a time, a Lease that is given back, an end for a leader that cannot renew; the clock is injected."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from perdure_operator.cluster.election import RENEWALS, Deposed, Election, Settings, identity
from perdure_operator.cluster.protocol import LEASES, Forbidden, Json, Resource, Unavailable
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW

SETTINGS = Settings(namespace="system", seconds=15)


class Clock:
    """Time passes only while somebody sleeps; `each` is called at every sleep."""

    def __init__(self, each: Callable[[float], None] | None = None) -> None:
        self.time = 1000.0
        self.each = each or (lambda _: None)

    def __call__(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.each(self.time)


class Enough(Exception):
    """The test has seen enough."""


class FlakyCluster(MemoryCluster):
    """Does not answer while `down`."""

    down = False

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        if self.down:
            raise Unavailable("no answer")
        return await super().get(resource, namespace, name)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if self.down:
            raise Unavailable("no answer")
        return await super().replace(resource, namespace, name, body)


def candidate(cluster: MemoryCluster, name: str, clock: Clock) -> Election:
    cluster.sleep = clock.sleep
    return Election(cluster, SETTINGS, name, monotonic=clock, sleep=clock.sleep, now=lambda: NOW)


def holder(cluster: MemoryCluster) -> str:
    raw = asyncio.run(cluster.get(LEASES, "system", "perdure-operator"))
    return str(raw["spec"]["holderIdentity"])


def run(*steps: Awaitable[None]) -> None:
    async def all_of_them() -> None:
        for step in steps:
            await step

    asyncio.run(all_of_them())


def stop_at(limit: float) -> Callable[[float], None]:
    def each(now: float) -> None:
        if now > limit:
            raise Enough

    return each


def test_the_first_candidate_leads_at_once() -> None:
    cluster, clock = MemoryCluster(), Clock()
    run(candidate(cluster, "a", clock).lead())
    assert holder(cluster) == "a"
    assert clock.time == 1000.0


def test_a_second_candidate_waits_as_long_as_the_first_one_renews() -> None:
    cluster = MemoryCluster()
    first = candidate(cluster, "a", Clock())
    run(first.lead())

    def renew(now: float) -> None:
        cluster.change(LEASES, "system", "perdure-operator", lambda raw: raw["spec"].update(renewTime=str(now)))
        stop_at(1100)(now)

    second = candidate(cluster, "b", Clock(renew))
    with pytest.raises(Enough):
        run(second.lead())
    assert not second.leading


def test_a_lease_that_is_not_renewed_is_taken_after_its_duration_by_the_candidates_own_clock() -> None:
    cluster, clock = MemoryCluster(), Clock()
    run(candidate(cluster, "a", Clock()).lead())
    run(candidate(cluster, "b", clock).lead())
    assert holder(cluster) == "b"
    assert 15 <= clock.time - 1000 < 20


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    cluster, clock = MemoryCluster(), Clock()
    first = candidate(cluster, "a", Clock())
    run(first.lead(), first.release())
    assert holder(cluster) == ""
    run(candidate(cluster, "b", clock).lead())
    assert clock.time == 1000.0


class WatchedCluster(MemoryCluster):
    """Its watch tells of a change at once; the leader gives its Lease back after some seconds."""

    def __init__(self, clock: Clock, released: float) -> None:
        super().__init__()
        self.clock = clock
        self.released = released

    async def changed(self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float) -> None:
        if self.clock.time < self.released <= self.clock.time + seconds:
            self.clock.time = self.released
            self.change(LEASES, namespace, name, lambda raw: raw["spec"].update(holderIdentity=""))
        else:
            await super().changed(resource, namespace, name, version=version, seconds=seconds)


@pytest.mark.parametrize("released", [1000.1, 1001.0, 1007.3])
def test_a_candidate_learns_at_once_that_the_lease_was_given_back(released: float) -> None:
    clock = Clock()
    cluster = WatchedCluster(clock, released)
    run(candidate(cluster, "a", Clock()).lead(), candidate(cluster, "b", clock).lead())
    assert holder(cluster) == "b"
    assert clock.time - released < 0.1


def test_a_candidate_that_may_not_watch_looks_now_and_then() -> None:
    class Unwatchable(MemoryCluster):
        async def changed(self, *_: object, **__: object) -> None:
            raise Forbidden("leases is forbidden: cannot watch")

    cluster, clock = Unwatchable(), Clock()
    run(candidate(cluster, "a", Clock()).lead(), candidate(cluster, "b", clock).lead())
    assert 15 <= clock.time - 1000 < 20


def test_a_leader_that_was_frozen_knows_that_it_may_not_write_any_more() -> None:
    cluster, clock = MemoryCluster(), Clock()
    leader = candidate(cluster, "a", clock)
    assert not leader.still_leading()
    run(leader.lead())
    clock.time += SETTINGS.seconds * 5 / 7
    assert leader.still_leading()
    clock.time += SETTINGS.seconds * 1.01 / 7
    assert not leader.still_leading()


def test_the_age_of_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    """The answer may come much later than the API server has stored it and others have seen it."""

    class SlowToAnswer(MemoryCluster):
        async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
            raw = await super().create(resource, namespace, body, dry_run=dry_run)
            clock.time += 10
            return raw

    cluster, clock = SlowToAnswer(), Clock()
    leader = candidate(cluster, "a", clock)
    run(leader.lead())
    clock.time += 3
    assert not leader.still_leading()


def test_a_leader_that_cannot_renew_stops_before_another_may_start() -> None:
    cluster, clock = FlakyCluster(), Clock()
    leader = candidate(cluster, "a", clock)
    run(leader.lead())
    cluster.down = True
    with pytest.raises(Deposed, match="could not be renewed"):
        run(leader.hold())
    assert clock.time - 1000 < SETTINGS.seconds
    assert not leader.leading


class SlowToRefuse(MemoryCluster):
    """While `answers` last, each request fails after that many seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.answers: list[float] = []

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        self._refuse()
        return await super().get(resource, namespace, name)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self._refuse()
        return await super().replace(resource, namespace, name, body)

    def _refuse(self) -> None:
        if self.answers:
            self.clock.time += self.answers.pop(0)
            raise Unavailable("no answer")


@pytest.mark.parametrize("seconds", [5, 15, 60])
def test_however_slowly_renewals_fail_the_leader_has_stopped_before_the_lease_ends(seconds: int) -> None:
    settings = Settings(namespace="system", seconds=seconds)
    slowness = [0.0, settings.period / 2, settings.period]
    for delays in itertools.product(slowness, repeat=RENEWALS):
        clock = Clock()
        cluster = SlowToRefuse(clock)
        leader = Election(cluster, settings, "a", monotonic=clock, sleep=clock.sleep, now=lambda: NOW)
        run(leader.lead())
        cluster.answers = list(delays)
        with pytest.raises(Deposed):
            run(leader.hold())
        assert clock.time - 1000 < seconds, delays


def test_a_renewal_that_hangs_is_given_up_and_its_warning_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(MemoryCluster):
        async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
            if self.writes:
                await asyncio.get_running_loop().create_future()
            return await super().get(resource, namespace, name)

        async def replace(self, *_: object, **__: object) -> Json:
            never: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
            return await never

    async def play() -> None:
        leader = Election(Hanging(), Settings(namespace="system", seconds=1), "a")
        await leader.lead()
        async with asyncio.timeout(30):
            await leader.hold()

    with pytest.raises(Deposed):
        asyncio.run(play())
    assert {record.getMessage() for record in caplog.records if record.levelname == "WARNING"} == {
        "lease system/perdure-operator: no answer in time"
    }


def test_a_leader_survives_a_renewal_that_fails_once() -> None:
    cluster = FlakyCluster()

    def fail_now_and_then(now: float) -> None:
        cluster.down = not cluster.down
        stop_at(1200)(now)

    leader = candidate(cluster, "a", Clock(fail_now_and_then))
    run(leader.lead())
    with pytest.raises(Enough):
        run(leader.hold())
    assert leader.leading


def test_a_leader_renews_with_one_call_and_reads_its_lease_only_where_somebody_has_changed_it() -> None:
    class Reading(MemoryCluster):
        reads = 0

        async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
            self.reads += 1
            return await super().get(resource, namespace, name)

    cluster = Reading()

    def change_once(now: float) -> None:
        if 1050 < now < 1050 + SETTINGS.period:
            cluster.change(LEASES, "system", "perdure-operator", lambda raw: raw["metadata"].update(labels={"a": "b"}))
        stop_at(1100)(now)

    leader = candidate(cluster, "a", Clock(change_once))
    run(leader.lead())
    assert cluster.reads == 1
    with pytest.raises(Enough):
        run(leader.hold())
    assert leader.leading
    assert cluster.reads == 2


def test_a_leader_whose_lease_somebody_else_holds_stops_at_once() -> None:
    cluster, clock = MemoryCluster(), Clock()
    leader = candidate(cluster, "a", clock)
    run(leader.lead())
    cluster.change(LEASES, "system", "perdure-operator", lambda raw: raw["spec"].update(holderIdentity="b"))
    with pytest.raises(Deposed, match="held by b"):
        run(leader.hold())


def test_a_lease_of_somebody_else_is_not_given_back() -> None:
    cluster = MemoryCluster()
    leader = candidate(cluster, "a", Clock())
    run(leader.lead())
    cluster.change(LEASES, "system", "perdure-operator", lambda raw: raw["spec"].update(holderIdentity="b"))
    run(leader.release())
    assert holder(cluster) == "b"


def test_a_restarted_container_is_another_candidate() -> None:
    assert identity("pod") != identity("pod")
    assert identity("pod").startswith("pod_")
