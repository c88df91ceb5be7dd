"""The operator's side for tests: an HTTPS server of the standard library that answers reports as it is told."""

from __future__ import annotations

import queue
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from e2e.cluster.pki import Pki
from perdure.wire.report import Channel, Report, ReportAnswer, read_report, write_answer, write_channel

DEADLINE = 120.0
PATIENT = write_answer(ReportAnswer(300))
EAGER = write_answer(ReportAnswer(1))


@dataclass(frozen=True)
class Got:
    """A request."""

    path: str
    token: str
    body: str
    connection: int
    """The client's port: the same for two requests of one connection."""

    @property
    def report(self) -> Report:
        return read_report(self.body)


Answering = Callable[[BaseHTTPRequestHandler], None]


def answer(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Answering:
    """Answers each request with this text."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return send


@dataclass
class ReportServer:
    """Its requests, in the order of their arrival."""

    port: int
    authority: str
    """In PEM, of its certificate."""
    requests: queue.Queue[Got] = field(default_factory=queue.Queue)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def put_into(self, folder: Path, token: str = "a-token") -> None:  # noqa: S107 - none
        """Writes the files of a pod whose operator takes reports here."""
        (folder / "report").write_text(write_channel(Channel(self.url, self.authority)))
        put_token(folder, token)

    def next(self) -> Got:
        return self.requests.get(timeout=DEADLINE)


def put_token(folder: Path, token: str) -> None:
    """As the kubelet does: whole or not at all."""
    (folder / "token.new").write_text(token)
    (folder / "token.new").rename(folder / "token")


@contextmanager
def serving(pki: Pki, answering: Answering) -> Iterator[ReportServer]:
    """`pki` has issued a certificate named "localhost"."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            token = self.headers["Authorization"].removeprefix("Bearer ")
            server.requests.put(Got(self.path, token, body, self.client_address[1]))
            answering(self)

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that goes away is no error here."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.certificate("localhost"), pki.key("localhost"))
    with Quiet(("127.0.0.1", 0), Handler) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        server = ReportServer(http.server_address[1], pki.authority.read_text())
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def issued(folder: Path) -> Pki:
    """An authority with a certificate for localhost."""
    pki = Pki(folder)
    pki.create()
    pki.issue("localhost", "/CN=localhost", ["DNS:localhost"])
    return pki
