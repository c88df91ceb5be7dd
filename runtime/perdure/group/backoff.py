"""How soon a connection between ranks goes on once a link that was cut is there again (docs/decisions/043).

TCP waits twice as long after each retransmission: a link that was cut for 16 s stands for 27. gloo makes its sockets
itself, and shows none: they are those that are there afterwards and were not before. A kernel that knows no such limit
(before Linux 6.15) is left as it is. By setsockopt itself: Python's own object would make a socket non-blocking where
the script has set a default timeout. Used by perdure.group.world.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from socket import IPPROTO_TCP
from typing import Final

LONGEST_SECONDS: Final = 3
"""Between two retransmissions; a connection of which nothing is acknowledged then ends after 39 s."""
TCP_RTO_MAX_MS: Final = 44

_FILES: Final = Path("/proc/self/fd")


def open_files() -> frozenset[int]:
    """The process's; none where they cannot be seen."""
    try:
        return frozenset(int(file.name) for file in _FILES.iterdir())
    except OSError:
        return frozenset()


def limit(files: Iterable[int]) -> None:
    """Those of them that are TCP sockets: the kernel refuses any other."""
    longest = ctypes.c_int(1000 * LONGEST_SECONDS)
    set_option = ctypes.CDLL(None).setsockopt
    for file in files:
        set_option(file, IPPROTO_TCP, TCP_RTO_MAX_MS, ctypes.byref(longest), ctypes.sizeof(longest))
