"""Sends files in memory to a rank of another pod, which keeps them in files of its own.

Each rank has a receiver, and connects its sender to one other rank's. A connection begins with the token that the
receiver has told the ranks of this run, so one of an earlier run is closed. Then come files: number, size, bytes. The
receiver answers with the number once the file is whole in its own file of that number. The first bytes of a file are
written last, and removed first, so a torn one begins with zeros and counts for nothing.

Used by perdure.loop.mirroring, in threads; it uses no collective.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.wire.channel import IMAGE_MAGIC

MAGIC_BYTES: Final = len(IMAGE_MAGIC)
"""How many bytes at the beginning of a file are written last."""
TOKEN_BYTES: Final = 32
PATIENCE_SECONDS: Final = 30.0
"""A connection on which no byte moves for this long is broken."""
CONNECT_SECONDS: Final = 5.0
"""How long it may take to connect."""
_HELLO_SECONDS: Final = 2.0
"""How long a new connection may take to name its token: others wait meanwhile."""
_HEADER: Final = struct.Struct("<QQ")
_ANSWER: Final = struct.Struct("<Q")
_REFUSED: Final = 2**64 - 1
AGAIN_SECONDS: Final = 0.1
_WAITING: Final = 8
"""Connections that may wait while one is served."""


class LinkBroken(Exception):
    """The other rank does not take the file; the message says why."""


def own_address(to: tuple[str, int]) -> str:
    """The address of this machine from which it reaches that one. OSError if there is no way to any address of it."""
    failed = OSError(f"{to[0]} has no address")
    for family, kind, _, _, place in socket.getaddrinfo(*to, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(place)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:
            failed = error
    raise failed


class MirrorReceiver:
    """Keeps what one other rank sends. A thread serves one connection at a time."""

    def __init__(self, files: Sequence[Path], has_room: Callable[[int], bool]) -> None:
        """`files` by number. `has_room` says whether a file may grow by so many bytes. OSError if nothing can listen
        here."""
        self._files, self._has_room = tuple(files), has_room
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = _listening()
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._closed = False
        try:
            threading.Thread(target=self._serve, name="perdure-mirror", daemon=True).start()
        except RuntimeError as error:
            self._listener.close()
            raise OSError(f"no thread can be started: {error}") from error

    def close(self) -> None:
        """Nothing is written any more once this returns."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        connection = self._connection
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            pass

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closed:
                    time.sleep(AGAIN_SECONDS)  # at a limit of open files
                continue
            with connection, suppress(OSError, ValueError):
                self._connection = connection
                self._take_all(connection)
            self._connection = None

    def _take_all(self, connection: socket.socket) -> None:
        if not secrets.compare_digest(_read(connection, TOKEN_BYTES, _HELLO_SECONDS), self.token):
            return
        connection.settimeout(PATIENCE_SECONDS)
        connection.sendall(_ANSWER.pack(_REFUSED))  # any answer: the token is right
        while True:
            connection.settimeout(None)  # the owner trains, and sends when it has a snapshot
            first = connection.recv(1)
            connection.settimeout(PATIENCE_SECONDS)
            number, size = _HEADER.unpack(first + _read(connection, _HEADER.size - len(first)))
            with self._lock:
                if self._closed:
                    return
                kept = self._keep(connection, number, size)
            connection.sendall(_ANSWER.pack(number if kept else _REFUSED))
            if not kept:
                return

    def _keep(self, connection: socket.socket, number: int, size: int) -> bool:
        if number >= len(self._files) or size < MAGIC_BYTES:
            return False
        file, whole = os.open(self._files[number], os.O_RDWR), False
        try:
            if not self._has_room(max(0, size - allocated(file))):
                whole = True  # what is there stays
                return False
            os.pwrite(file, bytes(MAGIC_BYTES), 0)
            os.ftruncate(file, size)
            with mmap.mmap(file, size) as memory, memoryview(memory) as view:
                magic, at = _read(connection, MAGIC_BYTES), MAGIC_BYTES
                while at < size:
                    read = connection.recv_into(view[at:])  # no variable holds the slice: it would keep the memory open
                    if not read:
                        return False
                    at += read
            os.pwrite(file, magic, 0)
            whole = True
            return True
        finally:
            if not whole:
                os.ftruncate(file, 0)
            os.close(file)


class MirrorSender:
    """Sends files to another rank's receiver. Used by one thread at a time."""

    def __init__(self, address: tuple[str, int], token: bytes) -> None:
        """LinkBroken if that rank does not take the connection."""
        self._lock = threading.Lock()
        """Held while the socket is used: its number may be another file's once it is closed."""
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.create_connection(address, timeout=CONNECT_SECONDS)
            self._socket.sendall(token)
            _read(self._socket, _ANSWER.size)
            self._socket.settimeout(PATIENCE_SECONDS)
        except OSError as error:
            self.close()
            raise LinkBroken(f"{address[0]} does not take the connection: {error}") from error

    def send(self, number: int, path: Path) -> None:
        """Sends a file. Returns once the other rank has all of it. LinkBroken if it does not take it."""
        with self._lock:
            connection = self._socket
            if connection is None:
                raise LinkBroken("the connection is closed")
            broke: OSError | None = None
            try:
                with path.open("rb") as file:
                    connection.sendall(_HEADER.pack(number, os.fstat(file.fileno()).st_size))
                    connection.sendfile(file)
            except ConnectionError as error:  # also of one that has refused it, and closes the connection
                broke = error
            except OSError as error:
                raise LinkBroken(f"the connection broke: {error}") from error
            try:
                (answer,) = _ANSWER.unpack(_read(connection, _ANSWER.size))
            except OSError as error:
                raise LinkBroken(f"the connection broke: {broke or error}") from error
        if answer != number or broke:
            raise LinkBroken("it has no memory left for it")

    def close(self) -> None:
        """Ends a send in another thread first."""
        connection = self._socket
        if connection is None:
            return
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket = None
            connection.close()


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=_WAITING, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_WAITING)


def allocated(file: int | Path) -> int:
    """The bytes of memory that a file has, which may be fewer than its size."""
    return os.stat(file).st_blocks * 512  # noqa: PTH116 - of a number, too


def _read(connection: socket.socket, size: int, seconds: float | None = None) -> bytes:
    """Exactly so many bytes, within so many seconds in all if given."""
    read, end = bytearray(), None if seconds is None else time.monotonic() + seconds
    while len(read) < size:
        if end is not None:
            connection.settimeout(max(0.001, end - time.monotonic()))
        some = connection.recv(size - len(read))
        if not some:
            raise ConnectionResetError("the other side has closed it")
        read += some
    return bytes(read)
