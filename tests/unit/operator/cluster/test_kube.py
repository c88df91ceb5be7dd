"""What the client makes of the API server's answers, and of the environment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from perdure_operator.cluster.kube import KubeApi, behind_a_proxy
from perdure_operator.cluster.protocol import PODS, ApiError, Conflict, Forbidden, Invalid, Json, Unavailable

SERVER = "https://10.0.0.1:6443"
FAILED_TEST = "the server rejected our request due to an error in our request"
POLICY = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"
WEBHOOK = 'admission webhook "x" denied the request: no'


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
        pytest.param(409, "the object has been modified", {"name": "p"}, Conflict, id="newer version"),
    ],
)
def test_who_refuses_a_patch_is_told_from_a_pod_that_is_not_as_it_was(
    status: int, message: str, details: Json | None, expected: type[ApiError]
) -> None:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": "Invalid", "details": details}
    error = asyncio.run(_error_of_a_patch(status, body))
    assert type(error) is expected
    assert message in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"), [({}, None), ({"Retry-After": "7"}, 7.0), ({"Retry-After": "Mon, 23 Nov 2026"}, None)]
)
def test_an_overloaded_server_is_asked_again_when_it_says_and_also_where_it_does_not_say(
    status: int, headers: dict[str, str], seconds: float | None
) -> None:
    error = asyncio.run(_error_of_a_patch(status, {"message": "too many requests"}, headers))
    assert isinstance(error, Unavailable)
    assert error.retry_after == seconds


async def _error_of_a_patch(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> ApiError:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(app) as server:
        host = str(server.make_url("")).rstrip("/")
        async with KubeApi(client.ApiClient(client.Configuration(host=host))) as api:
            with pytest.raises(ApiError) as caught:
                await api.patch(PODS, "ns", "p", [{"op": "test", "path": "/metadata/uid", "value": "u"}])
    return caught.value
