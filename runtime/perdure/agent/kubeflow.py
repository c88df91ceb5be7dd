"""Takes what a script reports in the words of Kubeflow's Trainer, as Hugging Face's KubeflowCallback does, on loopback.

That callback posts from the training's own thread, and waits for the answer for up to five seconds. So the agent
answers at once, whatever the operator does, and without a look at the token. It keeps the metrics that are numbers.
Percentage, remaining time and steps it leaves out: the callback counts them from the start of its process, and only in
the process that was rank 0 then. The session's own are right after a resume, and when another process becomes rank 0.

Everything is bounded, and an error ends this service and never the agent. Called by the shell.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from perdure.wire.report import read_values

URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - a variable that names a file
"""The callback posts nothing without a token, so there is a file. What it holds is no token."""
OURS: Final = frozenset({"current_step", "total_steps", "current_epoch"})
"""Metrics of the callback that a report has anyway."""
MOST_BYTES: Final = 65536
"""No request is longer: Kubeflow takes 256 metrics, with names and values of 64 characters."""
MOST_CONNECTIONS: Final = 8
"""So many are open at once."""
SECONDS: Final = 5.0
"""A request that is not whole by then is not read."""

_HOST: Final = "127.0.0.1"
_CONTENT: Final = "none"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]{1,7}) *\r\n", re.IGNORECASE)
_ANSWER: Final = "HTTP/1.1 {} {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_METRICS_READ: Final = 256


def posted_values(body: bytes) -> dict[str, float]:
    """Of the metrics in a request those that are numbers; nothing if it is none of Kubeflow's."""
    try:
        metrics = json.loads(body)["trainerStatus"]["metrics"][:_METRICS_READ]
        named = {metric["name"]: _number(metric["value"]) for metric in metrics}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return read_values({name: value for name, value in named.items() if name not in OURS})


def _number(value: Any) -> float | None:
    """Kubeflow's values are texts."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return None


def kubeflow_environment(environ: Mapping[str, str], url: str, token: Path) -> dict[str, str]:
    """The variables for a script; none if its own environment already names a server of Kubeflow's."""
    if URL in environ:
        return {}
    proxies = [name for name in ("http_proxy", "HTTP_PROXY") if environ.get(name)]
    direct = [hosts for hosts in (environ.get("no_proxy") or environ.get("NO_PROXY"), _HOST) if hosts]
    return {URL: url, TOKEN: str(token)} | ({"no_proxy": ",".join(direct)} if proxies else {})


@dataclass
class _Request:
    """One connection, until its request is answered."""

    connection: socket.socket
    until: float
    read: bytearray = field(default_factory=bytearray)


class KubeflowServer:
    """One agent's."""

    def __init__(self, selector: selectors.BaseSelector, *, now: Callable[[], float] = time.monotonic) -> None:
        self.values: Mapping[str, float] = {}
        """What the present trainer has posted last."""
        self._selector, self._now = selector, now
        self._listener: socket.socket | None = None
        self._token = Path()
        self._requests: list[_Request] = []

    def begin(self, folder: Path) -> None:
        """Listens, if there is a port and a place for the token's file in `folder`. Raises nothing."""
        self._token = folder / "kubeflow-token"
        with contextlib.suppress(OSError):
            self._token.write_text(_CONTENT)
            listener = socket.create_server((_HOST, 0), backlog=MOST_CONNECTIONS)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
            self._listener = listener

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What a trainer needs to find this server; `environ` is its own environment."""
        if self._listener is None:
            return {}
        return kubeflow_environment(environ, f"http://{_HOST}:{self._listener.getsockname()[1]}", self._token)

    def forget(self) -> None:
        """Another trainer begins."""
        self.values = {}

    def look(self) -> None:
        """Answers what has come. Raises nothing."""
        if self._listener is None:
            return
        try:
            self._accept(self._listener)
            for request in list(self._requests):
                self._see_to(request)
        except Exception:  # noqa: BLE001 - also a bug of ours: training does not depend on it
            self.close()

    def close(self) -> None:
        """Ends the service."""
        for request in list(self._requests):
            self._drop(request)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MOST_CONNECTIONS):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            if len(self._requests) >= MOST_CONNECTIONS:
                connection.close()
                continue
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._requests.append(_Request(connection, self._now() + SECONDS))

    def _see_to(self, request: _Request) -> None:
        try:
            chunk = request.connection.recv(MOST_BYTES)
        except BlockingIOError:
            if self._now() >= request.until:
                self._answer(request, 408, "Request Timeout")
            return
        except OSError:
            chunk = b""
        request.read += chunk
        head, end, body = bytes(request.read).partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if len(request.read) > MOST_BYTES or (length and int(length[1]) > MOST_BYTES):
            self._answer(request, 413, "Content Too Large")
        elif end and (length is None or not head.startswith(b"POST ")):
            self._answer(request, 400, "Bad Request")
        elif end and length and len(body) >= int(length[1]):
            self.values = posted_values(body[: int(length[1])]) or self.values
            self._answer(request, 200, "OK")
        elif not chunk:
            self._drop(request)

    def _answer(self, request: _Request, status: int, words: str) -> None:
        with contextlib.suppress(OSError):  # the client has gone, or does not read
            request.connection.send(_ANSWER.format(status, words).encode())
        self._drop(request)

    def _drop(self, request: _Request) -> None:
        self._requests.remove(request)
        self._selector.unregister(request.connection)
        request.connection.close()
