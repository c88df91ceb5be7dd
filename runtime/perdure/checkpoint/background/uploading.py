"""The trainer's side of the process that uploads: starts it, sends orders, reads its words, ends it. Waits for it only
in `reap`.

The caller decides how long a save may take, and how to react to its words. One thread calls it, best the main one:
Linux ends a child with the thread that made it. If another thread starts the uploader, the uploader does not end that
way; it notices the trainer's end by itself within a second.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from perdure.checkpoint.background.arena import Arena, Filled
from perdure.checkpoint.background.uploader_messages import (
    DURABLE,
    MOVES,
    RELEASED,
    Lines,
    UploaderWord,
    UploadOrder,
    read_word,
    write_order,
)
from perdure.checkpoint.upload import index_of
from perdure.host.descriptors import above_standard
from perdure.log.objects import shard_key

REAP_SECONDS: Final = 10.0
_MAIN: Final = (
    "import sys; from perdure.host.parent import die_with_parent; int(sys.argv[1]) and die_with_parent(); "
    "from perdure.checkpoint.background.uploader import main; main()"
)
"""The process first ties its life to its parent's: otherwise one that is stopped while it imports would outlive the
parent."""
_CHUNK: Final = 65536
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_EXIT_SECONDS: Final = 5.0
"""How long to wait for the exit status of a process whose pipes are closed. It follows at once, unless the machine
stalls: with 0.1 s a busy one hid that the process was killed."""


@dataclass(frozen=True)
class PartUploaded:
    """The part is in the store: its shard, and its index last."""

    name: str
    seconds: float
    part: Filled = field(repr=False)
    folder: str

    @cached_property
    def index(self) -> dict[str, Any]:
        """The part's index, as for a manifest. Takes a while for thousands of tensors."""
        staged = self.part.staged
        return index_of(staged, shard_key(self.folder, staged.rank, staged.world), self.part.sums)


@dataclass(frozen=True)
class UploadMoves:
    """The store has taken more of this save since its last word."""

    name: str


@dataclass(frozen=True)
class ArenaRead:
    """The arena is not read any more for this save; its index is not written yet."""

    name: str


@dataclass(frozen=True)
class UploadFailed:
    """There is no index of this save's part, unless the uploader has died just after it wrote one."""

    name: str
    why: str
    refused: bool = False
    """Whether the store will keep refusing until its configuration changes."""


UploaderMessage = PartUploaded | UploadMoves | ArenaRead | UploadFailed


@dataclass(eq=False)
class _Process:
    """One process, and this side's ends of its pipes."""

    child: subprocess.Popen[bytes]
    orders: socket.socket
    words: int
    lines: Lines = field(default_factory=Lines)

    def __post_init__(self) -> None:
        _pipes.add(self)

    def close(self) -> None:
        """Close the pipes, which ends a living uploader."""
        self.orders.close()
        if self.words >= 0:
            os.close(self.words)
        self.words = -1

    def order(self, line: bytes) -> None:
        """OSError if it does not take the line. A socket, because a pipe's SIGPIPE would end a script that has restored
        its default."""
        if self.orders.send(line, _NO_SIGNAL) < len(line):
            raise BlockingIOError("it does not take orders")

    def read(self) -> bytes | None:
        """The new data; None if there is none, b"" after the end."""
        try:
            return os.read(self.words, _CHUNK)
        except BlockingIOError:
            return None


class Uploader:
    """Uploads from one arena, one part at a time."""

    def __init__(self, arena: Arena, root: str, environ: Mapping[str, str] = os.environ) -> None:
        """Starts nothing. `environ` is read when a process is started: it has the store's options and keys."""
        self._arena = arena
        self._root = root
        self._environ = environ
        self._process: _Process | None = None
        self._ending: _Process | None = None
        """Killed, and not known to have ended."""
        self._under_way: tuple[str, Filled] | None = None
        self._unsaid: list[UploaderMessage] = []

    @property
    def busy(self) -> str | None:
        """The name of the save that is ordered, until it was said to be durable or to have failed."""
        return self._under_way[1].seal.name if self._under_way else None

    @property
    def pid(self) -> int | None:
        """The process's id, if there is a process."""
        return self._process.child.pid if self._process else None

    def start(self) -> None:
        """Execute the process now, so that the first order does not wait for it. OSError if that is impossible."""
        if not self.reap(0.0):
            raise BlockingIOError("the process before has not ended")
        if self._process is not None and self._process.child.poll() is not None:
            self._discard()
        if self._process is None:
            self._process = _executed(self._arena.fd, self._environ)

    def order(self, folder: str, part: Filled) -> None:
        """Upload the part that the arena holds. `words` returns the result, even if no process can be started.

        The same save may be ordered again after it has failed: its objects that are in the store already count.
        """
        if self._under_way is not None:
            raise RuntimeError(f"save {self.busy} is still under way")
        self._under_way = (folder, part)
        try:
            self.start()
            line = write_order(UploadOrder(self._root, folder, part.seal))
            if self._process is not None:
                self._process.order(line)
        except (OSError, ValueError) as error:
            self._lose(f"it cannot be ordered: {error}")

    def words(self) -> list[UploaderMessage]:
        """The words since the last call, about the save under way only: older words in the pipe are dropped."""
        process = self._process
        while process is not None and (data := process.read()) is not None:
            if not data:
                self._lose(self._end_of(process.child))
                break
            self._hear(process, data)
        else:
            if process is not None and process.child.poll() is not None:
                self._after_the_end(process)
        said, self._unsaid = self._unsaid, []
        return said

    def _after_the_end(self, process: _Process) -> None:
        """It has ended, but another process may hold the pipe open."""
        while data := process.read():
            self._hear(process, data)
        self._lose(self._end_of(process.child))

    def _hear(self, process: _Process, data: bytes) -> None:
        try:
            for word in map(read_word, process.lines.add(data)):
                self._take(word)
        except (ValueError, TypeError) as error:
            self._lose(f"it sent an unknown message: {error}")

    def _take(self, word: UploaderWord) -> None:
        if self._under_way is None or word.name != self.busy:
            return
        folder, part = self._under_way
        if word.word == MOVES:
            self._unsaid.append(UploadMoves(word.name))
            return
        if word.word == RELEASED:
            self._unsaid.append(ArenaRead(word.name))
            return
        self._under_way = None
        if word.word == DURABLE:
            self._unsaid.append(PartUploaded(word.name, word.seconds, part, folder))
        else:
            self._unsaid.append(UploadFailed(word.name, word.why, word.refused))

    def _lose(self, why: str) -> None:
        """Kill what is left of the process; the save under way has failed."""
        name = self.busy
        self.kill()
        if name is not None:
            self._unsaid.append(UploadFailed(name, f"the uploader ended: {why}"))

    def _end_of(self, child: subprocess.Popen[bytes]) -> str:
        with suppress(subprocess.TimeoutExpired):  # its pipe has ended, so it ends
            status = child.wait(_EXIT_SECONDS)
            return f"killed by {_signal_name(-status)}" if status < 0 else f"exit status {status}"
        return "it has closed its pipe"

    def kill(self) -> None:
        """SIGKILL at once. Unread words are dropped, and no save is under way any more."""
        self._under_way = None
        self._discard()

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.child.kill()
            process.close()
            self._ending = process
            self.reap(0.0)

    def reap(self, seconds: float = REAP_SECONDS) -> bool:
        """Wait for the end of the killed process. False if it has not ended: it may still read the arena, which must
        not be used again."""
        if self._ending is None:
            return True
        try:
            self._ending.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._ending = None
        return True

    def close(self, seconds: float = REAP_SECONDS) -> bool:
        """End the process without finishing the save under way. Returns as `reap`."""
        self.kill()
        self._unsaid.clear()
        return self.reap(seconds)


def _executed(arena: int, environ: Mapping[str, str]) -> _Process:
    """No preexec_fn: it would make a fork of a trainer with threads and large memory of what is a spawn."""
    give, orders = (socket.socket(fileno=above_standard(one.detach())) for one in socket.socketpair())
    hear, words = map(above_standard, os.pipe())
    main = threading.current_thread() is threading.main_thread()
    numbers = map(str, (int(main), arena, orders.fileno(), words, os.getpid()))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, *numbers],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[arena, orders.fileno(), words],
            start_new_session=True,
        )
    except BaseException:
        give.close()
        os.close(hear)
        raise
    finally:
        orders.close()
        os.close(words)
    give.setblocking(False)
    os.set_blocking(hear, False)
    return _Process(child, give, hear)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_pipes: weakref.WeakSet[_Process] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked process would keep the uploader from noticing its owner's end."""
    for process in list(_pipes):
        process.close()


os.register_at_fork(after_in_child=_leave_to_parent)
