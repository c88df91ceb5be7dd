"""GET /metrics over HTTPS, for those whom the API server allows; everything else gets a short refusal.

One request a connection, so that each connection has an end: a TLS handshake of 3 s, headers of 2 s and 8 KiB, an
answer of 10 s. At most 16 connections at once, and 50 new ones a second: the others wait in the kernel, because
handshakes take the operator's time. One scrape at a time is collected, in a thread. Called by `loop.operator`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from perdure.errors import UserError
from perdure_operator.metrics.access import PATH, Access, Gate
from perdure_operator.metrics.certificate import Contexts

PAUSE_SECONDS: Final = 0.02
"""Between two accepted connections."""
HEADER_BYTES: Final = 8192
"""A projected token takes 1 to 2 KiB."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How many connections there are at once, and the seconds that each part of one may take."""

    connections: int = 16
    handshake: float = 3.0
    headers: float = 2.0
    answer: float = 10.0


@dataclass(frozen=True)
class Body:
    """One scrape's text."""

    text: bytes
    content_type: str
    gzipped: bool = False


Collect = Callable[[bool], Coroutine[Any, Any, Body]]
"""Collects one scrape, gzipped if True."""


class RequestRefused(Exception):
    """The request is answered with this status and one line."""

    def __init__(self, status: HTTPStatus, words: str, *headers: str) -> None:
        super().__init__(words)
        self.status, self.words, self.headers = status, words, headers


@dataclass(frozen=True)
class ScrapeRequest:
    """The parts of a request that matter here."""

    token: str
    gzip: bool


def listen(port: int) -> socket.socket:
    """A listening socket on all addresses, of both families where the machine has both. Raises UserError."""
    both = socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if both else socket.AF_INET
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=64)
    except OSError as error:
        raise UserError(f"cannot serve metrics on port {port}: {error.strerror}: give another --metrics-port") from None
    listener.setblocking(False)
    return listener


async def serve(
    listener: socket.socket, contexts: Contexts, gate: Gate, collect: Collect, *, limits: Limits | None = None
) -> None:
    """Serve until cancelled; closes the listener."""
    bounds = limits or Limits()
    free = asyncio.Semaphore(bounds.connections)
    loop, one_scrape = asyncio.get_running_loop(), asyncio.Lock()

    async def one_at_a_time(gzip: bool) -> Body:
        async with one_scrape:
            return await collect(gzip)

    async with asyncio.TaskGroup() as group:
        with listener:
            while True:
                await free.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # too many open files, mostly
                    free.release()
                    logger.warning("metrics: a connection could not be accepted: %s", error)
                    await asyncio.sleep(1)
                    continue
                task = group.create_task(_connection(connection, contexts, gate, one_at_a_time, bounds))
                task.add_done_callback(lambda _: free.release())
                await asyncio.sleep(PAUSE_SECONDS)


async def _connection(
    connection: socket.socket, contexts: Contexts, gate: Gate, collect: Collect, limits: Limits
) -> None:
    """Answer one request. A client's fault is no line in the log; a fault of ours ends this connection alone."""
    try:
        reader, writer = await _handshake(connection, contexts, limits)
    except (OSError, TimeoutError):
        connection.close()
        return
    except Exception:
        connection.close()
        logger.exception("metrics: an unexpected error ended a connection")
        return
    try:
        answer = await _answer(reader, gate, collect, limits)
        async with asyncio.timeout(limits.answer):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        pass  # the client went away, or is too slow
    except Exception:
        logger.exception("metrics: an unexpected error ended a request")
    finally:
        writer.transport.abort()


async def _handshake(
    connection: socket.socket, contexts: Contexts, limits: Limits
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=HEADER_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=contexts.current(), ssl_handshake_timeout=limits.handshake
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _answer(reader: asyncio.StreamReader, gate: Gate, collect: Collect, limits: Limits) -> bytes:
    try:
        try:
            async with asyncio.timeout(limits.headers):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly") from None
        except asyncio.LimitOverrunError:
            words = f"the headers are longer than {HEADER_BYTES} bytes"
            raise RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words) from None
        request = parse(head)
        _require(await gate.access(request.token))
        body = await collect(request.gzip)
    except RequestRefused as refusal:
        return _response(refusal.status, f"{refusal.words}\n".encode(), "text/plain; charset=utf-8", *refusal.headers)
    except Exception:
        logger.exception("metrics: an unexpected error as a scrape was collected")
        failed = b"an error in the operator: its log has it\n"
        return _response(HTTPStatus.INTERNAL_SERVER_ERROR, failed, "text/plain; charset=utf-8")
    encoding = ("Content-Encoding: gzip",) if body.gzipped else ()
    return _response(HTTPStatus.OK, body.text, body.content_type, "Vary: Accept-Encoding", *encoding)


def parse(head: bytes) -> ScrapeRequest:
    """Read a request's head. Raises RequestRefused for all but GET /metrics with a bearer token."""
    line, *lines = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    if words[1].partition("?")[0] != PATH:
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"only {PATH} is here")
    if words[0] != "GET":
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, f"{PATH} takes GET alone", "Allow: GET")
    headers: dict[str, str] = {}
    for one in lines:
        name, _, value = one.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        words_ = "give a ServiceAccount's token: Authorization: Bearer TOKEN"
        raise RequestRefused(HTTPStatus.UNAUTHORIZED, words_, "WWW-Authenticate: Bearer")
    return ScrapeRequest(token.strip(), _takes_gzip(headers.get("accept-encoding", "")))


def _takes_gzip(accepted: str) -> bool:
    for one in accepted.lower().split(","):
        coding, _, weight = one.replace(" ", "").partition(";")
        if coding == "gzip":
            return weight not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _require(access: Access) -> None:
    match access:
        case Access.ALLOWED:
            return
        case Access.UNKNOWN:
            words = "the API server does not know this token"
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, words, "WWW-Authenticate: Bearer")
        case Access.FORBIDDEN:
            words = f"this user may not get {PATH}: bind the chart's ClusterRole metrics-reader"
            raise RequestRefused(HTTPStatus.FORBIDDEN, words)
        case Access.NO_ANSWER:
            words = "the API server did not say whether this token may read the metrics"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, words, "Retry-After: 5")


def _response(status: HTTPStatus, body: bytes, content_type: str, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
