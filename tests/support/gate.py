"""A front of a real S3 server that lets some parts of one upload through and holds the others.

A test can stop, kill or look at whoever uploads exactly there: between two parts. Everything else passes unchanged.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from e2e.harness.local_s3 import S3Server
from perdure.wire import Env

_OWN = ("connection", "transfer-encoding", "expect")
"""Headers of one connection; `http.server` answers the last one."""
SECONDS = 120.0


class Gate:
    """Holds all but the first `passing` parts of the upload with this number, counted from 1 by their beginnings."""

    def __init__(self, upload: int, passing: int) -> None:
        self._upload, self._passing = upload, passing
        self._lock = threading.Lock()
        self._begun: list[str] = []
        """The uploads' ids, in order."""
        self._seen = self._answered = 0
        self.between = threading.Event()
        """The parts that pass are stored, and at least one waits."""
        self.opened = threading.Event()
        """Nothing is held any more."""

    def begins(self, body: bytes) -> None:
        """The server has answered the beginning of an upload."""
        if found := re.search(rb"<UploadId>([^<]+)</UploadId>", body):
            with self._lock:
                self._begun.append(found[1].decode())

    def holds(self, upload: str) -> bool:
        """Whether this part has to wait; it is the next one of its upload."""
        with self._lock:
            if upload != (self._begun + [""] * self._upload)[self._upload - 1] or self.opened.is_set():
                return False
            self._seen += 1
            self._look()
            return self._seen > self._passing

    def passed(self) -> None:
        """One of those that pass is stored."""
        with self._lock:
            self._answered += 1
            self._look()

    def _look(self) -> None:
        if self._answered >= self._passing and self._seen > self._passing:
            self.between.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Who was killed reads no answer."""


class _Front(BaseHTTPRequestHandler):
    """Passes each request on as it is, on a connection of its own."""

    protocol_version = "HTTP/1.1"
    gate: Gate
    behind: str

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        part = self.command == "PUT" and "partNumber" in asked
        held = part and self.gate.holds(asked["uploadId"][0])
        if held:
            self.gate.opened.wait(SECONDS)
        answer, data = self._ask(body)
        if part and not held:
            self.gate.passed()
        if self.command == "POST" and "uploads" in asked:
            self.gate.begins(data)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*_OWN, "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - names of http.server

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        behind = http.client.HTTPConnection(self.behind, timeout=SECONDS)
        behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OWN:
                behind.putheader(name, value)
        behind.endheaders(body or None)
        answer = behind.getresponse()
        data = answer.read()
        behind.close()
        return answer, data

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _NoAborts(_Front):
    """As where a policy does not allow s3:AbortMultipartUpload."""

    def _ask_to_delete(self) -> None:
        if "uploadId" not in self.path:
            self._pass()
            return
        words = b"<Error><Code>AccessDenied</Code><Message>s3:AbortMultipartUpload</Message></Error>"
        self.send_response_only(403)
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    do_DELETE = _ask_to_delete  # noqa: N815 - a name of http.server


@contextmanager
def gated(server: S3Server, gate: Gate) -> Iterator[str]:
    """The address of the front of a server."""
    with _fronted(server, _Front, gate) as address:
        yield address


@contextmanager
def without_aborts(server: S3Server) -> Iterator[str]:
    """The address of the front of a server, which aborts no upload."""
    with _fronted(server, _NoAborts, Gate(1, 2**30)) as address:
        yield address


@contextmanager
def _fronted(server: S3Server, kind: type[_Front], gate: Gate) -> Iterator[str]:
    place = {"gate": gate, "behind": urlsplit(server.environ[Env.S3_ENDPOINT]).netloc}
    with _Server(("127.0.0.1", 0), type("_Gated", (kind,), place)) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{front.server_address[1]}"
        finally:
            gate.opened.set()
            front.shutdown()
