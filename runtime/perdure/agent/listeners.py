"""Remembers on which sockets the process groups of a trainer listen.

gloo listens on a separate port for each group, until the group is freed. `destroy_process_group` does not free it
while the script's model or torch's cache of DTensor placements refers to it. Only the group's own ranks know the port,
so the next trainer need not wait for it. Used by perdure.agent.fork in the trainer, and by residual_resources, which
reads the same tables.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final

_TAKES: Final = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""For each table, the state of a socket that accepts packets of any sender: listening or unconnected."""
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_WATCHED: Final = re.compile(r"^tfd: +(\d+) ", re.MULTILINE)
_EPOLL: Final = "anon_inode:[eventpoll]"
_OWN: Final = Path("/proc/self")


def internet_listeners(net: Path) -> Iterator[tuple[str, str, int]]:
    """Table, inode and port of each socket of this network that accepts packets from any sender."""
    for name, takes in _TAKES.items():
        table = net / name
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == takes:
                yield name, fields[9], int(fields[1].rpartition(":")[2], 16)


def socket_inode(target: str) -> str:
    """The inode of the socket that a link in /proc/PID/fd points to; "" if it is no socket."""
    found = _SOCKET.fullmatch(target)
    return found[1] if found else ""


class GroupListeners:
    """The listening sockets that were opened while a process group was made, by inode."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def watch(self, kind: type[Any]) -> None:
        """From now on, record the sockets of every group of this class, whether ours or the script's."""
        make = kind.__init__

        @wraps(make)
        def made(group: Any, *args: Any, **kwargs: Any) -> None:
            before = _opened()
            make(group, *args, **kwargs)
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._made |= _listeners_of(_opened(), before)

        kind.__init__ = made

    def still_open(self) -> list[int]:
        """The recorded sockets that still listen."""
        sockets = {socket_inode(target) for target in _opened().values()}
        return sorted(int(inode) for inode in self._made & sockets)


def _opened() -> dict[str, str]:
    """The open files of this process, by descriptor."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_OWN / "fd"):  # noqa: PTH208 - closed before any name is read
            with contextlib.suppress(OSError):
                found[name] = os.readlink(_OWN / "fd" / name)  # noqa: PTH115 - as above
    return found


def _listeners_of(now: dict[str, str], before: dict[str, str]) -> set[str]:
    """New sockets that listen and that a new event loop watches, as gloo's does.

    The script's other threads run meanwhile, and may open servers.
    """
    new = {name: target for name, target in now.items() if before.get(name) != target}
    loops = [name for name, target in now.items() if target == _EPOLL and before.get(name) != target]
    watched = {name for loop in loops for name in _WATCHED.findall((_OWN / "fdinfo" / loop).read_text())}
    listening = {inode for _, inode, _ in internet_listeners(_OWN / "net")}
    return {socket_inode(target) for name, target in new.items() if name in watched} & listening
