"""Assembles the operator: login, watch, leader, and the order in which they start and stop.

Every replica watches, so that a new leader starts with a warm cache. Called by `cli`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import kopf

from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.cluster import election, kube
from perdure_operator.cluster.kube import KubeApi
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.write.act import Actor
from perdure_operator.loop import evictions, guard, install, loop_lag, watch
from perdure_operator.loop.heap import Heap
from perdure_operator.loop.leader import Leader, Show, nowhere
from perdure_operator.loop.pools import Hints, PoolKeeper, no_hints
from perdure_operator.loop.queue import Queue

SideWork = Callable[[], Coroutine[Any, Any, None]]
"""Work that runs in addition to the watch until the operator stops."""


@dataclass(frozen=True)
class ReportOptions:
    """Where members report how they train."""

    port: int
    url: str
    """What members call: https://host:port."""
    certificate: Path | None = None
    """A folder with tls.crt, tls.key and the ca.crt that members check them by."""
    secret: str = ""
    """Without a folder: the Secret, in the Lease's namespace, in which the operator keeps its own."""


@dataclass(frozen=True)
class OperatorOptions:
    """Options of `perdure-operator run`."""

    lease: election.LeaseSettings
    identity: str
    namespace: str | None = None
    """None: all namespaces."""
    kubeconfig: str | None = None
    health_port: int | None = 8080
    workers: int = 8
    signals: tuple[SignalRow, ...] = ()
    """Rows of the signal table that the configuration changes or adds."""
    node_claims: bool = False
    """Whether the operator may read Karpenter's NodeClaims."""
    evictions: bool = True
    """Whether to answer Evictions if the API server serves them."""
    metrics_port: int | None = None
    """Where metrics are served; None: nowhere."""
    metrics_certificate: Path | None = None
    """A folder with tls.crt and tls.key; None: the process makes a certificate itself."""
    reports: ReportOptions | None = None
    """Where members report; None: nowhere."""


async def run(options: OperatorOptions) -> bool:
    """Run until SIGTERM or SIGINT (True), or until the Lease is lost or the operator itself fails (False)."""
    async with await kube.login(options.kubeconfig) as api:
        await install.check(api, options.namespace)
        responds = options.evictions and await evictions.found(api, options.namespace)
        cache = Cache(options.signals, responds=responds)
        reports = _reports(api, cache, options.lease.namespace, options.reports) if options.reports else None
        sharing = PoolKeeper(cache, reports.hints if reports else no_hints, api.server_time)
        leader = Leader(
            api,
            options.lease,
            options.identity,
            namespace=options.namespace,
            workers=options.workers,
            cache=cache,
            node_claims=options.node_claims,
            settle=Heap().settle,
            channel=reports.channel if reports else nowhere,
            show=_together(sharing.follow, *([reports.show] if reports else [])),
        )
        registry = kopf.OperatorRegistry()
        if options.evictions:
            leader.unchanged = partial(evictions.require_unchanged, api, options.namespace, known=responds)
        events = watch.Watch(leader.cache, leader.queue, leader.echoes)
        guard.install(events.take_in_or_log, events.listed)
        watch.register(registry, events, evictions=responds)
        beside: list[SideWork] = [loop_lag.report]
        if options.metrics_port is not None:
            beside.append(_metrics(api, leader, options.metrics_port, options.metrics_certificate))
        if reports:
            beside += reports.beside(lambda: leader.knows_all)
        _hook(registry, leader, options.kubeconfig, beside)
        await kopf.operator(
            registry=registry,
            settings=watch.settings(),
            clusterwide=options.namespace is None,
            namespaces=[options.namespace] if options.namespace else [],
            liveness_endpoint=f"http://0.0.0.0:{options.health_port}/healthz" if options.health_port else None,
            stop_flag=leader.over,
        )
        return not leader.failed


def _together(*shows: Show) -> Show:
    async def show(actor: Actor, queue: Queue) -> None:
        await asyncio.gather(*(one(actor, queue) for one in shows))

    return show


def _metrics(api: KubeApi, leader: Leader, port: int, folder: Path | None) -> SideWork:
    """What serves metrics. Raises UserError if the port or the certificate cannot be used."""
    # Prometheus' client and cryptography take a tenth of a second and 10 MB: only where they are wanted.
    from perdure_operator.serving import certificate, connections  # noqa: PLC0415
    from perdure_operator.serving.metrics import access, exposition, server  # noqa: PLC0415

    contexts = certificate.FromFiles(folder) if folder else certificate.SelfMade([socket.gethostname(), "localhost"])
    collect = exposition.collector(lambda: leader.freeze(api.requests))
    served = server.endpoint(access.Gate(api), collect)
    return partial(connections.serve, connections.listen(port, name=server.NAME), contexts, served)


@dataclass(frozen=True)
class _Reports:
    """The parts by which members report."""

    channel: Callable[[], str]
    show: Show
    hints: Hints
    beside: Callable[[Callable[[], bool]], Sequence[SideWork]]
    """Takes whether this process leads."""


def _reports(api: KubeApi, cache: Cache, namespace: str, options: ReportOptions) -> _Reports:
    """What takes and shows reports. Raises UserError if the port or the certificate cannot be used."""
    # cryptography takes time and memory: only where it is wanted.
    from perdure_operator.loop import channels, keys, progress  # noqa: PLC0415
    from perdure_operator.serving import certificate, connections  # noqa: PLC0415
    from perdure_operator.serving.reports import channel, endpoint, heard, tokens  # noqa: PLC0415

    known, newest = tokens.Tokens(api, cache), heard.ReportBoard()
    listener = connections.listen(options.port, name=endpoint.NAME, waiting=endpoint.WAITING)
    writer = progress.ProgressWriter(cache, newest, known, api.server_time)

    def served(leads: Callable[[], bool], contexts: certificate.Contexts, limits: connections.Limits) -> SideWork:
        taken = endpoint.endpoint(known, newest, cache, leads=leads, now=api.server_time)
        return partial(connections.serve, listener, contexts, taken, limits=limits)

    def shown(members: channels.ChannelWriter) -> Show:
        return _together(writer.show, members.follow)

    if options.certificate is not None:
        given, contexts = channel.Channels(options.url, options.certificate), certificate.FromFiles(options.certificate)
        members = channels.ChannelWriter(cache, given.current)
        return _Reports(
            given.current,
            shown(members),
            newest.scaling_of,
            lambda leads: [served(leads, contexts, endpoint.GIVEN_LIMITS)],
        )

    keeper = keys.KeyKeeper(api, (namespace, options.secret), options.url, certificate.Maker())
    members = channels.ChannelWriter(cache, keeper.channel_of_leader)

    def beside(leads: Callable[[], bool]) -> Sequence[SideWork]:
        async def serve() -> None:
            await served(leads, await keeper.contexts(), endpoint.LIMITS)()

        return [partial(keeper.keep, leads, members.all_have), serve]

    return _Reports(keeper.channel, shown(members), newest.scaling_of, beside)


def _hook(registry: kopf.OperatorRegistry, leader: Leader, kubeconfig: str | None, beside: Sequence[SideWork]) -> None:
    """Register kopf's start, stop, login and health check. `beside` runs from the start until the stop."""

    tasks: list[asyncio.Task[None]] = []

    async def start(**_: Any) -> None:
        leader.start()
        tasks.extend(asyncio.create_task(one()) for one in beside)

    async def stop(**_: Any) -> None:
        for task in tasks:
            task.cancel()
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
