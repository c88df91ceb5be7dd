"""Listeners that are no store: one that says nothing, and one that looks how its visitors behave.

With them torch's client gives up soon, and a thread that waits for it ends before the test does: at the interpreter's
end it would bring the process down.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from perdure.group import heartbeat, rendezvous


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rendezvous, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 0.1)
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join()


@pytest.fixture
def silent(soon: None) -> Iterator[int]:
    """The port of a frozen process: it accepts connections, and never answers."""
    let_in: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                let_in.append(listener.accept()[0])

    server = threading.Thread(target=serve)
    server.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    server.join()
    for one in (*let_in, listener):
        one.close()


class Door:
    """Accepts two connections, and rejects all later ones."""

    def __init__(self) -> None:
        self._stayed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server = threading.Thread(target=self._serve)
        self._server.start()

    def has_let_two_in(self) -> bool:
        """And has closed behind them."""
        return not self._server.is_alive()

    def first_visitor_stayed(self) -> bool:
        """Whether the first was still there when the second came."""
        self._server.join()
        return self._stayed

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as visitor, self._listener.accept()[0]:
            visitor.setblocking(False)
            try:
                self._stayed = visitor.recv(1) != b""
            except BlockingIOError:
                self._stayed = True


@pytest.fixture
def door(soon: None) -> Door:
    return Door()
