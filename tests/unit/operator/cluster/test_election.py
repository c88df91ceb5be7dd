"""One leader at a time, a Lease that is given back, a leader that pauses before it ends; time is virtual.

Processes are those of the simulation: a frozen one runs nothing, and gets its timers and answers afterwards, as an
event loop does that was blocked, or had no CPU time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from perdure_operator.cluster.election import (
    LAST_RESORT,
    RENEWALS,
    Election,
    ElectionStep,
    LeaseLost,
    LeaseSettings,
    Seen,
    identity,
)
from perdure_operator.cluster.election import next_step as decided
from perdure_operator.cluster.protocol import LEASES, Forbidden, Json, OnChange, Resource, Unavailable
from tests.simulation.clock import Process, VirtualLoop
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW

SETTINGS = LeaseSettings(namespace="system", seconds=15)
PERIOD = SETTINGS.period
LEASE = (LEASES, "system", "perdure-operator")


def test_what_is_due_about_the_lease() -> None:
    nothing, free = Seen(exists=False), Seen(since=90.0)
    mine, other = Seen("me", 15.0, 90.0), Seen("other", 15.0, 90.0)
    table = [
        # seen, now, leading: due
        (nothing, 100.0, False, ElectionStep.CREATE),
        (nothing, 100.0, True, ElectionStep.CREATE),
        (free, 90.0, False, ElectionStep.TAKE),
        (free, 90.0, True, ElectionStep.END),  # another has led meanwhile, and released it
        (mine, 90.0, False, ElectionStep.TAKE),  # the answer to the write that took it was lost
        (mine, 100.0, True, ElectionStep.TAKE),
        (mine, 1000.0, True, ElectionStep.TAKE),  # no other has led
        (other, 90.0, False, ElectionStep.WAIT),
        (other, 104.9, False, ElectionStep.WAIT),
        (other, 105.0, False, ElectionStep.TAKE),
        (other, 104.9, True, ElectionStep.END),
        (other, 105.0, True, ElectionStep.END),
    ]
    for seen, now, leading, due in table:
        assert decided(seen, "me", now, leading=leading) is due, (seen, now, leading)


class Watched(MemoryCluster):
    """Counts the calls about the Lease, and has each of them wait where a test wants it to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.follows: list[float] = []
        self.before: Callable[[], Awaitable[None]] = _at_once
        self.after: Callable[[], Awaitable[None]] = _at_once

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        self.reads += 1
        await self.before()
        raw = await super().get(resource, namespace, name)
        await self.after()
        return raw

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        await self.before()
        raw = await super().replace(resource, namespace, name, body)
        await self.after()
        return raw

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        await self.before()
        raw = await super().create(resource, namespace, body, dry_run=dry_run)
        await self.after()
        return raw

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, on_change: OnChange
    ) -> None:
        self.follows.append(asyncio.get_running_loop().time())
        await super().follow(resource, namespace, name, version=version, seconds=seconds, on_change=on_change)


async def _at_once() -> None:
    """Nothing is waited for."""


def _to_nobody(_: Json | None) -> None:
    """Does nothing."""


def taking(seconds: float) -> Callable[[], Awaitable[None]]:
    return lambda: asyncio.sleep(seconds)


async def refused() -> None:
    raise Unavailable("no answer")


@dataclass
class Scene:
    """Candidates of one Lease, each in a process of its own."""

    cluster: Watched = field(default_factory=Watched)
    loop: VirtualLoop = field(default_factory=VirtualLoop)
    ended: dict[str, str] = field(default_factory=dict)
    """Why, by candidate."""

    def run(self, play: Coroutine[Any, Any, None]) -> None:
        self.loop.run(play)

    def candidate(self, name: str, settings: LeaseSettings = SETTINGS, api: MemoryCluster | None = None) -> Election:
        return Election(api or self.cluster, settings, name, monotonic=self.loop.time, now=lambda: NOW)

    def start(self, name: str, *, settings: LeaseSettings = SETTINGS, api: MemoryCluster | None = None) -> Replica:
        process, election = Process(self.loop, name), self.candidate(name, settings, api)

        async def live() -> None:
            try:
                await election.lead()
                await election.hold()
            except LeaseLost as error:
                self.ended[name] = str(error)

        process.start(live())
        return Replica(election, process)

    async def until_leading(self, replica: Replica, within: float = 600.0) -> float:
        end = self.loop.time() + within
        while not replica.election.still_leading():
            assert self.loop.time() < end
            await asyncio.sleep(0.01)
        return self.loop.time()

    async def never_two(self, seconds: float, replicas: Sequence[Replica]) -> None:
        """Looks now and then for so long."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            leading = [replica.process.name for replica in replicas if replica.election.still_leading()]
            assert len(leading) <= 1, (self.loop.time(), leading)
            await asyncio.sleep(0.05)

    def holder(self) -> str:
        return str(self.cluster._objects[LEASE]["spec"]["holderIdentity"])

    def give_to(self, holder: str) -> None:
        self.cluster.change(*LEASE, lambda raw: raw["spec"].update(holderIdentity=holder))


@dataclass
class Replica:
    election: Election
    process: Process


def test_the_first_candidate_leads_at_once() -> None:
    scene = Scene()
    scene.run(scene.candidate("a").lead())
    assert scene.holder() == "a"
    assert scene.loop.time() == 0.0


def test_a_second_candidate_waits_as_long_as_the_first_one_renews() -> None:
    scene = Scene()

    async def play() -> None:
        first = scene.start("a")
        await scene.until_leading(first)
        second = scene.start("b")
        await scene.never_two(1000.0, (first, second))
        assert first.election.still_leading()
        assert not second.election.leading

    scene.run(play())


def test_a_candidate_reads_the_lease_once_and_then_holds_one_watch_of_it() -> None:
    scene = Scene()

    async def play() -> None:
        await scene.until_leading(scene.start("a"))
        scene.cluster.reads = 0
        scene.start("b")
        await asyncio.sleep(1000.0)

    scene.run(play())
    assert scene.cluster.reads == 1
    assert len(scene.cluster.follows) == 4  # each of 300 s


@pytest.mark.parametrize("exists", [False, True])
def test_a_candidate_that_does_not_know_the_time_reads_the_lease_now_and_then_and_leads_once_it_does(
    exists: bool,
) -> None:
    scene = Scene()

    def now() -> datetime:
        if scene.loop.time() < 60.0:
            raise Unavailable("answers do not agree")
        return NOW

    async def play() -> None:
        if exists:
            other = scene.candidate("other")
            await other.lead()
            await other.release()
        scene.cluster.reads = 0
        await Election(scene.cluster, SETTINGS, "a", monotonic=scene.loop.time, now=now).lead()

    scene.run(play())
    assert 60.0 <= scene.loop.time() <= 60.0 + PERIOD
    assert 25 < scene.cluster.reads < 40


def test_a_lease_that_is_not_renewed_is_taken_after_its_duration_by_the_candidates_own_clock() -> None:
    scene = Scene()

    async def play() -> None:
        await scene.candidate("a").lead()
        await asyncio.sleep(7.0)
        await scene.candidate("b").lead()

    scene.run(play())
    assert scene.holder() == "b"
    assert 22.0 <= scene.loop.time() < 22.1


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    scene = Scene()

    async def play() -> None:
        first = scene.candidate("a")
        await first.lead()
        await first.release()
        assert scene.holder() == ""
        await scene.candidate("b").lead()

    scene.run(play())
    assert scene.loop.time() == 0.0


@pytest.mark.parametrize("released", [0.1, 1.0, 7.3, 299.9, 300.05, 301.0])
def test_a_candidate_learns_at_once_that_the_lease_was_given_back(released: float) -> None:
    scene = Scene()

    async def play() -> None:
        await scene.until_leading(scene.start("a"))
        scene.start("b")
        await asyncio.sleep(released)
        scene.give_to("")
        await asyncio.sleep(0.2)
        assert scene.holder() == "b"

    scene.run(play())


def test_a_candidate_takes_a_lease_that_was_deleted() -> None:
    scene = Scene()

    async def play() -> None:
        await scene.candidate("a").lead()
        scene.start("b")
        await asyncio.sleep(1.0)
        scene.cluster.remove(*LEASE)
        await asyncio.sleep(0.1)
        assert scene.holder() == "b"

    scene.run(play())


class Unwatchable(Watched):
    """Whose watches end at once, with an error or without."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    async def follow(self, *_: object, **__: object) -> None:
        self.follows.append(asyncio.get_running_loop().time())
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [Forbidden("cannot watch"), Unavailable("no answer"), None], ids=repr)
def test_a_candidate_whose_watch_ends_at_once_looks_now_and_then(error: Exception | None) -> None:
    scene = Scene(Unwatchable(error))

    async def play() -> None:
        first = scene.start("a")
        await scene.until_leading(first)
        second = scene.start("b")
        await scene.never_two(200.0, (first, second))
        assert not scene.ended
        first.process.kill()
        killed = scene.loop.time()
        assert await scene.until_leading(second) - killed < 15 + 2 * PERIOD

    scene.run(play())
    first, *more = scene.cluster.follows
    assert more[0] - first <= 0.2
    assert len(more) < 120


class Silent(Watched):
    """Whose watches tell nothing, and do not end: their connections are dead."""

    async def follow(self, resource: Resource, namespace: str, name: str, **options: Any) -> None:
        await super().follow(resource, namespace, name, **options | {"on_change": _to_nobody})


def test_a_candidate_whose_watch_has_died_takes_nothing_from_a_leader_that_renews() -> None:
    scene = Scene(Silent())

    async def play() -> None:
        first = scene.start("a")
        await scene.until_leading(first)
        second = scene.start("b")
        await scene.never_two(200.0, (first, second))
        assert not scene.ended
        first.process.kill()
        killed = scene.loop.time()
        assert await scene.until_leading(second) - killed < 2 * 15 + PERIOD

    scene.run(play())


@pytest.mark.parametrize(("asked", "waited"), [(None, PERIOD), (1.0, PERIOD), (3.0, 3.0), (300.0, 2 * PERIOD)])
def test_a_leader_waits_as_long_as_the_api_server_asks_and_as_it_can_afford(asked: float | None, waited: float) -> None:
    scene, tries = Scene(), list[float]()

    async def refuse() -> None:
        tries.append(scene.loop.time())
        raise Unavailable("too many requests", status=429, retry_after=asked)

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        scene.cluster.before = refuse
        await asyncio.sleep(20.0)
        assert not scene.ended

    scene.run(play())
    assert [later - before for before, later in itertools.pairwise(tries)] == pytest.approx([waited] * (len(tries) - 1))


def test_a_candidate_waits_as_long_as_the_api_server_asks() -> None:
    scene, tries = Scene(), list[float]()

    async def refuse() -> None:
        tries.append(scene.loop.time())
        raise Unavailable("too many requests", status=429, retry_after=3)

    async def play() -> None:
        scene.cluster.before = refuse
        scene.start("a")
        await asyncio.sleep(20.0)

    scene.run(play())
    assert [later - before for before, later in itertools.pairwise(tries)] == pytest.approx([3.0] * (len(tries) - 1))


def test_a_leader_that_was_frozen_knows_that_it_may_not_write_any_more() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.candidate("a")
        assert not leader.still_leading()
        await leader.lead()
        await asyncio.sleep(SETTINGS.seconds * 5 / 7)
        assert leader.still_leading()
        await asyncio.sleep(SETTINGS.seconds * 1.01 / 7)
        assert not leader.still_leading()

    scene.run(play())


def test_the_age_of_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    """The answer may come much later than the API server has stored it and others have seen it."""
    scene = Scene()

    async def play() -> None:
        scene.cluster.after = taking(4.0)
        leader = scene.candidate("a")
        async with asyncio.timeout(60):
            await leader.lead()
        sent = scene.loop.time() - 4.0
        await asyncio.sleep(sent + SETTINGS.seconds * 6 / 7 - 0.1 - scene.loop.time())
        assert leader.still_leading()
        await asyncio.sleep(0.2)
        assert not leader.still_leading()

    scene.run(play())


def test_a_leader_that_cannot_renew_stops_writing_before_another_may_lead_and_ends_as_the_last_resort() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        scene.cluster.before = refused
        await asyncio.sleep(SETTINGS.seconds - 0.01)
        assert not leader.election.still_leading()
        await asyncio.sleep(LAST_RESORT * SETTINGS.seconds - 2 * SETTINGS.seconds)
        assert not scene.ended
        await asyncio.sleep(2 * SETTINGS.seconds)
        assert "could not be renewed" in scene.ended["a"]
        assert not leader.election.leading

    scene.run(play())


def test_a_leader_that_was_not_replaced_continues_when_the_api_server_answers_again() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        scene.cluster.before = refused
        await asyncio.sleep(3 * SETTINGS.seconds)
        assert not leader.election.still_leading()
        scene.cluster.before = _at_once
        await asyncio.sleep(PERIOD)
        assert leader.election.still_leading()

    scene.run(play())
    assert not scene.ended


class Path(Watched):
    """One replica's way to the cluster of another: its requests fail one after another, each after some seconds."""

    def __init__(self, cluster: Watched, ends: Sequence[tuple[float, bool]]) -> None:
        super().__init__()
        self.cluster = cluster
        self.ends = list(ends)
        """After how many seconds, and whether the request was carried out."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        return await self._ending(self.cluster.get(resource, namespace, name))

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        return await self._ending(self.cluster.replace(resource, namespace, name, body))

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        return await self.cluster.create(resource, namespace, body, dry_run=dry_run)

    async def _ending(self, call: Coroutine[Any, Any, Json]) -> Json:
        if not self.ends:
            return await call
        seconds, carried_out = self.ends.pop(0)
        if carried_out:
            await call
        else:
            call.close()
        await asyncio.sleep(seconds)
        raise Unavailable("no answer")


SLOWNESS = (0.0, PERIOD, 2 * PERIOD)
FAILURES = [
    *itertools.product([(seconds, False) for seconds in SLOWNESS], repeat=RENEWALS - 1),
    *itertools.product([(seconds, lost) for seconds in SLOWNESS[1:] for lost in (False, True)], repeat=4),
]


def test_however_slowly_renewals_fail_no_replica_leads_beside_the_leader() -> None:
    for ends in FAILURES:
        scene = Scene()

        async def play(scene: Scene = scene, ends: Sequence[tuple[float, bool]] = ends) -> None:
            path = Path(scene.cluster, ())
            first = scene.start("a", api=path)
            await scene.until_leading(first)
            path.ends = list(ends)
            second = scene.candidate("b")
            try:
                async with asyncio.timeout(3 * SETTINGS.seconds):
                    await second.lead()
            except TimeoutError:
                assert first.election.still_leading()
                assert not scene.ended
            else:
                assert not first.election.still_leading(), ends
                await asyncio.sleep(4 * SETTINGS.seconds)

        scene.run(play())


@pytest.mark.parametrize("seconds", [5, 15, 60])
@pytest.mark.parametrize("begins", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("blocked", [0.2, 0.5, 0.8])
def test_a_leader_blocked_for_less_than_its_lease_keeps_it(seconds: int, begins: float, blocked: float) -> None:
    """Its newest renewal may be a period old when that begins, and each of its calls takes a while."""
    scene, settings = Scene(), LeaseSettings(namespace="system", seconds=seconds)
    scene.cluster.before = scene.cluster.after = taking(settings.period / 50)

    async def play() -> None:
        first = scene.start("a", settings=settings)
        await scene.until_leading(first)
        second = scene.start("b", settings=settings)
        await asyncio.sleep((3 + begins) * settings.period)
        first.process.freeze(blocked * seconds)
        await scene.never_two(blocked * seconds + 3 * seconds, (first, second))
        assert first.election.still_leading()
        assert not scene.ended

    scene.run(play())


@pytest.mark.parametrize("begins", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("blocked", [1.01, 1.5, 20])
def test_a_leader_blocked_for_longer_than_its_lease_has_lost_it_and_ends(begins: float, blocked: float) -> None:
    scene = Scene()
    scene.cluster.before = scene.cluster.after = taking(0.02)

    async def play() -> None:
        first = scene.start("a")
        await scene.until_leading(first)
        second = scene.start("b")
        await asyncio.sleep((3 + begins) * PERIOD)
        first.process.freeze(blocked * SETTINGS.seconds)
        await scene.never_two((blocked + 3) * SETTINGS.seconds, (first, second))
        assert second.election.still_leading()
        assert scene.ended == {"a": "lease system/perdure-operator is held by b"}

    scene.run(play())


@pytest.mark.parametrize("blocked", [1.5, 20])
def test_a_leader_blocked_for_longer_that_was_not_replaced_leads_again(blocked: float) -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        await asyncio.sleep(1.0)
        leader.process.freeze(blocked * SETTINGS.seconds)
        await asyncio.sleep(blocked * SETTINGS.seconds - 0.01)
        assert not leader.election.still_leading()
        await asyncio.sleep(1.0)
        assert leader.election.still_leading()

    scene.run(play())
    assert not scene.ended


@pytest.mark.parametrize("seconds", [PERIOD * 0.9, PERIOD * 1.5, PERIOD * 1.95])
def test_a_leader_whose_renewals_are_answered_slowly_may_write_all_the_time(seconds: float) -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        scene.cluster.after = taking(seconds)
        for _ in range(2000):
            await asyncio.sleep(0.1)
            assert leader.election.still_leading()

    scene.run(play())


def test_an_answer_that_came_while_the_loop_was_blocked_is_read() -> None:
    """However late the loop is: given up, it would cost two more calls of a process that has no time for one."""
    scene = Scene()

    async def through_the_layers_of_a_client() -> None:
        await asyncio.sleep(0.5)
        for _ in range(10):
            await asyncio.sleep(0)

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        scene.cluster.reads = 0
        scene.cluster.after = through_the_layers_of_a_client
        await asyncio.sleep(PERIOD + 0.1)
        leader.process.freeze(5 * PERIOD)
        await asyncio.sleep(30.0)
        assert leader.election.still_leading()

    scene.run(play())
    assert scene.cluster.reads == 0


def test_a_renewal_that_hangs_is_given_up_and_its_warning_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    scene = Scene()

    async def play() -> None:
        leader = scene.candidate("a", LeaseSettings(namespace="system", seconds=1))
        await leader.lead()
        scene.cluster.before = never
        async with asyncio.timeout(30):
            await leader.hold()

    with pytest.raises(LeaseLost):
        scene.run(play())
    assert {record.getMessage() for record in caplog.records if record.levelname == "WARNING"} == {
        "lease system/perdure-operator could not be renewed, this is tried again: no answer in time"
    }


def test_a_leader_survives_renewals_that_fail_now_and_then() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        for number in range(90):
            scene.cluster.before = refused if number % 2 else _at_once
            await asyncio.sleep(PERIOD)
            assert leader.election.still_leading()

    scene.run(play())
    assert not scene.ended


def test_a_leader_renews_with_one_call_and_reads_its_lease_only_where_it_was_changed() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.start("a")
        await scene.until_leading(leader)
        assert scene.cluster.reads == 1
        await asyncio.sleep(50.0)
        assert scene.cluster.reads == 1
        scene.cluster.change(*LEASE, lambda raw: raw["metadata"].update(labels={"a": "b"}))
        await asyncio.sleep(50.0)
        assert leader.election.still_leading()

    scene.run(play())
    assert scene.cluster.reads == 2
    renewals = [write for write in scene.cluster.writes if write.startswith("replace")]
    assert len(renewals) == int(100 / PERIOD)


def test_a_leader_whose_lease_another_holds_stops_at_once() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.candidate("a")
        await leader.lead()
        scene.give_to("b")
        await leader.hold()

    with pytest.raises(LeaseLost, match="held by b"):
        scene.run(play())
    assert scene.loop.time() == PERIOD


def test_a_lease_of_another_is_not_given_back() -> None:
    scene = Scene()

    async def play() -> None:
        leader = scene.candidate("a")
        await leader.lead()
        scene.give_to("b")
        await leader.release()

    scene.run(play())
    assert scene.holder() == "b"


def test_a_restarted_container_is_another_candidate() -> None:
    assert identity("pod") != identity("pod")
    assert identity("pod").startswith("pod_")
