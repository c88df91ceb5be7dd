"""Lets connections between ranks recover soon after a network outage (docs/decisions/043).

TCP doubles its wait after each retransmission, so an outage of 16 s can stop a connection for 27 s. This module limits
the wait. gloo creates its sockets internally and does not expose them; they are found by comparing the open files
before and after. Kernels before Linux 6.15 have no such limit and keep their behaviour. The module calls setsockopt
through ctypes, because a Python socket object would make the socket non-blocking if the script has set a default
timeout. Used by perdure.group.world.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from socket import IPPROTO_TCP
from typing import Final

LONGEST_SECONDS: Final = 3
"""The longest wait between two retransmissions. A connection without any acknowledgement then fails after 39 s."""
TCP_RTO_MAX_MS: Final = 44

_FILES: Final = Path("/proc/self/fd")


def open_files() -> frozenset[int]:
    """The open files of this process; empty if /proc is not available."""
    try:
        return frozenset(int(file.name) for file in _FILES.iterdir())
    except OSError:
        return frozenset()


def limit(files: Iterable[int]) -> None:
    """Limit the wait of every TCP socket among `files`; the kernel rejects the option for the others."""
    longest = ctypes.c_int(1000 * LONGEST_SECONDS)
    set_option = ctypes.CDLL(None).setsockopt
    for file in files:
        set_option(file, IPPROTO_TCP, TCP_RTO_MAX_MS, ctypes.byref(longest), ctypes.sizeof(longest))
