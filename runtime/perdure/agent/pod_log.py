"""Writes the pod's log, the agent's own lines and the trainer's stderr, without ever blocking.

A full log pipe must not delay the agent's deadlines. The pipe stays in blocking mode, because a trainer may share it
and does not expect failing writes. So the agent writes only when there is room.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

BACKLOG_BYTES: Final = 1024 * 1024
"""Bytes kept for a slow reader; beyond that the oldest lines are dropped."""


class Outlet:
    """One file that the agent writes to. The loop calls `flush` in each round."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._backlog = bytearray()
        self._dropped = 0
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    def say(self, line: str) -> None:
        """Write one line of the agent's own."""
        self.write(f"perdure: {line}\n".encode())

    def write(self, text: bytes) -> None:
        """Write the text, or keep it until there is room."""
        self._backlog += text
        self.flush()
        excess = len(self._backlog) - BACKLOG_BYTES
        if excess > 0:
            cut = self._backlog.find(b"\n", excess) + 1 or excess
            del self._backlog[:cut]
            self._dropped += cut

    def flush(self, seconds: float = 0.0) -> None:
        """Write as much as there is room for, now or within `seconds`."""
        end = time.monotonic() + seconds
        while self._backlog and self._room.poll(max(0.0, end - time.monotonic()) * 1000):
            if self._dropped:
                note = f"\nperdure: {self._dropped} bytes of the log are missing here: it was not read in time\n"
                self._backlog[:0] = note.encode()
                self._dropped = 0
            try:
                # A writable pipe has room for this much, so the write does not block.
                written = os.write(self._fd, self._backlog[: select.PIPE_BUF])
            except BlockingIOError:
                continue
            except OSError:  # there is no reader any more
                written = len(self._backlog)
            del self._backlog[:written]
