"""An HTTPS server in the test's process that a cluster's API server calls: its certificate is the cluster's."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self

from e2e.harness.lab import Lab
from e2e.harness.watching import Object

NOT_FOUND: Final[Object] = {"kind": "Status", "apiVersion": "v1", "code": 404}

Answer = Callable[[str, Object], Object | None]
"""From a path and the request's body, {} for a GET, to the body of the answer; None where nothing is."""


class TlsServer:
    """Serves during the `with` block, on the host's address in the cluster's network."""

    def __init__(self, lab: Lab, name: str, answer: Answer, *, also_named: str = "") -> None:
        """`name` is that of the certificate, which names the host's address too, and `also_named` as a DNS name."""
        self.host = str(lab.cluster.names.host)
        self._names = [f"IP:{self.host}", *([f"DNS:{also_named}"] if also_named else [])]
        self._lab = lab
        self._name = name
        self._server = ThreadingHTTPServer((self.host, 0), _handler(answer))

    def __enter__(self) -> Self:
        certificate, key = self._lab.cluster.certificate(self._name, *self._names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    @property
    def authority(self) -> str:
        """Who has signed its certificate, as a `caBundle`."""
        return base64.b64encode(self._lab.cluster.authority.read_bytes()).decode()


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({})

        def do_POST(self) -> None:
            self._send(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _send(self, request: Object) -> None:
            found = answer(self.path.partition("?")[0], request)
            body = json.dumps(found or NOT_FOUND).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The audit log has it."""

    return Handler
