"""The operator put together: login, watch, election, workers, and the order in which they start and stop.

Every replica watches, so that a new leader starts with a warm cache; only the leader works. A process that loses its
Lease stops working at once and ends: a fresh one is safer than one that does not know what it missed. Called by `cli`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import kopf

from perdure.errors import UserError
from perdure_operator.cluster import election, kube
from perdure_operator.cluster.election import Election
from perdure_operator.cluster.protocol import JOBS, ApiError, ClusterApi, NotFound
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.write.act import Actor
from perdure_operator.loop import guard, watch
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.worker import RESYNC_SECONDS, Worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What `perdure-operator run` was told."""

    lease: election.Settings
    identity: str
    namespace: str | None = None
    """None: all namespaces."""
    kubeconfig: str | None = None
    health_port: int | None = 8080
    workers: int = 4


async def run(options: Options) -> bool:
    """Run until SIGTERM or SIGINT (True), or until the Lease is lost or the operator itself fails (False)."""
    async with await kube.login(options.kubeconfig) as api:
        await _require_crd(api, options.namespace)
        leader = _Leader(api, options)
        registry = kopf.OperatorRegistry()
        guard.install()
        watch.register(registry, watch.Watch(leader.cache, leader.queue))
        _hook(registry, leader, options.kubeconfig)
        await kopf.operator(
            registry=registry,
            settings=watch.settings(),
            clusterwide=options.namespace is None,
            namespaces=[options.namespace] if options.namespace else [],
            liveness_endpoint=f"http://0.0.0.0:{options.health_port}/healthz" if options.health_port else None,
            stop_flag=leader.over,
        )
        return not leader.failed


@dataclass
class _Leader:
    """Candidate first, then leader, then gone: the part of the operator beside the watch."""

    api: ClusterApi
    options: Options
    over: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False
    cache: Cache = field(default_factory=Cache)
    queue: Queue = field(default_factory=Queue)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._election = Election(self.api, self.options.lease, self.options.identity)
        self._observer = Observer(self.api, self.cache, namespace=self.options.namespace)
        actor = Actor(self.api, self.cache, instance=self.options.identity)
        self._worker = Worker(self.queue, self._observer, actor)

    @property
    def leading(self) -> bool:
        """For the health endpoint."""
        return self._election.leading

    def start(self) -> None:
        """Stand for election, in the background."""
        self._task = asyncio.create_task(self._live(), name="leader")

    async def stop(self) -> None:
        """Stop working, then give the Lease back: the next leader must not meet a write of ours."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._election.release()

    async def _live(self) -> None:
        try:
            await self._election.lead()
            async with asyncio.TaskGroup() as group:
                _spawn(group, self._election.hold(), self._resync())
                _spawn(group, *(self._worker.run() for _ in range(self.options.workers)))
        except* election.Deposed as errors:
            logger.error("%s: ending", errors.exceptions[0])
            self.failed = True
        except* Exception:  # nobody else would tell
            logger.exception("ending")
            self.failed = True
        finally:
            self.over.set()

    async def _resync(self) -> None:
        """Read everything live at the start and now and then: a watch may miss a deletion while it reconnects."""
        while True:
            try:
                for job in await self._observer.sync():
                    self.queue.add(job)
            except ApiError as error:
                logger.warning("resync: %s", error)
                await asyncio.sleep(1)
                continue
            except Exception:
                logger.exception("resync failed")
                await asyncio.sleep(10)
                continue
            await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret


def _spawn(group: asyncio.TaskGroup, *works: Coroutine[Any, Any, None]) -> None:
    for work in works:
        group.create_task(work)


def _hook(registry: kopf.OperatorRegistry, leader: _Leader, kubeconfig: str | None) -> None:
    """kopf's own start, stop, login and health check."""

    async def start(**_: Any) -> None:
        leader.start()

    async def stop(**_: Any) -> None:
        await leader.stop()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        known = await kube.credentials(kubeconfig)
        return kopf.ConnectionInfo(
            server=known.server,
            ca_path=known.ca_path,
            insecure=known.insecure,
            certificate_path=known.certificate_path,
            private_key_path=known.key_path,
            scheme=known.scheme,
            token=known.token,
        )

    async def health(**_: Any) -> bool:
        return leader.leading

    kopf.on.startup(registry=registry, id="start")(start)
    kopf.on.cleanup(registry=registry, id="stop")(stop)
    kopf.on.login(registry=registry, id="login")(login)
    kopf.on.probe(registry=registry, id="leading")(health)


async def _require_crd(api: ClusterApi, namespace: str | None) -> None:
    """kopf watches what it has discovered at the start: without the CRD it would wait in silence."""
    try:
        await api.list(JOBS, namespace)
    except NotFound:
        crd = f"{JOBS.plural}.{JOBS.group}"
        raise UserError(
            f"CustomResourceDefinition {crd} is not installed: kubectl apply -f crds/, or helm install"
        ) from None
    except ApiError as error:
        raise UserError(f"cannot list {JOBS.plural}: {error}") from None
