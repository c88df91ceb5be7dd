"""The front passes requests on, or answers as configured; also in the middle of a connection that is kept."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from e2e.harness.local_run import free_port
from e2e.storms import front

SECONDS = 60.0
BODY = bytes(range(256)) * 1024


class Echo(BaseHTTPRequestHandler):
    """Echoes its input, and remembers how often."""

    protocol_version = "HTTP/1.1"
    server: Counting

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Counting(ThreadingHTTPServer):
    requests = 0


@pytest.fixture
def upstream() -> Iterator[Counting]:
    server = Counting(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def manner(tmp_path: Path) -> Path:
    file = tmp_path / "manner"
    file.write_text("ok")
    return file


@pytest.fixture
def port(upstream: Counting, manner: Path) -> Iterator[int]:
    """A front of that server."""
    found = free_port()
    words = [sys.executable, front.__file__, "127.0.0.1", str(found), str(upstream.server_port), str(manner)]
    with subprocess.Popen(words) as process:
        yield found
        process.kill()


@contextlib.contextmanager
def connected(port: int) -> Iterator[http.client.HTTPConnection]:
    """Once it listens."""
    over = threading.Event()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        for _ in range(int(SECONDS / 0.1)):
            with contextlib.suppress(OSError):
                connection.connect()
                break
            over.wait(0.1)
        yield connection


def put(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    connection.request("PUT", "/key", BODY)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_it_hands_on_each_request_of_a_connection(port: int) -> None:
    with connected(port) as connection:
        assert [put(connection) for _ in range(3)] == [(200, BODY)] * 3


@pytest.mark.parametrize(("told", "code"), [("500", b"InternalError"), ("403", b"AccessDenied")])
def test_it_answers_with_an_error_of_s3_and_hands_on_again_afterwards(
    port: int, manner: Path, told: str, code: bytes
) -> None:
    with connected(port) as connection:
        assert put(connection) == (200, BODY)
        manner.write_text(told)
        status, body = put(connection)
    manner.write_text("ok")
    assert (str(status), code in body) == (told, True)
    with connected(port) as connection:
        assert put(connection) == (200, BODY)


@pytest.mark.parametrize("told", ["slow", "frozen"])
def test_what_is_slow_or_frozen_comes_in_the_end(port: int, manner: Path, told: str) -> None:
    with connected(port) as connection:
        manner.write_text(told)
        threading.Timer(0.3, manner.write_text, ["ok"]).start()
        assert put(connection) == (200, BODY)


@pytest.mark.parametrize(("told", "done"), [("cut", 1), ("mute", 2)])
def test_no_answer_comes_over_a_connection_that_is_cut_or_mute_and_what_was_asked_of_a_mute_one_is_done(
    port: int, manner: Path, upstream: Counting, told: str, done: int
) -> None:
    with connected(port) as connection:
        assert put(connection) == (200, BODY)
        manner.write_text(told)
        with pytest.raises(ConnectionError):
            put(connection)
    assert upstream.requests == done
    manner.write_text("ok")
    with connected(port) as connection:
        assert put(connection) == (200, BODY)


def test_a_mute_one_lets_a_patient_client_send(port: int, manner: Path, upstream: Counting) -> None:
    manner.write_text("mute")
    with connected(port) as connection:
        connection.putrequest("PUT", "/key")
        connection.putheader("Content-Length", str(len(BODY)))
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        assert connection.sock.recv(1 << 10).startswith(b"HTTP/1.1 100")
        connection.sock.sendall(BODY)
        assert connection.sock.recv(1) == b""
    assert upstream.requests == 1
