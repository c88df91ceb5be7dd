"""The API server as the operator's HTTP client sees it: requests in; statuses, headers and bytes out.

It stands where `kubernetes.aio`'s ApiClient stands below the operator's own client, which reads every answer itself: so
a status that it takes for another, or a header that it does not read, shows in histories. Each request is carried by a
`link`, which decides its fate.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qsl

import aiohttp

from tests.simulation import objects
from tests.simulation.answers import Answer, compact, discovery, expired, good, no_such_path, page, refusal
from tests.simulation.clock import VirtualLoop
from tests.simulation.link import Link, Watched
from tests.simulation.objects import Json

PAGE: Final = 3
"""Small, whatever a client asks for: a list in pages must be as good as a whole one."""
FEW: Final = 20
"""The pods of one job come in one page, as in most clusters."""
ROOTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "/api/v1": (objects.PODS, objects.NODES),
        "/apis/perdure.dev/v1alpha1": (objects.JOBS,),
        "/apis/policy/v1": (objects.BUDGETS,),
        "/apis/apps/v1": (objects.REVISIONS,),
        "/apis/events.k8s.io/v1": (objects.EVENTS,),
        "/apis/coordination.k8s.io/v1": (objects.LEASES,),
        "/apis/lifecycle.k8s.io/v1alpha1": (objects.REQUESTS, objects.EVICTIONS),
    }
)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class _Target:
    """What a path is about."""

    kind: str
    """"" for a group's discovery document, or a path that there is not."""
    namespace: str | None = None
    name: str = ""
    sub: str = ""


@lru_cache(maxsize=4096)
def _target(path: str) -> _Target:
    root = "/".join(path.split("/")[: 3 if path.startswith("/api/") else 4])
    kind, *parts = [part for part in path[len(root) :].split("/") if part] or [""]
    namespace = None
    if kind == "namespaces" and len(parts) > 1:
        namespace, kind, *parts = parts
    if kind not in ROOTS.get(root, ()):
        return _Target("")
    name, sub, *_ = [*parts, "", ""]
    return _Target(kind, namespace, name, sub)


class Transport:
    """One process's."""

    def __init__(self, link: Link, loop: VirtualLoop) -> None:
        self.default_headers: Mapping[str, str] = _NOTHING
        self.configuration = SimpleNamespace(host="")
        self._link = link
        self._loop = loop
        self._rest: dict[str, list[Json]] = {}
        """What is left of lists, by the token to go on with."""
        self._tokens = itertools.count(1)

    async def close(self) -> None:
        """There is no connection."""

    async def update_params_for_auth(self, *_: object) -> None:
        """Everybody may ask."""

    async def call_api(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],  # noqa: ARG002 - bodies are JSON, whatever they say
        body: Any,
        *,
        _request_timeout: float,
    ) -> _Arrived:
        """Returns when the answer's head has come: the client's own patience ends before that of its transport."""
        path, _, words = url.partition("?")
        query, target = dict(parse_qsl(words)) if words else _NOTHING, _target(path)
        if not target.kind:
            return _Arrived(self._discover(path))
        if not self._link.server.serves(target.kind):
            return _Arrived(no_such_path())
        if "continue" in query:
            return _Arrived(self._go_on(query["continue"]))
        answer = await self._ask(method, target, query, objects.clone(body))
        if answer.stream is not None:
            # As long after the client has heard of the watch as the server keeps it.
            self._loop.outside(float(query["timeoutSeconds"]), answer.stream.end)
        return _Arrived(answer)

    async def _ask(self, method: str, target: _Target, query: Mapping[str, str], body: Any) -> Answer:
        link, server, by = self._link, self._link.server, self._link.name
        kind, namespace, name = target.kind, target.namespace or "", target.name
        match method:
            case "GET" if name:
                return await link.call("get", kind, lambda: self._show(server.get(kind, namespace, name)), name=name)
            case "GET" if "watch" in query:
                name = query["fieldSelector"].removeprefix("metadata.name=")
                begin = partial(link.watch, kind, namespace, name, query["resourceVersion"])
                return await link.call("watch", kind, lambda: Answer(200, {}, stream=begin()), name=name)
            case "GET":
                selector = query.get("labelSelector", "")
                look = partial(server.all, kind, target.namespace, selector)
                most = FEW if "=" in selector else PAGE
                return await link.call("list", kind, lambda: self._page(look(), most), name=selector)
            case "POST":
                dry_run, name = "dryRun" in query, body["metadata"]["name"]
                create = partial(server.create, kind, namespace, body, by=by, dry_run=dry_run)
                verb = "dry-run" if dry_run else "create"
                return await link.call(verb, kind, lambda: self._show(create(), 201), name=name)
            case "DELETE":
                return await self._delete(target, body)
        return await self._change(method, target, body)

    async def _change(self, method: str, target: _Target, body: Any) -> Answer:
        link, server, of_status = self._link, self._link.server, target.sub == "status"
        kind, namespace, name = target.kind, target.namespace or "", target.name
        if method == "PATCH":
            verb, given = "patch status" if of_status else "patch", _tested(body)
            change: Any = server.patch_status if of_status else server.patch
        else:
            verb, given = "status" if of_status else "replace", _required(body["metadata"])
            change = server.replace_status if of_status else server.replace
        if verb != "replace":
            link.on_write(verb, kind, name, given)
        write = partial(change, kind, namespace, name, body, by=link.name)
        return await link.call(verb, kind, lambda: self._show(write()), name=name)

    async def _delete(self, target: _Target, options: Json) -> Answer:
        link, kind, name = self._link, target.kind, target.name
        needed = options["preconditions"]
        link.on_write("delete", kind, name, _required(needed))
        delete = partial(
            link.server.delete,
            kind,
            target.namespace or "",
            name,
            by=link.name,
            uid=needed.get("uid"),
            version=needed.get("resourceVersion"),
            grace=options.get("gracePeriodSeconds"),
        )
        return await link.call("delete", kind, lambda: _gone(delete()), name=name)

    def _show(self, raw: Json, status: int = 200) -> Answer:
        return good(self._link.server.text(raw), status)

    def _page(self, items: Sequence[Json], most: int) -> Answer:
        server, token = self._link.server, ""
        if len(items) > most:
            token = str(next(self._tokens))
            self._rest[token] = list(items[most:])
        texts = map(server.text, items[:most])
        return good(page(texts, server.version, token, max(0, len(items) - most)))

    def _go_on(self, token: str) -> Answer:
        """The rest of a list is as old as its beginning; it comes at once."""
        rest = self._rest.pop(token)
        if self._link.forgets_lists():
            return refusal(expired("the provided continue parameter"))
        return self._page(rest, PAGE)

    def _discover(self, path: str) -> Answer:
        kinds = [kind for kind in ROOTS.get(path, ()) if self._link.server.serves(kind)]
        return discovery(kinds) if kinds else no_such_path()


class _Arrived:
    """An answer, as aiohttp's response is: its body is read later."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.content = _Events(answer.stream)
        self.connection = None
        self._answer = answer

    @property
    def response(self) -> _Arrived:
        """Of the client below."""
        return self

    async def read(self) -> bytes:
        """The whole body."""
        if self._answer.cut:
            raise aiohttp.ClientPayloadError("Response payload is not completed")
        return self._answer.body

    def close(self) -> None:
        """The server notices it with its next event."""


class _Events:
    """The body of a watch."""

    def __init__(self, watched: Watched | None) -> None:
        self._watched = watched

    async def readany(self) -> bytes:
        """Some bytes; none at the end."""
        line = await self._watched.line() if self._watched else b""
        if line is None:
            raise aiohttp.ClientPayloadError("Response payload is not completed")
        return line


def _tested(operations: Sequence[Json]) -> frozenset[str]:
    return frozenset(str(one["path"]) for one in operations if one["op"] == "test")


def _required(given: Json) -> frozenset[str]:
    return frozenset(f"/metadata/{one}" for one in ("uid", "resourceVersion") if given.get(one))


def _gone(_: None) -> Answer:
    return good(compact({"kind": "Status", "status": "Success"}))
