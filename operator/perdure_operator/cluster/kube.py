"""The ClusterApi over kubernetes.aio: raw JSON in and out, a timeout on every call.

It uses the client's transport and logins, but not its models: the operator must not lose fields that it does not read.
It retries nothing: the queue does. Made by `loop.operator` and `cli`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from perdure.errors import UserError
from perdure_operator.cluster import decode
from perdure_operator.cluster.clock import ServerClock
from perdure_operator.cluster.protocol import (
    PODS,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Json,
    NotFound,
    OnChange,
    Operation,
    Resource,
    Unavailable,
)

TIMEOUT_SECONDS: Final = 10.0
"""The limit of one call. The Lease has a shorter one."""
ADMISSION_SECONDS: Final = 35.0
"""The limit of a call that creates or changes a pod. A webhook that does not answer takes up to 30 s of it; with
failurePolicy Ignore the API server then writes the pod."""
PAGE: Final = 100
"""Objects in a page: a page of large objects must fit into memory, and parsing it must not block the event loop."""

_JSON: Final = "application/json"
_DENIED: Final = re.compile(r"denied (the )?request")
"""How the API server begins what a webhook or a ValidatingAdmissionPolicy says."""
_NO_SUCH_KIND: Final = b"404 page not found"
"""The whole body of the API server's answer for a kind that it does not serve."""
_LONGEST_WAIT: Final = 300.0
"""Upper bound on Retry-After, in seconds: a proxy may ask for a day although the server is back in a minute."""
_NO_HEADERS: Final[Mapping[str, str]] = {}
_JSON_PATCH: Final = "application/json-patch+json"
_IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class Credentials:
    """The cluster's address and our credentials, for kopf's client."""

    server: str
    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    scheme: str | None = None
    token: str | None = None
    insecure: bool = False


async def login(kubeconfig: str | None = None) -> KubeApi:
    """Connect with `kubeconfig`; without it as the pod's ServiceAccount, or with $KUBECONFIG or ~/.kube/config.

    Raises UserError if there is no usable configuration.
    """
    return KubeApi(client.ApiClient(await _configuration(kubeconfig)))


async def credentials(kubeconfig: str | None = None) -> Credentials:
    """The credentials that `login` would use, read again: tokens expire."""
    configuration = await _configuration(kubeconfig)
    scheme, _, token = str(configuration.api_key.get("BearerToken", "")).partition(" ")
    return Credentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        certificate_path=configuration.cert_file,
        key_path=configuration.key_file,
        scheme=scheme.capitalize() if token else None,
        token=token.strip() or None,
        insecure=not configuration.verify_ssl,
    )


async def _configuration(kubeconfig: str | None) -> Any:
    configuration = client.Configuration()
    try:
        if kubeconfig is None and _IN_CLUSTER_TOKEN.exists():
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        where = kubeconfig or "no ServiceAccount token, and $KUBECONFIG and ~/.kube/config"
        raise UserError(f"no cluster to talk to: {where}: {error}. Give --kubeconfig FILE") from None
        # With trust_env, aiohttp looks up proxies and reads ~/.netrc, in a thread each, before each request.
    configuration.client_session_kwargs = {"trust_env": behind_a_proxy(configuration.host)}
    return configuration


def behind_a_proxy(server: str) -> bool:
    """Whether the environment names a proxy for this server, NO_PROXY considered."""
    url = urlsplit(server)
    return url.scheme in getproxies() and not proxy_bypass(url.hostname or "")


class KubeApi:
    """A ClusterApi. Close it, or use it as an async context manager."""

    def __init__(self, transport: Any, *, timeout: float = TIMEOUT_SECONDS, clock: ServerClock | None = None) -> None:
        self._transport = transport
        self._timeout = timeout
        self._clock = clock or ServerClock()
        self.requests = Counter[tuple[str, str]]()
        """Requests by method and status; the status is "none" where no answer came."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def server_time(self) -> datetime:
        """See ClusterApi."""
        return self._clock.now()

    async def serves(self, resource: Resource) -> bool:
        """See ClusterApi. Reads a discovery document, which every authenticated client may read."""
        what, path = f"GET {resource.root}", resource.root
        async with _bounded(what, self._timeout):
            answer = await self._send("GET", path, self._timeout)
            data = await _read(answer)
        try:
            known = _body(what, int(answer.status), data, answer.headers).get("resources")
        except NotFound:
            return False
        return any(isinstance(one, dict) and one.get("name") == resource.plural for one in known or ())

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        """See ClusterApi."""
        return [raw async for page in self.pages(resource, namespace, selector=selector) for raw in page]

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        """See ClusterApi."""
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._call("GET", resource.path(namespace), query=query)
            # List items have neither kind nor apiVersion; nothing here reads those.
            yield decode.known_items(page, resource.plural)
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            query = query | {"continue": token}

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """See ClusterApi."""
        return await self._call("GET", resource.path(namespace, name))

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, on_change: OnChange
    ) -> None:
        """See ClusterApi. Needs only the right to watch that one name."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, math.floor(seconds))),
        }
        what, patience = f"WATCH {resource.path(namespace)}", seconds + self._timeout
        async with _bounded(what, patience):
            answer = await self._send("GET", resource.path(namespace), patience, query=query)
            try:
                if answer.status >= 300:
                    _document(what, int(answer.status), await _read(answer), answer.headers)
                async for line in _lines(answer.response.content):
                    _deliver(what, line, on_change)
            finally:
                _abort(answer.response)

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        """See ClusterApi."""
        query = {"dryRun": "All"} if dry_run else {}
        return await self._call(
            "POST", resource.path(namespace), query=query, body=body, seconds=self._for_writing(resource)
        )

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        """See ClusterApi."""
        return await self._patch(resource.path(namespace, name), operations, self._for_writing(resource))

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        """See ClusterApi."""
        return await self._patch(resource.path(namespace, name) + "/status", operations, self._timeout)

    def _for_writing(self, resource: Resource) -> float:
        return ADMISSION_SECONDS if resource == PODS else self._timeout

    async def _patch(self, path: str, operations: Sequence[Operation], seconds: float) -> Json:
        body = [dict(operation) for operation in operations]
        try:
            return await self._call("PATCH", path, body=body, content=_JSON_PATCH, seconds=seconds)
        except Invalid as error:
            if error.explained:
                raise
            # The API server answers a failed `test` with 422, without details.
            raise Conflict(str(error), status=error.status, reason=error.reason) from None

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """See ClusterApi."""
        return await self._call("PUT", resource.path(namespace, name), body=body)

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """See ClusterApi."""
        return await self._call("PUT", resource.path(namespace, name) + "/status", body=body)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        """See ClusterApi. The garbage collector deletes dependents in the background."""
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid} | ({"resourceVersion": version} if version else {}),
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self._call("DELETE", resource.path(namespace, name), body=options)

    async def review(self, resource: Resource, body: Json) -> Json:
        """Send a review (TokenReview, SubjectAccessReview) and return it with its status. Raises ApiError.

        A review is stored nowhere, so it has neither name nor uid.
        """
        what, path = f"POST {resource.path()}", resource.path()
        async with _bounded(what, self._timeout):
            answer = await self._send("POST", path, self._timeout, body=body)
            data = await _read(answer)
        return _body(what, int(answer.status), data, answer.headers)

    async def document(self, path: str) -> Json:
        """What the API server has at a path that is none of the API's objects. Raises ApiError."""
        what = f"GET {path}"
        async with _bounded(what, self._timeout):
            answer = await self._send("GET", path, self._timeout, accept="*/*")
            data = await _read(answer)
        return _body(what, int(answer.status), data, answer.headers)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content: str = _JSON,
        seconds: float | None = None,
    ) -> Json:
        what, seconds = f"{method} {path}", seconds or self._timeout
        async with _bounded(what, seconds):
            answer = await self._send(method, path, seconds, query=query, body=body, content=content)
            data = await _read(answer)
        return _document(what, int(answer.status), data, answer.headers)

    async def _send(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> Any:
        """Send a request and return the answer's status and headers; its body is unread."""
        # The client's own serializer would do this for its models; our bodies are JSON already.
        headers = {**self._transport.default_headers, "Accept": accept, "Content-Type": content}
        await self._transport.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._transport.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        sent = self._clock.monotonic()
        code = "none"
        try:
            answer = await self._transport.call_api(method, url, headers, body, _request_timeout=seconds)
            code = str(answer.status)
        finally:
            self.requests[method, code] += 1
        self._clock.heard(answer.headers.get("Date"), sent=sent)
        return answer


@asynccontextmanager
async def _bounded(what: str, seconds: float) -> AsyncIterator[None]:
    """Raise Unavailable for every way in which no answer comes."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(f"{what}: no answer from the API server in {seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{what}: {error}") from None


async def _read(answer: Any) -> bytes:
    """The body; empty if an error response is cut off after its status and headers."""
    try:
        data: bytes = await answer.read()
    except aiohttp.ClientPayloadError:
        if answer.status < 300:
            raise
        return b""
    return data


async def _lines(stream: Any) -> AsyncIterator[bytes]:
    """The complete lines of a stream, of any length; a cut-off last line is dropped."""
    begun = b""
    while chunk := await stream.readany():
        *whole, begun = (begun + chunk).split(b"\n")
        for line in whole:
            yield line


def _deliver(what: str, line: bytes, on_change: OnChange) -> None:
    """Pass on the object of a watch event, or raise the error that the event stands for."""
    event = _body(what, 200, line, _NO_HEADERS)
    raw = event.get("object")
    if event.get("type") == "ERROR" and isinstance(raw, dict):
        raise _refusal(what, int(raw.get("code") or 0), raw)
    known = decode.known_part(raw) if isinstance(raw, dict) else None
    if known is None:
        raise Unavailable(f"{what}: the line is not an event: {line[:200].decode(errors='replace')}")
    on_change(None if event.get("type") == "DELETED" else known)


def _abort(response: Any) -> None:
    """Close the connection in the middle of a stream, without waiting for the server."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _document(what: str, status: int, data: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> Json:
    """The object or LIST of an answer; raises the error that the answer stands for."""
    document = _body(what, status, data, headers)
    if "items" in document or document.get("kind") == "Status":
        return document
    known = decode.known_part(document)
    if known is None:  # read as an empty LIST, it would make every object look deleted
        raise Unavailable(f"{what}: the answer is not an object: {data[:200].decode(errors='replace')}", status=status)
    return known


def _body(what: str, status: int, data: bytes, headers: Mapping[str, str]) -> Json:
    """The answer's body; raises the error that the answer stands for."""
    try:
        body = decode.document(data)
    except ValueError:
        body = None
    document: Json = body if isinstance(body, dict) else {}
    if status >= 300:
        message = str(document.get("message") or data[:200].decode(errors="replace"))
        reason = "NotFound" if data.strip() == _NO_SUCH_KIND else document.get("reason", "")
        raise _refusal(what, status, document | {"message": message, "reason": reason}, headers)
    return document


def _refusal(what: str, status: int, document: Json, headers: Mapping[str, str] = _NO_HEADERS) -> ApiError:
    reason, message = str(document.get("reason", "")), str(document.get("message", ""))
    kind = Forbidden if _refused_by_admission(status, message) else _error_type(status, reason)
    error = kind(f"{what}: {message}", status=status, reason=reason, retry_after=_retry_after(headers))
    error.explained = _explained(document, message)
    return error


def _refused_by_admission(status: int, message: str) -> bool:
    """Whether a webhook denied the request, with whatever status, or did not answer.

    With failurePolicy Fail nothing was written then, and a person has to see to it.
    """
    denied = 400 < status < 500 and status not in (408, 422, 429) and _DENIED.search(message) is not None
    return denied or (status == 500 and "failed calling webhook" in message)


def _explained(document: Json, message: str) -> bool:
    """Whether a refusal names its subject. Admission may use any status, but always says that it denied."""
    details = document.get("details") or {}
    return bool(details.get("name") or details.get("causes")) or "denied" in message


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header in seconds, within reason; the API server sends no dates here."""
    text = headers.get("Retry-After", "")
    return min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdigit() else None


def _error_type(status: int, reason: str) -> type[ApiError]:
    match status:
        case 404:
            # A proxy's 404 says nothing about objects, and whatever is taken for deleted is given up.
            return NotFound if reason == "NotFound" else Unavailable
        case 409:
            return AlreadyExists if reason == "AlreadyExists" else Conflict
        case 400 | 422:
            return Invalid
        case 403:
            return Forbidden
        case 408 | 429:
            return Unavailable
        case _ if status >= 500:
            return Unavailable
        case _:
            return ApiError
