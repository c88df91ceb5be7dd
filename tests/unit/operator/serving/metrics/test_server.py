"""The real server on a real port, and clients that speak TLS and bytes to it. `review` stands for the API server."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from perdure.errors import UserError
from perdure_operator.cluster.protocol import Resource, Unavailable
from perdure_operator.serving.certificate import SelfMade
from perdure_operator.serving.connections import Limits, RequestRefused, listen, parse, serve
from perdure_operator.serving.metrics.access import Gate
from perdure_operator.serving.metrics.server import HEADER_BYTES, NAME, Body, Collect, endpoint, takes_gzip
from perdure_operator.serving.reviews import TOKEN_REVIEWS

FAR = 60.0
"""Seconds that no test should come near."""
PATIENT = Limits(handshake=FAR, headers=FAR, answer=FAR)
GET = "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n"
SERVED = SelfMade(["localhost"])


class ApiServer:
    """Knows the tokens `reader…` and `stranger`; does not answer about `silence`."""

    def __init__(self) -> None:
        self.allowed = asyncio.Semaphore(0)
        """Released for each reader."""

    async def review(self, resource: Resource, body: Any) -> Any:
        if resource != TOKEN_REVIEWS:
            allowed = body["spec"]["user"].startswith("reader")
            if allowed:
                self.allowed.release()
            return {"status": {"allowed": allowed}}
        token = body["spec"]["token"]
        if token == "silence":
            raise Unavailable("no answer")
        known = token.startswith(("reader", "stranger"))
        return {"status": {"authenticated": known, "user": {"username": token}}}


@dataclass
class Scrapes:
    """What is collected, and how many at once."""

    text: bytes = b"perdure 1\n"
    running: int = 0
    most: int = 0
    gzip: list[bool] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def collect(self, gzip: bool) -> Body:
        self.running += 1
        self.most = max(self.most, self.running)
        self.gzip.append(gzip)
        await self.go_on.wait()
        self.running -= 1
        return Body(self.text, "text/plain; version=0.0.4", gzipped=gzip)


@asynccontextmanager
async def serving(limits: Limits, collect: Collect, api: ApiServer | None = None) -> AsyncIterator[int]:
    listener = listen(0, name=NAME)
    port = listener.getsockname()[1]
    served = endpoint(Gate(api or ApiServer()), collect)
    task = asyncio.create_task(serve(listener, SERVED, served, limits=limits))
    try:
        yield port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=trusting)


async def sent(port: int, request: str | bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await connected(port)
    writer.write(request.encode("latin-1") if isinstance(request, str) else request)
    answer = await reader.read()
    writer.close()
    return answer


def answered(request: str | bytes, limits: Limits = PATIENT, scrapes: Scrapes | None = None) -> bytes:
    async def ask() -> bytes:
        made = scrapes or Scrapes()
        made.go_on.set()
        async with asyncio.timeout(FAR), serving(limits, made.collect) as port:
            return await sent(port, request)

    return asyncio.run(ask())


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_who_may_read_gets_the_text_and_the_connection_ends() -> None:
    head, _, body = answered(GET.format("reader")).partition(b"\r\n\r\n")
    assert body == b"perdure 1\n"
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert {"Content-Length: 10", "Content-Type: text/plain; version=0.0.4", "Connection: close"} <= set(lines)
    assert "Content-Encoding: gzip" not in lines


def test_a_packed_answer_says_so() -> None:
    request = GET.format("reader").replace("Host: x", "Accept-Encoding: br, gzip")
    assert b"\r\nContent-Encoding: gzip\r\n" in answered(request)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param("GET /metrics HTTP/1.1\r\n\r\n", 401, id="no token"),
        pytest.param("GET /metrics HTTP/1.1\r\nAuthorization: Basic cmVhZGVy\r\n\r\n", 401, id="no bearer token"),
        pytest.param("GET /metrics HTTP/1.1\r\nAuthorization: Bearer \r\n\r\n", 401, id="an empty token"),
        pytest.param(GET.format("wrong"), 401, id="a wrong token"),
        pytest.param(GET.format("stranger"), 403, id="a user without the right"),
        pytest.param(GET.format("silence"), 503, id="no answer of the API server"),
        pytest.param(GET.format("reader").replace("/metrics", "/"), 404, id="another path"),
        pytest.param(GET.format("reader").replace("/metrics", "/metrics/x"), 404, id="a path below"),
        pytest.param(GET.format("reader").replace("GET", "POST"), 405, id="another method"),
        pytest.param(GET.format("reader").replace("/1.1", "/2"), 400, id="another protocol"),
        pytest.param(b"\x00\xff\xfe\r\n\r\n", 400, id="no request"),
        pytest.param("GET /metrics HTTP/1.1\r\nX: " + "x" * 2 * HEADER_BYTES, 431, id="headers that are too long"),
    ],
)
def test_everything_else_is_refused_and_collects_nothing(request_: str | bytes, expected: int) -> None:
    scrapes = Scrapes()
    assert status(answered(request_, scrapes=scrapes)) == expected
    assert scrapes.gzip == []


def test_headers_that_never_end_are_not_waited_for() -> None:
    limits = Limits(handshake=FAR, headers=0.2, answer=FAR)
    assert status(answered("GET /metrics HTTP/1.1\r\nX: y\r\n", limits)) == 408


def test_a_client_that_never_speaks_tls_is_dropped_and_the_next_one_is_served() -> None:
    async def ask() -> tuple[bytes, bytes]:
        scrapes = Scrapes()
        scrapes.go_on.set()
        limits = Limits(connections=2, handshake=3.0, headers=FAR, answer=FAR)  # the next one's, too
        async with asyncio.timeout(FAR), serving(limits, scrapes.collect) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            served = await sent(port, GET.format("reader"))
            rests = [await reader.read() for reader, _ in silent]
            for _, writer in silent:
                writer.close()
        return b"".join(rests), served

    rests, served = asyncio.run(ask())
    assert (rests, status(served)) == (b"", 200)


def test_a_connection_above_the_limit_waits_for_one_to_end() -> None:
    async def ask() -> tuple[int, list[int]]:
        scrapes = Scrapes()
        async with asyncio.timeout(FAR), serving(replace(PATIENT, connections=2), scrapes.collect) as port:
            first, second = [await connected(port) for _ in range(2)]
            third = asyncio.create_task(sent(port, GET.format("wrong")))
            done, _ = await asyncio.wait({third}, timeout=0.5)
            second[1].write(GET.format("wrong").encode())
            answers = [await second[0].read(), await third]
            first[1].write(GET.format("wrong").encode())
            answers.append(await first[0].read())
            for _, writer in (first, second):
                writer.close()
        return len(done), [status(one) for one in answers]

    assert asyncio.run(ask()) == (0, [401, 401, 401])


def test_one_scrape_at_a_time_is_collected() -> None:
    async def ask() -> tuple[int, list[int]]:
        scrapes, api = Scrapes(), ApiServer()
        async with asyncio.timeout(FAR), serving(PATIENT, scrapes.collect, api) as port:
            clients = [await connected(port) for _ in range(4)]
            for number, (_, writer) in enumerate(clients):
                writer.write(GET.format(f"reader{number}").encode())
            for _ in clients:
                await api.allowed.acquire()
            for _ in range(10):  # from the answer about the last reader to its scrape
                await asyncio.sleep(0)
            scrapes.go_on.set()
            answers = [await reader.read() for reader, _ in clients]
            for _, writer in clients:
                writer.close()
        return scrapes.most, [status(one) for one in answers]

    assert asyncio.run(ask()) == (1, [200] * 4)


def test_a_fault_in_a_scrape_is_an_answer_and_a_line_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_: bool) -> Body:
        raise ValueError("a fault")

    async def ask() -> list[int]:
        async with asyncio.timeout(FAR), serving(PATIENT, fails) as port:
            return [status(await sent(port, GET.format("reader"))) for _ in range(2)]

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(ask()) == [500, 500]
    assert "a fault" in caplog.text


def test_a_client_that_does_not_read_its_answer_is_dropped_and_the_next_one_is_served() -> None:
    async def ask() -> bytes:
        scrapes = Scrapes(text=b"x" * 32_000_000)  # more than the kernel keeps
        scrapes.go_on.set()
        limits = Limits(connections=1, handshake=FAR, headers=FAR, answer=2.0)
        async with asyncio.timeout(25), serving(limits, scrapes.collect) as port:
            _, writer = await connected(port)
            writer.write(GET.format("reader").encode())
            served = await sent(port, GET.format("wrong"))
            writer.transport.abort()
        return served  # without the limit, asyncio ends the connection after 30 s

    assert status(asyncio.run(ask())) == 401


def test_a_port_that_is_taken_is_one_line_with_a_remedy() -> None:
    with listen(0, name=NAME) as taken, pytest.raises(UserError, match="give another --metrics-port"):
        listen(taken.getsockname()[1], name=NAME)


def test_both_families_are_served_where_the_machine_has_both() -> None:
    with listen(0, name=NAME) as listener:
        assert listener.family == (socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.0", False), ("identity", False)],
)
def test_gzip_is_taken_as_the_client_accepts_it(accepted: str, expected: bool) -> None:
    assert takes_gzip(accepted) is expected


SERVES = endpoint(Gate(ApiServer()), Scrapes().collect)


def test_names_of_headers_and_the_scheme_are_read_in_any_case() -> None:
    head = b"GET /metrics?x=1 HTTP/1.1\r\nauthorization: bearer t\r\nACCEPT-encoding: gzip\r\n\r\n"
    request = parse(head, SERVES)
    assert (request.token, request.headers["accept-encoding"]) == ("t", "gzip")


def test_the_first_of_two_headers_counts() -> None:
    head = b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"
    assert parse(head, SERVES).token == "a"


@pytest.mark.parametrize("line", [b"", b"GET", b"GET /metrics", b"GET  /metrics HTTP/1.1"])
def test_half_a_request_line_is_refused(line: bytes) -> None:
    with pytest.raises(RequestRefused):
        parse(line + b"\r\n\r\n", SERVES)
