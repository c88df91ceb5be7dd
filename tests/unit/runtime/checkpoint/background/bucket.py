"""An S3 server in the test's process that holds a request at a chosen moment: before it is carried out, or after.

Knows whole objects and no signatures. What servers really do with conditions is in the contract tests.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from awscrt.checksums import crc64nvme

from perdure.wire import Env

ROOT = "s3://bucket/root"
SECONDS = 300
"""More than anything takes here on a machine that is busy."""
_FOLDER = "/bucket/root/"


@dataclass
class Hold:
    """Holds the first PUT of a key that ends so, of those that begin from now on."""

    suffix: str
    after: bool
    """Whether it is carried out first; its answer is held."""
    arrived: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_PUT(self) -> None:
        size, hold = int(self.headers["Content-Length"]), self.server.hold
        data, key = self.rfile.read(size), self.path.removeprefix(_FOLDER)
        if len(data) < size:  # who sent it has been killed, and no S3 keeps a part
            self.close_connection = True
            return
        self._wait(hold, key, after=False)
        status = self.server.statuses.pop(0) if self.server.statuses else self._put(key, data)
        self._wait(hold, key, after=True)
        code = {403: "AccessDenied", 412: "PreconditionFailed"}.get(status, "SlowDown")
        self._answer(status, b"" if status == 200 else b"<Error><Code>%s</Code></Error>" % code.encode())

    def _put(self, key: str, data: bytes) -> int:
        with self.server.changed:
            if self.headers["If-None-Match"] and key in self.server.objects:
                return 412
            self.server.objects[key] = data
            self.server.puts.append(key)
            self.server.changed.notify_all()
            return 200

    def _wait(self, hold: Hold | None, key: str, *, after: bool) -> None:
        if hold and hold is self.server.hold and hold.after == after and key.endswith(hold.suffix):
            self.server.hold = None
            hold.arrived.set()
            hold.go.wait(SECONDS)

    def do_GET(self) -> None:
        data = self.server.objects.get(self.path.removeprefix(_FOLDER).partition("?")[0])
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, data)

    def do_HEAD(self) -> None:
        data = self.server.objects.get(self.path.removeprefix(_FOLDER))
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 08:00:00 GMT")
        if data is not None:
            self.send_header("x-amz-checksum-crc64nvme", base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode())
        self.end_headers()

    def _answer(self, status: int, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # who asked has been killed

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.changed = threading.Condition()
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.statuses: list[int] = []
        self.hold: Hold | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection whose other end was killed is no error here."""


class Bucket:
    """The server, and its contents."""

    def __enter__(self) -> Self:
        self._server = _Server()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def objects(self) -> dict[str, bytes]:
        return self._server.objects

    @property
    def puts(self) -> list[str]:
        """The keys that were written, in order."""
        return self._server.puts

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs to write here."""
        return {
            Env.S3_ENDPOINT: f"http://127.0.0.1:{self._server.server_port}",
            Env.S3_REGION: "us-east-1",
            Env.S3_PATH_STYLE: "true",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }

    def answer(self, *statuses: int) -> None:
        """The statuses of the next PUTs, which are not carried out."""
        self._server.statuses = list(statuses)

    def wait_for(self, key: str) -> bool:
        """Until there is an object under this key; False if that takes too long."""
        with self._server.changed:
            return self._server.changed.wait_for(lambda: key in self.objects, timeout=SECONDS)

    def hold(self, suffix: str, *, after: bool) -> Hold:
        self._server.hold = Hold(suffix, after)
        return self._server.hold
