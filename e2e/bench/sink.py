"""An S3 server that keeps nothing, to measure a client: `python -m e2e.bench.sink [FILE]`, which prints its port.

With the file of a certificate and its key it speaks TLS, as every S3 in a cloud does.
"""

from __future__ import annotations

import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

_BEGUN: Final = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
_DONE: Final = b'<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'
_CHUNK: Final = 2**20


class Sink(BaseHTTPRequestHandler):
    """Takes every object and every part."""

    protocol_version = "HTTP/1.1"

    def _take(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                self._drop(size + 2)
            while self.rfile.readline().strip():
                pass
        self._drop(int(self.headers.get("Content-Length") or 0))
        answer = b"" if self.command == "PUT" else _BEGUN if "uploads" in self.path.partition("?")[2] else _DONE
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST = _take  # noqa: N815 - names of http.server

    def _drop(self, size: int) -> None:
        while size > 0 and (found := self.rfile.read(min(size, _CHUNK))):
            size -= len(found)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        if files := sys.argv[1:]:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*files)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        print(server.server_port, flush=True)
        server.serve_forever()
