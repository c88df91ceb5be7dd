"""One HTTPS endpoint on a port: one request a connection, so that each connection has an end.

A TLS handshake takes 3 s at most, headers 2 s, a body 2 s, an answer 10 s. There are only so many connections at once,
and so many new ones a second: the others wait in the kernel, because handshakes take the operator's time. One address
has a part of them at most, and more are closed at once, so that one peer cannot keep all others out. Used by
`loop.operator`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from perdure.errors import UserError
from perdure_operator.serving.certificate import Contexts
from perdure_operator.serving.pacing import OnceAMinute

_FAULT: Final = "%s: an unexpected error %s; others of this minute are not logged"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How many connections there are at once, and the seconds that each part of one may take."""

    connections: int = 16
    of_one_address: int = 8
    """As many, because all pods of a node may come by its address."""
    pause: float = 0.02
    """The shortest time between two accepted connections."""
    handshake: float = 3.0
    headers: float = 2.0
    body: float = 2.0
    answer: float = 10.0


@dataclass(frozen=True)
class HttpRequest:
    """A request with a token that has not been checked yet."""

    token: str
    headers: Mapping[str, str]
    """Headers by their names in lower case. The first of two with one name counts."""
    body: bytes = b""


@dataclass(frozen=True)
class HttpResponse:
    """An answer."""

    content: bytes
    content_type: str
    headers: tuple[str, ...] = ()
    status: HTTPStatus = HTTPStatus.OK


class RequestRefused(Exception):
    """The request is answered with this status and one line."""

    def __init__(self, status: HTTPStatus, words: str, *headers: str) -> None:
        super().__init__(words)
        self.status, self.words, self.headers = status, words, headers


@dataclass(frozen=True)
class Endpoint:
    """What is served: one path, by one method."""

    name: str
    """What the log calls it."""
    method: str
    path: str
    respond: Callable[[HttpRequest], Coroutine[Any, Any, HttpResponse]]
    """May raise RequestRefused."""
    header_bytes: int
    """The longest head of a request. A projected token takes 1 to 2 KiB."""
    body_bytes: int = 0
    """The longest body; 0: none is read."""


def listen(port: int, *, name: str, waiting: int = 64) -> socket.socket:
    """A listening socket on all addresses, of both families where the machine has both. So many connections wait in the
    kernel. Raises UserError."""
    both = socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if both else socket.AF_INET
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=waiting)
    except OSError as error:
        raise UserError(f"cannot serve {name} on port {port}: {error.strerror}: give another --{name}-port") from None
    listener.setblocking(False)
    return listener


async def serve(
    listener: socket.socket, contexts: Contexts, endpoint: Endpoint, *, limits: Limits | None = None
) -> None:
    """Serve until cancelled; closes the listener."""
    bounds, faults = limits or Limits(), OnceAMinute()
    free = asyncio.Semaphore(bounds.connections)
    held = Counter[str]()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        with listener:
            while True:
                await free.acquire()
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # too many open files, mostly
                    free.release()
                    logger.warning("%s: a connection could not be accepted: %s", endpoint.name, error)
                    await asyncio.sleep(1)
                    continue
                peer = str(address[0])
                if held[peer] >= bounds.of_one_address:
                    connection.close()
                    free.release()
                    await asyncio.sleep(0)  # an endless stream of connections must not block the event loop
                    continue
                held[peer] += 1
                task = group.create_task(_connection(connection, contexts, endpoint, bounds, faults))
                task.add_done_callback(partial(_released, held, peer, free))
                await asyncio.sleep(bounds.pause)


def _released(held: Counter[str], peer: str, free: asyncio.Semaphore, _: asyncio.Task[None]) -> None:
    held[peer] -= 1
    if not held[peer]:
        del held[peer]
    free.release()


async def _connection(
    connection: socket.socket, contexts: Contexts, endpoint: Endpoint, limits: Limits, faults: OnceAMinute
) -> None:
    """Answer one request. A client's fault is no line in the log; a fault of ours ends this connection alone."""
    try:
        reader, writer = await _handshake(connection, contexts, endpoint, limits)
    except (OSError, TimeoutError):
        connection.close()
        return
    except Exception:
        connection.close()
        if faults.due():
            logger.exception(_FAULT, endpoint.name, "ended a connection")
        return
    try:
        answer = await _answer(reader, endpoint, limits, faults)
        async with asyncio.timeout(limits.answer):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        pass  # the client went away, or is too slow
    except Exception:
        if faults.due():
            logger.exception(_FAULT, endpoint.name, "ended a request")
    finally:
        writer.transport.abort()


async def _handshake(
    connection: socket.socket, contexts: Contexts, endpoint: Endpoint, limits: Limits
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=endpoint.header_bytes, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=contexts.current(), ssl_handshake_timeout=limits.handshake
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _answer(reader: asyncio.StreamReader, endpoint: Endpoint, limits: Limits, faults: OnceAMinute) -> bytes:
    try:
        return _written(await _response(await _read(reader, endpoint, limits), endpoint, faults))
    except RequestRefused as refusal:
        return _written(_line(refusal.words, refusal.status, refusal.headers))


async def _response(request: HttpRequest, endpoint: Endpoint, faults: OnceAMinute) -> HttpResponse:
    try:
        return await endpoint.respond(request)
    except RequestRefused:
        raise
    except Exception:
        if faults.due():
            logger.exception(_FAULT, endpoint.name, "came as a request was answered")
        return _line("an error in the operator: its log has it", HTTPStatus.INTERNAL_SERVER_ERROR)


async def _read(reader: asyncio.StreamReader, endpoint: Endpoint, limits: Limits) -> HttpRequest:
    try:
        async with asyncio.timeout(limits.headers):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly") from None
    except asyncio.LimitOverrunError:
        words = f"the headers are longer than {endpoint.header_bytes} bytes"
        raise RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words) from None
    request = parse(head, endpoint)
    if not endpoint.body_bytes:
        return request
    length = _length(request, endpoint)
    try:
        async with asyncio.timeout(limits.body):
            return replace(request, body=await reader.readexactly(length))
    except TimeoutError:
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, "the body came too slowly") from None


def parse(head: bytes, endpoint: Endpoint) -> HttpRequest:
    """Read a request's head. Raises RequestRefused for all but the endpoint's method and path with a bearer token."""
    line, *lines = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    if words[1].partition("?")[0] != endpoint.path:
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"only {endpoint.path} is here")
    if words[0] != endpoint.method:
        words_ = f"{endpoint.path} takes {endpoint.method} alone"
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, words_, f"Allow: {endpoint.method}")
    headers: dict[str, str] = {}
    for one in lines:
        name, _, value = one.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    scheme, _, token = headers.pop("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        words_ = "give a ServiceAccount's token: Authorization: Bearer TOKEN"
        raise RequestRefused(HTTPStatus.UNAUTHORIZED, words_, "WWW-Authenticate: Bearer")
    return HttpRequest(token.strip(), headers)


def _length(request: HttpRequest, endpoint: Endpoint) -> int:
    """The body's length; refused before a byte of it is read."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "give the body's length: Content-Length")
    if len(length) > len(str(endpoint.body_bytes)) or int(length) > endpoint.body_bytes:
        words = f"the body is longer than {endpoint.body_bytes} bytes"
        raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
    return int(length)


def _line(words: str, status: HTTPStatus, headers: tuple[str, ...] = ()) -> HttpResponse:
    return HttpResponse(f"{words}\n".encode(), "text/plain; charset=utf-8", headers, status)


def _written(response: HttpResponse) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.content)}",
        "Connection: close",
        *response.headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + response.content
