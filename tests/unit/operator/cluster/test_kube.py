"""What the client makes of the API server's answers, and of the environment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from perdure_operator.cluster import kube
from perdure_operator.cluster.kube import KubeApi, behind_a_proxy
from perdure_operator.cluster.protocol import (
    PODS,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Json,
    NotFound,
    OnChange,
    Resource,
    Unavailable,
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Call = Callable[[KubeApi], Awaitable[Any]]

SERVER = "https://10.0.0.1:6443"
FAILED_TEST = "the server rejected our request due to an error in our request"
POLICY = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"
WEBHOOK = 'admission webhook "x" denied the request: no'
WEBHOOK_DOWN = 'Internal error occurred: failed calling webhook "x": failed to call webhook: connection refused'


@pytest.mark.parametrize(
    ("environment", "behind"),
    [
        ({}, False),
        ({"NO_PROXY": "localhost"}, False),
        ({"HTTP_PROXY": "http://proxy:3128"}, False),
        ({"HTTPS_PROXY": "http://proxy:3128"}, True),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,10.0.0.1"}, False),
    ],
)
def test_a_proxy_counts_where_it_stands_on_the_way(
    environment: dict[str, str], behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert behind_a_proxy(SERVER) is behind


@pytest.mark.parametrize(
    ("status", "message", "details", "expected"),
    [
        pytest.param(422, FAILED_TEST, {}, Conflict, id="a test of the patch failed"),
        pytest.param(422, POLICY, {"name": "p", "kind": "pods", "causes": [{"message": POLICY}]}, Invalid, id="policy"),
        pytest.param(422, WEBHOOK, {}, Invalid, id="webhook that says 422"),
        pytest.param(422, WEBHOOK, None, Invalid, id="webhook without details"),
        pytest.param(403, WEBHOOK, {}, Forbidden, id="webhook"),
        pytest.param(409, WEBHOOK, {}, Forbidden, id="webhook that says conflict"),
        pytest.param(404, WEBHOOK, {}, Forbidden, id="webhook that says not found"),
        pytest.param(500, WEBHOOK_DOWN, {"causes": [{"message": "…"}]}, Forbidden, id="webhook that does not answer"),
        pytest.param(409, "the object has been modified", {"name": "p"}, Conflict, id="newer version"),
    ],
)
def test_a_refused_patch_is_distinguished_from_a_pod_that_has_changed(
    status: int, message: str, details: Json | None, expected: type[ApiError]
) -> None:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": "Invalid", "details": details}
    error = asyncio.run(_error_of_a_patch(status, body))
    assert type(error) is expected
    assert message in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Mon, 23 Nov 2026"}, None),
        ({"Retry-After": "86400"}, 300.0),
        ({"Retry-After": "9" * 400}, 300.0),
    ],
)
def test_an_overloaded_server_is_asked_again_when_it_says_and_also_where_it_does_not_say(
    status: int, headers: dict[str, str], seconds: float | None
) -> None:
    error = asyncio.run(_error_of_a_patch(status, {"message": "too many requests"}, headers))
    assert isinstance(error, Unavailable)
    assert error.retry_after == seconds


STATUS = {"kind": "Status", "status": "Failure", "message": "etcdserver: leader changed", "reason": "InternalError"}
PAGE = "<html><body><h1>503 Service Temporarily Unavailable</h1></body></html>"


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize(
    ("content", "body", "said"),
    [
        pytest.param("application/json", json.dumps(STATUS), STATUS["message"], id="a Status"),
        pytest.param("text/html", PAGE, "Temporarily", id="a load balancer's page"),
        pytest.param("text/plain", "", "GET", id="nothing"),
        pytest.param("application/json", "[1]", "GET", id="no object"),
        pytest.param("application/json", '{"kind": "Sta', "GET", id="half of one"),
        pytest.param("application/octet-stream", b"\xff\xfe\x00", "GET", id="no text"),
    ],
)
def test_a_server_that_cannot_answer_is_asked_again_whatever_it_says(
    status: int, content: str, body: str | bytes, said: str
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        raw = body if isinstance(body, bytes) else body.encode()
        return web.Response(body=raw, status=status, content_type=content)

    error = asyncio.run(_error_of(refuse, lambda api: api.get(PODS, "ns", "p")))
    assert type(error) is Unavailable
    assert error.status == status
    assert said in str(error)


@pytest.mark.parametrize("body", [PAGE, "", "[1]", '{"kind": "Pod", "metadata": {"na', '{"kind": "Pod"}'])
def test_an_answer_that_is_no_object_is_none_though_its_status_is_200(body: str) -> None:
    """As a proxy gives that asks people to log in: an empty LIST would be the end of everything."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="text/html")

    for call in _CALLS:
        assert type(asyncio.run(_error_of(answer, call))) is Unavailable


@pytest.mark.parametrize("status", [200, 429, 500])
def test_a_connection_that_ends_within_the_body_is_no_answer(status: int) -> None:
    """Nor is the half of a LIST that has come a LIST."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"kind": "PodList", "metadata": {}, "items": []}')
        assert request.transport is not None
        request.transport.abort()
        return response

    for call in _CALLS:
        assert type(asyncio.run(_error_of(answer, call))) is Unavailable


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_counts_although_its_body_breaks_off(status: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Length": "1000", "Retry-After": "7"}
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        await response.write(b'{"kind": "Sta')
        assert request.transport is not None
        request.transport.abort()
        return response

    for call in _CALLS:
        error = asyncio.run(_error_of(answer, call))
        assert (error.status, error.retry_after) == (status, 7.0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(json.dumps({"kind": "Status", "reason": "NotFound"}), NotFound, id="no such object"),
        pytest.param("404 page not found\n", NotFound, id="no such kind"),
        pytest.param(PAGE, Unavailable, id="a proxy that knows no way"),
        pytest.param("default backend - 404", Unavailable, id="an ingress"),
        pytest.param("", Unavailable, id="nothing"),
    ],
)
def test_an_object_is_gone_only_where_the_api_server_itself_says_so(body: str, expected: type[ApiError]) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, status=404)

    for call in _CALLS:
        assert type(asyncio.run(_error_of(answer, call))) is expected


_CALLS: Final[tuple[Call, ...]] = (
    lambda api: api.get(PODS, "ns", "p"),
    lambda api: api.list(PODS),
    lambda api: api.create(PODS, "ns", {"metadata": {"name": "p"}}),
)


GONE = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old resource version"}


def test_a_watch_of_one_name_that_ends_with_410_is_no_silence() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps({"type": "ERROR", "object": GONE}) + "\n", content_type="application/json")

    error = asyncio.run(_error_of(answer, _follow(_nobody)))
    assert (type(error), error.status) == (ApiError, 410)


def test_a_watch_of_one_name_that_is_refused_with_410_is_no_silence() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(GONE, status=410)

    error = asyncio.run(_error_of(answer, _follow(_nobody)))
    assert (type(error), error.status) == (ApiError, 410)


@pytest.mark.parametrize("chunk", [997, 65_536, 10**6])
def test_events_of_a_watch_are_reported_however_they_are_cut_into_pieces(chunk: int) -> None:
    """Also one longer than any buffer; the last one has not come whole."""
    names = ["short", "x" * 300_000, "Grüße"]
    kinds = ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    objects = [{"kind": "Pod", "metadata": {"name": name, "uid": "u"}} for name in (*names, "short")]
    events = [{"type": kind, "object": raw} for kind, raw in zip(kinds, objects, strict=True)]
    lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode() + b'{"type": "MO'
    told: list[Json | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for first in range(0, len(lines), chunk):
            await response.write(lines[first : first + chunk])
        return response

    asyncio.run(_ask(answer, _follow(told.append)))
    assert [raw and raw["metadata"]["name"] for raw in told] == [*names, None]


@pytest.mark.parametrize("line", [PAGE, "[1]", '{"type": "MODIFIED"}', '{"type": "MODIFIED", "object": {"kind": 7}}'])
def test_a_line_of_a_watch_that_is_no_event_is_no_answer(line: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=line + "\n", content_type="application/json")

    assert type(asyncio.run(_error_of(answer, _follow(_nobody)))) is Unavailable


def test_a_watch_whose_connection_breaks_is_no_silence() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        return response

    assert type(asyncio.run(_error_of(answer, _follow(_nobody)))) is Unavailable


def _follow(on_change: OnChange) -> Call:
    return lambda api: api.follow(PODS, "ns", "p", version="7", seconds=60, on_change=on_change)


def _nobody(_: Json | None) -> None:
    raise AssertionError("nothing was to be told")


async def _ask(answer: Answer, call: Call) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        host = str(server.make_url("")).rstrip("/")
        async with KubeApi(client.ApiClient(client.Configuration(host=host))) as api:
            await call(api)


async def _error_of(answer: Answer, call: Call) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await _ask(answer, call)
    return caught.value


async def _error_of_a_patch(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> ApiError:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return await _error_of(
        refuse, lambda api: api.patch(PODS, "ns", "p", [{"op": "test", "path": "/metadata/uid", "value": "u"}])
    )


WRITES_OF_A_POD: Final[dict[str, Call]] = {
    "create": lambda api: api.create(PODS, "ns", {}),
    "dry run": lambda api: api.create(PODS, "ns", {}, dry_run=True),
    "patch": lambda api: api.patch(PODS, "ns", "p", []),
}


@pytest.mark.parametrize("write", WRITES_OF_A_POD.values(), ids=list(WRITES_OF_A_POD))
def test_a_pod_is_written_though_its_webhook_takes_longer_than_any_other_call_may(write: Call) -> None:
    async def scene() -> None:
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            if request.method == "GET":
                await asyncio.Event().wait()
            begun.set()
            await given_up.wait()
            return web.json_response({"metadata": {"name": "p", "uid": "u"}})

        async def call(api: KubeApi) -> None:
            api._timeout = 0.2  # the other limit stays as it is
            written = asyncio.ensure_future(write(api))
            await begun.wait()
            with pytest.raises(Unavailable):
                await api.get(PODS, "ns", "other")
            given_up.set()
            assert (await written)["metadata"]["name"] == "p"

        await _ask(answer, call)

    asyncio.run(scene())


def test_a_webhook_may_take_as_long_as_kubernetes_allows() -> None:
    assert kube.ADMISSION_SECONDS > 30


REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)


def test_a_review_is_posted_and_comes_back_though_it_has_no_name() -> None:
    seen: list[tuple[str, str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append((request.method, request.path, body))
        return web.json_response(body | {"metadata": {}, "status": {"authenticated": True}}, status=201)

    async def call(api: KubeApi) -> None:
        assert (await api.review(REVIEWS, {"spec": {"token": "t"}}))["status"] == {"authenticated": True}

    asyncio.run(_ask(answer, call))
    assert seen == [("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "t"}})]


def test_a_document_that_is_no_object_of_the_api_is_read_and_its_refusal_is_an_error() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/openid/v1/jwks":
            assert request.headers["Accept"] == "*/*", "the API server answers 406 to who wants JSON"
            return web.json_response({"keys": []}, content_type="application/jwk-set+json")
        return web.json_response({"kind": "Status", "message": "no right", "reason": "Forbidden"}, status=403)

    async def call(api: KubeApi) -> None:
        assert await api.document("/openid/v1/jwks") == {"keys": []}

    asyncio.run(_ask(answer, call))
    assert isinstance(asyncio.run(_error_of(answer, lambda api: api.document("/other"))), Forbidden)


def test_a_refused_review_is_an_error() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "no right", "reason": "Forbidden"}, status=403)

    assert isinstance(asyncio.run(_error_of(refuse, lambda api: api.review(REVIEWS, {}))), Forbidden)


def test_requests_are_counted_by_verb_and_status_and_those_without_an_answer_too() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/p"):
            return web.json_response({"message": "none"}, status=404)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def call(api: KubeApi) -> None:
        for ask in (api.get(PODS, "ns", "p"), api.get(PODS, "ns", "p"), api.create(PODS, "ns", {})):
            with pytest.raises(ApiError):
                await ask
        assert api.requests == {("GET", "404"): 2, ("POST", "none"): 1}

    asyncio.run(_ask(answer, call))
