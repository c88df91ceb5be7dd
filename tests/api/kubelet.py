"""The part of a kubelet that serves the logs of containers, to a real API server. The test writes the lines."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from e2e.cluster.apiserver import ApiServer

BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
APART: Final = timedelta(milliseconds=400)
"""From a line to the next: some share a second, by which logs are asked for."""
NAME: Final = "kubelet"


class Kubelet:
    """`with Kubelet(server) as kubelet:`; it serves the nodes that it is told to."""

    def __init__(self, server: ApiServer) -> None:
        self._api = server
        self._lines = dict[str, list[tuple[datetime, str]]]()
        self._ended = set[str]()
        self._cuts = 0
        self._news = threading.Condition()
        self._time = BEGAN
        self.asked = list[dict[str, str]]()
        """What each request asked for."""
        server.pki.issue(NAME, "/CN=kubelet", [f"IP:{server.address}"])
        self._http = ThreadingHTTPServer((server.address, 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Path(server.pki.certificate(NAME)), Path(server.pki.key(NAME)))
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def serves(self, node: str) -> None:
        """The API server asks here for the logs of this node's pods."""
        endpoint = {"kubeletEndpoint": {"Port": self._http.server_address[1]}}
        address = [{"type": "InternalIP", "address": self._api.address}]
        status = {"status": {"addresses": address, "daemonEndpoints": endpoint}}
        self._api.ask(f"/api/v1/nodes/{node}/status", "PATCH", status, "application/merge-patch+json")

    def writes(self, pod: str, *lines: str) -> None:
        """The pod's trainer writes these lines."""
        with self._news:
            for line in lines:
                self._time += APART
                self._lines.setdefault(pod, []).append((self._time, line))
            self._news.notify_all()

    def ends(self, pod: str) -> None:
        """The pod's trainer has ended."""
        with self._news:
            self._ended.add(pod)
            self._news.notify_all()

    def cut(self) -> None:
        """Every connection ends, though its log does not."""
        with self._news:
            self._cuts += 1
            self._news.notify_all()

    def lines(self, pod: str, asked: dict[str, str]) -> Iterator[str]:
        """What a kubelet answers to this."""
        with self._news:
            cuts, written = self._cuts, self._lines.get(pod, [])
            self.asked.append(asked | {"pod": pod})
            since = datetime.fromisoformat(asked["sinceTime"]) if "sinceTime" in asked else BEGAN
            place = max(0, len(written) - int(asked["tailLines"])) if "tailLines" in asked else 0
        while True:
            with self._news:
                while place == len(written) and "follow" in asked and pod not in self._ended and cuts == self._cuts:
                    self._news.wait()
                if place == len(written) or cuts != self._cuts:
                    return
                time, line = written[place]
            place += 1
            if time >= since:
                yield f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z {line}\n"


def _handler(kubelet: Kubelet) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            _, kind, _, pod, _ = parts.path.split("/")
            assert kind == "containerLogs"
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in kubelet.lines(pod, {key: value for key, (value, *_) in parse_qs(parts.query).items()}):
                self._chunk(line.encode())
            self._chunk(b"")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base's word
            pass

    return Handler
