"""The pod's log as the agent writes it: its own lines and the trainer's stderr, without ever waiting for a reader.

A log pipe that nobody empties must not keep the agent from its deadlines. The pipe itself stays as it is: a trainer
may share it, and would not expect writes that fail. So nothing is written unless there is room for it.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

BACKLOG_BYTES: Final = 1024 * 1024
"""How much is kept for a reader that is slow; then the oldest lines are dropped."""


class Outlet:
    """One file that the agent writes to; the loop calls `flush` each time round."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._backlog = bytearray()
        self._dropped = 0
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    def say(self, line: str) -> None:
        """One line of the agent's own."""
        self.write(f"perdure: {line}\n".encode())

    def write(self, text: bytes) -> None:
        """Takes the text; what there is no room for is written later."""
        self._backlog += text
        self.flush()
        excess = len(self._backlog) - BACKLOG_BYTES
        if excess > 0:
            cut = self._backlog.find(b"\n", excess) + 1 or excess
            del self._backlog[:cut]
            self._dropped += cut

    def flush(self, seconds: float = 0.0) -> None:
        """Writes what there is room for, or will be within `seconds`."""
        end = time.monotonic() + seconds
        while self._backlog and self._room.poll(max(0.0, end - time.monotonic()) * 1000):
            if self._dropped:
                note = f"\nperdure: {self._dropped} bytes of the log are missing here: it was not read in time\n"
                self._backlog[:0] = note.encode()
                self._dropped = 0
            try:
                # A pipe with room has room for this much, so that the write does not wait.
                written = os.write(self._fd, self._backlog[: select.PIPE_BUF])
            except BlockingIOError:
                continue
            except OSError:  # nobody will ever read it
                written = len(self._backlog)
            del self._backlog[:written]
