"""kopf's real watch against a server that sends what no API server should: the watch goes on with the other objects."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients import errors

from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json, Resource
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.loop import guard, watch
from perdure_operator.loop.queue import Queue
from perdure_operator.serving.metrics.counted import Echoes
from tests.unit.operator.cluster.test_decode import DEEPEST, PLACES, nested, stored, text_of

SECONDS = 30.0
WATCHED = (JOBS, PODS, NODES, BUDGETS)
DISCOVERED = (
    *WATCHED,
    Resource("", "v1", "namespaces", namespaced=False),
    Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False),
)
"""kopf waits for the last two, whether it needs them or not."""
GONE = "policy/v1beta1"
"""A version that the operator does not need, of a group that it needs."""


@dataclass
class FakeServer:
    """Discovery, one LIST and one watch; jobs are sent as text, so that any text can be sent."""

    listed: list[str] = field(default_factory=list)
    lines: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    lists: int = 0
    ill: int = 0
    """LISTs that are answered with something else than JSON."""
    refusals: dict[tuple[str, str], list[tuple[int, dict[str, str]]]] = field(default_factory=dict)
    """Status and headers that requests get, by the plural and one of list, continue, watch."""
    discovery: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers that requests for discovery documents get first."""
    absent: dict[str, int] = field(default_factory=dict)
    """How often a request for the discovery document at this path finds none."""
    asked: Counter[str] = field(default_factory=Counter)
    """How often the discovery document at each path was asked for."""
    opened: list[str] = field(default_factory=list)
    """Plurals of the watches that were answered."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/apis").removeprefix("/api").strip("/")
        if path.split("/")[-1] not in {resource.plural for resource in WATCHED}:
            self.asked[request.path] += 1
            if self.asked[request.path] <= self.absent.get(request.path, 0):
                return _refused(404, {})
            return _refused(*self.discovery.pop(0)) if self.discovery else _discovered(request.path, path)
        verb = next((word for word in ("watch", "continue") if word in request.query), "list")
        plural = path.split("/")[-1]
        if refusals := self.refusals.get((plural, verb)):
            return _refused(*refusals.pop(0))
        if verb == "list" and (plural, "continue") in self.refusals:
            metadata = {"resourceVersion": "1", "continue": "more"}
            return web.json_response({"kind": "List", "metadata": metadata, "items": []})
        return await self._watch(request, path) if verb == "watch" else self._list(path)

    async def opens(self, plurals: Iterable[str]) -> None:
        """Wait until each of these watches was opened, from now on."""
        before = len(self.opened)
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(lambda: set(plurals) <= set(self.opened[before:]))

    def _list(self, path: str) -> web.Response:
        jobs = path.endswith(JOBS.plural)
        self.lists += jobs
        if jobs and self.ill:
            self.ill -= 1
            return web.Response(text='{"items": [{', content_type="application/json")
        items = ", ".join(self.listed if jobs else [])
        text = f'{{"kind": "TrainingJobList", "metadata": {{"resourceVersion": "1"}}, "items": [{items}]}}'
        return web.Response(text=text, content_type="application/json")

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async with self.changed:
            self.opened.append(path.rpartition("/")[2])
            self.changed.notify_all()
        while path.endswith(JOBS.plural):
            if not (line := await self.lines.get()):
                return response
            await response.write(line.encode() + b"\n")
        await asyncio.Event().wait()
        return response


def _refused(status: int, headers: dict[str, str]) -> web.Response:
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": "not now"}
    return web.json_response(told, status=status, headers=headers)


def _discovered(full: str, path: str) -> web.Response:
    match full:
        case "/version":
            return web.json_response({"major": "1", "minor": "37"})
        case "/api":
            return web.json_response({"versions": ["v1"]})
        case "/apis":
            return _groups()
        case _:
            return _resources(path)


def _groups() -> web.Response:
    versions = {resource.group: resource.version for resource in DISCOVERED if resource.group}
    groups: list[Json] = [
        {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}
        for group, version in versions.items()
    ]
    policy = next(group for group in groups if group["name"] == BUDGETS.group)
    policy["versions"].append({"version": GONE.rpartition("/")[2]})
    return web.json_response({"groups": groups})


def _resources(path: str) -> web.Response:
    group, _, version = path.rpartition("/")
    here = [resource for resource in DISCOVERED if (resource.group, resource.version) == (group, version)]
    return web.json_response({"resources": [_described(resource) for resource in here]})


def _described(resource: Resource) -> Json:
    kind = {"name": resource.plural, "singularName": "", "kind": resource.plural, "namespaced": resource.namespaced}
    return kind | {"verbs": ["list", "watch"], "shortNames": [], "categories": []}


@asynccontextmanager
async def watching(
    server: FakeServer, slept: list[float] | None = None, echoes: Echoes | None = None
) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """kopf on that server with the operator's own settings and handlers; yields a wait for a job.

    With `slept` nothing waits: the guard's waits are noted there, and kopf repeats no request.
    """

    async def sleep(seconds: float) -> None:
        assert slept is not None
        slept.append(seconds)
        assert len(slept) < 50, "the watch never goes on"

    queue, registry, over = Queue(), kopf.OperatorRegistry(), asyncio.Event()
    events = watch.Watch(Cache(), queue, echoes or Echoes())
    guard.install(events.take_in_or_log, events.listed, **({} if slept is None else {"sleep": sleep}))
    watch.register(registry, events)
    handler = web.Server(cast(Any, server.answer), handler_cancellation=True)  # its own type names a private class
    runner = web.ServerRunner(handler, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    async def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}", token="none")

    kopf.on.login(registry=registry, id="login")(login)
    settings = watch.settings()
    settings.queueing.exit_timeout = 0.1  # else kopf waits for its idle workers
    if slept is not None:
        settings.watching.reconnect_backoff = 0.0
        settings.networking.error_backoffs = ()
    running = asyncio.create_task(kopf.operator(registry=registry, settings=settings, clusterwide=True, stop_flag=over))

    async def seen(name: str) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                next_job = asyncio.create_task(queue.get())
                await asyncio.wait([next_job, running], return_when=asyncio.FIRST_COMPLETED)
                assert not running.done(), "kopf has ended"
                queue.done(next_job.result())
                if next_job.result() == ("ns", name):
                    return

    try:
        yield seen
        assert not running.done(), "kopf has ended"
    finally:
        over.set()
        await asyncio.wait([running], timeout=SECONDS)
        await runner.cleanup()


def event(raw: str, kind: str = "MODIFIED") -> str:
    return f'{{"type": "{kind}", "object": {raw}}}'


DEEP = {".".join(place): text_of(stored("deep"), *place, value=nested(DEEPEST)) for place in PLACES}

BAD_OBJECTS = {
    **DEEP,
    "no metadata": "{}",
    "metadata null": '{"metadata": null}',
    "metadata a list": '{"metadata": []}',
    "no uid": '{"metadata": {"name": "a", "namespace": "ns"}}',
    "uid a map": '{"metadata": {"name": "a", "uid": {}}}',
    "name a number": '{"metadata": {"name": 1, "uid": "u"}}',
    "spec a list": '{"metadata": {"name": "a", "uid": "u", "labels": null}, "spec": [], "status": 1}',
    "finalizers null": '{"metadata": {"name": "a", "uid": "u", "finalizers": null}}',
    "annotations of others": text_of(
        stored("other"),
        "metadata",
        "annotations",
        value=json.dumps({"kopf.zalando.org/last-handled-configuration": nested(DEEPEST)}),
    ),
}

LISTS_ANEW = {
    "no JSON": "{",
    "no map": "[]",
    "no object": '{"type": "ADDED"}',
    "another error than 410": '{"type": "ERROR", "object": {"code": 500, "message": "etcd: cannot decode"}}',
    "an error without a code": '{"type": "ERROR", "object": {}}',
    "410": '{"type": "ERROR", "object": {"code": 410}}',
}

GOES_ON = {
    "a bookmark of nothing": '{"type": "BOOKMARK", "object": {"metadata": []}}',
    "an unknown type": '{"type": "RENAMED", "object": {"metadata": {"name": "a", "uid": "u"}}}',
    "no type": '{"object": {"metadata": {"name": "a", "uid": "u"}}}',
}


def test_a_bad_object_in_the_watch_hides_no_other() -> None:
    bad = [event(raw, kind) for raw in BAD_OBJECTS.values() for kind in ("ADDED", "MODIFIED", "DELETED")]

    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))])
        async with watching(server) as seen:
            await seen("first")
            for number, line in enumerate([*bad, *GOES_ON.values()]):
                server.lines.put_nowait(line)
                server.lines.put_nowait(event(json.dumps(stored(f"after-{number}"))))
                await seen(f"after-{number}")
            assert server.lists == 1

    asyncio.run(scene())


def test_a_line_that_cannot_be_read_costs_a_new_list() -> None:
    async def scene() -> None:
        server = FakeServer()
        async with watching(server) as seen:
            for number, line in enumerate(LISTS_ANEW.values(), 1):
                server.lines.put_nowait(event(json.dumps(stored(f"before-{number}"))))
                await seen(f"before-{number}")
                server.listed = [json.dumps(stored(f"listed-{number}"))]
                server.lines.put_nowait(line)
                await seen(f"listed-{number}")
                assert server.lists == number + 1

    asyncio.run(scene())


def test_bad_objects_in_the_first_list_hide_no_other() -> None:
    async def scene() -> None:
        listed = [json.dumps(stored("first")), *BAD_OBJECTS.values(), "null", "[]", json.dumps(stored("last"))]
        async with watching(FakeServer(listed=listed)) as seen:
            await seen("first")
            await seen("last")

    asyncio.run(scene())


def test_a_list_that_is_no_json_is_asked_for_again() -> None:
    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))], ill=1)
        async with watching(server) as seen:
            await seen("first")
            assert server.lists == 2

    asyncio.run(scene())


ALL = [resource.plural for resource in WATCHED]


@pytest.mark.parametrize("verb", ["list", "continue", "watch"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 429, 500, 503, 504])
def test_a_request_of_any_watch_that_is_refused_costs_a_new_list(status: int, verb: str) -> None:
    async def scene() -> None:
        server = FakeServer(refusals={(plural, verb): [(status, {}), (status, {})] for plural in ALL})
        opens = asyncio.create_task(server.opens(ALL))
        async with watching(server, []) as seen:
            await opens
            server.lines.put_nowait(event(json.dumps(stored("after"))))
            await seen("after")

    asyncio.run(scene())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_a_discovery_that_is_refused_is_repeated(status: int) -> None:
    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))], discovery=[(status, {})] * 9)
        async with watching(server, []) as seen:
            await seen("first")

    asyncio.run(scene())


def test_a_version_that_is_gone_after_it_was_named_keeps_no_kind_from_being_watched() -> None:
    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))], absent={f"/apis/{GONE}": 1000})
        async with watching(server, []) as seen:
            await seen("first")
        assert server.asked[f"/apis/{GONE}"] == 5

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/api", "/apis", *sorted({resource.root for resource in DISCOVERED})])
def test_a_discovery_document_that_kopf_needs_is_asked_for_until_it_is_there(path: str) -> None:
    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))], absent={path: 9})
        async with watching(server, []) as seen:
            await seen("first")
        assert server.asked[path] == 10

    asyncio.run(scene())


def test_the_waits_of_discovery_obey_the_server() -> None:
    slept: list[float] = []
    refusals = [(429, {"Retry-After": "7"}), (503, {"Retry-After": "86400"})]

    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))], discovery=refusals)
        async with watching(server, slept) as seen:
            await seen("first")

    asyncio.run(scene())
    assert sorted(slept) == [7, 60]  # two documents are asked for at once


ASKED = {
    "a number": ({"Retry-After": "7"}, "7"),
    "a proxy's spelling": ({"retry-after": "7"}, "7"),
    "a day": ({"Retry-After": "86400"}, "60"),
    "more than a number holds": ({"Retry-After": "9" * 400}, "60"),
    "a date": ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "0"),
    "nothing": ({}, "0"),
}


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("headers", "seconds"), ASKED.values(), ids=ASKED)
def test_kopf_itself_waits_no_longer_than_a_minute_for_a_server_that_refuses(
    status: int, headers: dict[str, str], seconds: str
) -> None:
    """kopf repeats a request by itself, and reads how long to wait from its error."""

    async def refuse(_: web.Request) -> web.Response:
        return _refused(status, headers)

    async def scene() -> None:
        guard.install(lambda *_: None, lambda _: None)
        application = web.Application()
        application.router.add_get("/", refuse)
        async with TestServer(application) as server, aiohttp.ClientSession() as session:
            response = await session.get(server.make_url("/"))
            with pytest.raises(errors.APIError) as raised:
                await errors.check_response(response)
        assert raised.value.headers == {"Retry-After": seconds}

    asyncio.run(scene())


def test_a_new_login_closes_the_connections_of_all_watches_and_each_lists_again() -> None:
    async def scene() -> None:
        server = FakeServer()
        first = asyncio.create_task(server.opens(ALL))
        async with watching(server, []) as seen:
            await first
            server.refusals["trainingjobs", "watch"] = [(401, {})]
            again = asyncio.create_task(server.opens(ALL))
            await asyncio.sleep(0)
            server.lines.put_nowait("")  # ends the watch of jobs
            await again
            server.lines.put_nowait(event(json.dumps(stored("after"))))
            await seen("after")

    asyncio.run(scene())


def test_waits_between_lists_grow_until_a_watch_shows_something_and_obey_the_server() -> None:
    slept: list[float] = []
    refusals: list[tuple[int, dict[str, str]]] = [(503, {})] * 8 + [(429, {"Retry-After": "7"})]

    async def scene() -> None:
        server = FakeServer(refusals={("trainingjobs", "watch"): list(refusals)})
        async with watching(server, slept) as seen:
            server.lines.put_nowait(event(json.dumps(stored("first"))))
            await seen("first")
            server.refusals["trainingjobs", "watch"] = [(503, {"Retry-After": "30"}), (503, {"Retry-After": "3600"})]
            server.lines.put_nowait("")
            server.lines.put_nowait(event(json.dumps(stored("second"))))
            await seen("second")

    asyncio.run(scene())
    assert slept == [1, 2, 4, 8, 16, 32, 60, 60, 60, 30, 60]


def test_writes_that_a_new_list_does_not_show_are_not_waited_for_any_more() -> None:
    """The cluster's store was restored: they are gone, and versions are lower than those that were shown."""
    job, echoes = ("ns", "first"), Echoes()

    async def scene() -> None:
        server = FakeServer(listed=[json.dumps(stored("first"))])
        async with watching(server, echoes=echoes) as seen:
            await seen("first")
            echoes.showed(job, 2000)
            echoes.wrote(job, 3000, 0.0)
            server.listed = [json.dumps(stored("listed"))]
            server.lines.put_nowait(LISTS_ANEW["410"])
            await seen("listed")
            server.lines.put_nowait(event(json.dumps(stored("after"))))
            await seen("after")
            assert echoes.oldest(100.0) == 0.0
            echoes.wrote(job, 1000, 100.0)
            assert echoes.oldest(200.0) == 100.0

    asyncio.run(scene())


def test_what_a_line_tells_is_taken_in_at_once_and_kopf_has_only_deletions_to_handle() -> None:
    taken: list[tuple[str, str, str]] = []

    def take_in(resource: Resource, kind: str, raw: Json) -> None:
        taken.append((resource.plural, kind, raw["metadata"]["name"]))

    told = [guard.event(event(json.dumps(stored()), kind), take_in) for kind in ("ADDED", "MODIFIED", "DELETED")]
    assert taken == [("trainingjobs", kind, "digits") for kind in ("ADDED", "MODIFIED", "DELETED")]
    assert [one["type"] for one in told] == ["BOOKMARK", "BOOKMARK", "DELETED"]
    assert told[0]["object"] == {"metadata": {"resourceVersion": "7"}}  # where kopf goes on after a break
    other = stored() | {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}
    assert guard.event(event(json.dumps(other)), take_in)["type"] == "MODIFIED"
    assert len(taken) == 3


def test_an_event_that_cannot_be_taken_in_costs_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(watch.Watch):
        def take_in(self, *_: object) -> None:
            raise ZeroDivisionError

    assert (
        guard.event(event(json.dumps(stored())), Faulty(Cache(), Queue(), Echoes()).take_in_or_log)["type"]
        == "BOOKMARK"
    )
    assert "cannot be parsed and is ignored" in caplog.text


def test_a_deep_job_is_named_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    raw = stored("deep-and-named")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            guard.event(event(text_of(raw, "spec", "template", value=nested(DEEPEST))))
    (message,) = caplog.messages
    assert message.startswith("trainingjob ns/deep-and-named: ignoring spec.template")
    assert message.endswith("remove it from the object")
