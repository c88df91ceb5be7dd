"""The real operator as one simulated process: the only module here that knows the operator's own code.

It gives the code under test its API, its clocks and its chance, and feeds it where kopf's handlers would. Where the
operator's modules are renamed, this file changes and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from perdure.wire import LABEL_JOB
from perdure_operator.cluster import election
from perdure_operator.cluster.clock import ServerClock
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVICTIONS,
    JOBS,
    NODES,
    PODS,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OnChange,
    Operation,
    Resource,
    Unavailable,
)
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.loop.evictions import require_unchanged
from perdure_operator.loop.leader import Clocks, Leader
from perdure_operator.loop.watch import Watch
from tests.simulation import objects
from tests.simulation.apiserver import Change
from tests.simulation.clock import Process, VirtualLoop
from tests.simulation.link import Knobs, Link, NoAnswer, Watched, Watches, selectors
from tests.simulation.objects import Json, Refused

T = TypeVar("T")

PAGE = 3
"""Small: a list in pages must be as good as a whole one."""

_RESOURCES = {one.plural: one for one in (JOBS, PODS, NODES, BUDGETS, EVICTIONS)}

LEASE = election.LeaseSettings(namespace="perdure-system")


class Client:
    """A ClusterApi over a link: errors and the server's time are the real client's for the same answers."""

    def __init__(self, link: Link, monotonic: Callable[[], float], fallback: Callable[[], datetime]) -> None:
        self._link = link
        self._monotonic = monotonic
        self._clock = ServerClock(monotonic=monotonic, fallback=fallback)

    def server_time(self) -> datetime:
        """See ClusterApi."""
        return self._clock.now()

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        """See ClusterApi."""
        return await self._call("list", resource, lambda api: api.all(resource.plural, namespace, selector), selector)

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        """See ClusterApi."""
        items = await self.list(resource, namespace, selector=selector)
        for first in range(0, len(items), PAGE):
            yield items[first : first + PAGE]

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, on_change: OnChange
    ) -> None:
        """See ClusterApi."""
        begin = partial(self._link.watch, resource.plural, namespace, name, version)
        watched: Watched = await self._call("watch", resource, lambda _: begin(), name)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    change = await self._event_of(watched)
                    on_change(None if change.event == "DELETED" else change.raw)

    @staticmethod
    async def _event_of(watched: Watched) -> Change:
        try:
            return await watched.event()
        except NoAnswer as error:
            raise Unavailable(str(error)) from None

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """See ClusterApi."""
        return await self._call("get", resource, lambda api: api.get(resource.plural, namespace or "", name), name)

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        """See ClusterApi."""
        body = objects.clone(body)
        return await self._call(
            "dry-run" if dry_run else "create",
            resource,
            lambda api: api.create(resource.plural, namespace, body, by=self._link.name, dry_run=dry_run),
            body["metadata"]["name"],
        )

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        """See ClusterApi."""
        return await self._patched(
            "patch",
            resource,
            name,
            operations,
            lambda api: api.patch(resource.plural, namespace, name, operations, by=self._link.name),
        )

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        """See ClusterApi."""
        return await self._patched(
            "patch status",
            resource,
            name,
            operations,
            lambda api: api.patch_status(resource.plural, namespace, name, operations, by=self._link.name),
        )

    async def _patched(
        self,
        verb: str,
        resource: Resource,
        name: str,
        operations: Sequence[Operation],
        what: Callable[[Any], Json],
    ) -> Json:
        tested = frozenset(str(one["path"]) for one in operations if one["op"] == "test")
        self._link.on_write(verb, resource.plural, name, tested)
        try:
            return await self._call(verb, resource, what, name)
        except Invalid as error:
            raise Conflict(str(error), status=error.status, reason=error.reason) from None

    async def serves(self, resource: Resource) -> bool:
        """See ClusterApi."""
        return self._link.server.serves(resource.plural)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """See ClusterApi."""
        body = objects.clone(body)
        return await self._call(
            "replace",
            resource,
            lambda api: api.replace(resource.plural, namespace, name, body, by=self._link.name),
            name,
        )

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """See ClusterApi."""
        body = objects.clone(body)
        given = frozenset(f"/metadata/{one}" for one in ("uid", "resourceVersion") if body["metadata"].get(one))
        self._link.on_write("status", resource.plural, name, given)
        return await self._call(
            "status",
            resource,
            lambda api: api.replace_status(resource.plural, namespace, name, body, by=self._link.name),
            name,
        )

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        """See ClusterApi."""
        given = {"/metadata/uid": uid, "/metadata/resourceVersion": version}
        self._link.on_write("delete", resource.plural, name, frozenset(one for one in given if given[one]))
        await self._call(
            "delete",
            resource,
            lambda api: api.delete(
                resource.plural, namespace, name, by=self._link.name, uid=uid, version=version or None, grace=grace
            ),
            name,
        )

    async def _call(self, verb: str, resource: Resource, what: Callable[[Any], T], name: str = "") -> T:
        server, sent = self._link.server, self._monotonic()
        try:
            answer = await self._link.call(verb, resource.plural, lambda: what(server), name=name)
            self._clock.heard(self._link.date, sent=sent)
            return answer
        except NoAnswer as error:
            raise Unavailable(str(error)) from None
        except Refused as error:
            self._clock.heard(self._link.date, sent=sent)
            raise _error(error.status, error.reason)(
                f"{verb} {resource.plural} {name}: {error}",
                status=error.status,
                reason=error.reason,
                retry_after=error.retry_after,
            ) from None


def _error(status: int, reason: str) -> type[ApiError]:
    known: dict[int, type[ApiError]] = {404: NotFound, 403: Forbidden, 400: Invalid, 422: Invalid, 429: Unavailable}
    if status == 409:
        return AlreadyExists if reason == "AlreadyExists" else Conflict
    return known.get(status, Unavailable if status >= 500 else ApiError)


class OperatorProcess:
    """One replica of the operator, from its start until it dies, is stopped or ends by itself."""

    def __init__(
        self, loop: VirtualLoop, link: Link, knobs: Knobs, rng: random.Random, *, skew: float, identity: str
    ) -> None:
        self.identity = identity
        self.skew = skew
        self.link = link
        self.restarting = False
        self._loop = loop
        self.process = Process(loop, identity)
        started, offset = objects.EPOCH, rng.uniform(0, 1e6)

        def now() -> datetime:
            return started + timedelta(seconds=loop.time() + self.skew)

        def monotonic() -> float:
            return loop.time() + offset

        clocks = Clocks(monotonic=monotonic, sleep=asyncio.sleep, chance=rng.random)
        client, responds = Client(link, monotonic, now), link.server.serves(objects.EVICTIONS)
        cache, unchanged = Cache(responds=responds), partial(require_unchanged, client, None, known=responds)
        self._leader: Leader = self.process.context.run(
            Leader, client, LEASE, identity, workers=4, clocks=clocks, cache=cache, unchanged=unchanged
        )
        watch = Watch(self._leader.cache, self._leader.queue)

        def take_in(kind: str, event: str | None, raw: Json) -> None:
            watch.take_in(_RESOURCES[kind], event, raw)

        self._watches = Watches(loop, link, self.process, knobs, take_in)
        self._watches.start(selectors(LABEL_JOB, evictions=responds))
        self.process.on_death = self._watches.end
        self.process.start(self._live())
        self.ended = False

    @property
    def alive(self) -> bool:
        """Whether it has neither died nor ended."""
        return self.process.alive and not self.ended

    @property
    def leading(self) -> bool:
        """Whether it believes to be the leader."""
        return self.alive and self._leader.leading

    def picture(self) -> dict[tuple[str, objects.Key], int]:
        """Its picture of the cluster: the versions of jobs, their pods, budgets and nodes, by kind and key."""
        cache = self._leader.cache
        found = {(JOBS.plural, one.key): one.version for one in cache.jobs()}
        found |= {(BUDGETS.plural, one.key): one.version for one in cache.budgets()}
        found |= {(NODES.plural, key): one.version for key in cache.keys(NODES) if (one := cache.node(key[1]))}
        return found | {(PODS.plural, one.key): one.version for job in cache.jobs() for one in cache.pods(job.key)}

    def remembers(self, namespace: str, job: str) -> list[str]:
        """Names of deleted pods of that job of which it keeps how they were."""
        return [one.key[1] for one in self._leader.cache.gone((namespace, job))]

    def stop(self) -> None:
        """SIGTERM."""
        self.process.start(self._stop())

    async def _live(self) -> None:
        self._leader.start()
        await self._leader.over.wait()
        await self._stop()

    async def _stop(self) -> None:
        await self._leader.stop()
        self.ended = True
        self.process.kill()
