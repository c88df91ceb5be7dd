"""File descriptors beside those of the standard streams."""

from __future__ import annotations

import fcntl
import os


def above_standard(fd: int) -> int:
    """The same file under a number above 2; not inherited.

    Where a script has closed a standard stream, a new file takes its number. C libraries would write their messages to
    it, and a child process would get its own standard stream instead.
    """
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
