"""The real operator as one simulated process: the only module here that knows the operator's own code.

It gives the code under test its API, its clocks and its chance, and feeds it where kopf's handlers would. Where the
operator's modules are renamed, this file changes and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from perdure.wire import LABEL_JOB
from perdure_operator.cluster import election
from perdure_operator.cluster.clock import ServerClock
from perdure_operator.cluster.kube import KubeApi
from perdure_operator.cluster.protocol import BUDGETS, EVICTIONS, JOBS, NODES, PODS
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.loop.evictions import require_unchanged
from perdure_operator.loop.leader import Clocks, Leader
from perdure_operator.loop.watch import Watch
from tests.simulation import objects
from tests.simulation.clock import Process, VirtualLoop
from tests.simulation.link import Knobs, Link, Watches, selectors
from tests.simulation.objects import Json
from tests.simulation.transport import Transport

_RESOURCES = {one.plural: one for one in (JOBS, PODS, NODES, BUDGETS, EVICTIONS)}

LEASE = election.LeaseSettings(namespace="perdure-system")


def client(link: Link, loop: VirtualLoop, monotonic: Callable[[], float], fallback: Callable[[], datetime]) -> KubeApi:
    """The operator's own, over a link: it reads statuses, headers and bodies as in a cluster."""
    return KubeApi(Transport(link, loop), clock=ServerClock(monotonic=monotonic, fallback=fallback))


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
        api, responds = client(link, loop, monotonic, now), link.server.serves(objects.EVICTIONS)
        cache, unchanged = Cache(responds=responds), partial(require_unchanged, api, None, known=responds)
        self._leader: Leader = self.process.context.run(
            Leader, api, LEASE, identity, workers=4, clocks=clocks, cache=cache, unchanged=unchanged
        )
        self._monotonic = monotonic
        watch = Watch(self._leader.cache, self._leader.queue, self._leader.echoes)

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

    @property
    def synced(self) -> bool:
        """Whether it leads and has read everything: until then it runs no round."""
        return self.alive and self._leader.knows_all

    def picture(self) -> dict[tuple[str, objects.Key], int]:
        """Its picture of the cluster: the versions of jobs, their pods, budgets and nodes, by kind and key."""
        cache = self._leader.cache
        found = {(JOBS.plural, one.key): one.version for one in cache.jobs()}
        found |= {(BUDGETS.plural, one.key): one.version for one in cache.budgets()}
        found |= {(NODES.plural, key): one.version for key in cache.keys(NODES) if (one := cache.node(key[1]))}
        return found | {(PODS.plural, one.key): one.version for job in cache.jobs() for one in cache.pods(job.key)}

    def watch_lag(self) -> float:
        """Seconds since the oldest of its status writes that its watch has not shown: what it tells Prometheus."""
        return self._leader.echoes.oldest(self._monotonic())

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
