"""Whether an exiting trainer still holds resources that the pod's next trainer needs.

After its ending report and its exit handlers, a trainer only has its interpreter to shut down. That takes a second or
two, in which the next trainer may already begin, unless it would find a port in use, a half-written file, a lock, a
device in use or too little memory. All facts come from /proc; unreadable ones count as held. Called by
perdure.agent.processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

from perdure.agent.listeners import internet_listeners, socket_inode
from perdure.host.cgroup import CGROUPS
from perdure.host.memory import MEMINFO, free_memory

PROC: Final = Path("/proc")
_ENDED: Final = ("Z", "X")
"""States in /proc/PID/stat."""
_DATAGRAMS: Final = "0002"
"""The type of a socket in /proc/net/unix."""
_LOCK: Final = re.compile(r"(?:POSIX|FLOCK|OFDLCK|LEASE) +\S+ +\S+ +(\d+) ")
_HARMLESS: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/")


def held_by(pid: int, port: int = 0, root: Path = PROC, groups: Set[int] = frozenset()) -> str:
    """What the process holds that another could need; "" for nothing.

    Its run's own `port` does not count, nor the sockets of its process `groups`, by inode.
    """
    try:
        return next(_held(pid, port, root, groups), "")
    except (OSError, ValueError, IndexError) as error:
        return "" if _has_ended(root / str(pid)) else f"what it has cannot be read: {error}"


def _has_ended(process: Path) -> bool:
    """Whether it ended while it was read, and so has nothing any more, reaped or not."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] in _ENDED
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError):
        return False


def _held(pid: int, port: int, root: Path, groups: Set[int]) -> Iterator[str]:
    process = root / str(pid)
    listening = _listening(process / "net", port)
    for inode in groups:
        listening.pop(str(inode), None)
    ours = {_identity(fd) for fd in range(3)}
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = str(link.readlink())
            if at := listening.get(socket_inode(target)):
                yield f"it listens on {at}"
            elif target.startswith("/dev/") and not target.startswith((*_HARMLESS, "/dev/shm/")):  # noqa: S108
                yield f"it has {target} open"
            elif _is_written(process / "fdinfo" / link.name) and _is_file(link) and _identity(link) not in ours:
                yield f"it writes to {target}"
    if str(pid) in _LOCK.findall((root / "locks").read_text()):
        yield "it holds a lock on a file"


def _listening(net: Path, port: int) -> dict[str, str]:
    """The addresses of this container's listening sockets, by inode."""
    found: dict[str, str] = {}
    for name, inode, at in internet_listeners(net):
        if at != port or name.startswith("udp"):
            found[inode] = f"port {at}" if name.startswith("tcp") else f"UDP port {at}"
    for line in (net / "unix").read_text().splitlines()[1:]:
        fields = line.split()
        named = len(fields) > 7
        if int(fields[3], 16) & 0x10000 or (named and fields[4] == _DATAGRAMS):  # it accepts connections, or datagrams
            found[fields[6]] = f"the socket {fields[7] if named else 'without a name'}"
    return found


def _is_written(info: Path) -> bool:
    flags = next(line.split()[1] for line in info.read_text().splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _is_file(link: Path) -> bool:
    """Whether it is a regular file that another process could open."""
    found = link.stat()
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 0


def _identity(file: Path | int) -> tuple[int, int]:
    found = os.stat(file)  # noqa: PTH116 - a number, too
    return found.st_dev, found.st_ino


def memory_of(pid: int, root: Path = PROC) -> int:
    """Bytes that a process like this one needs. Raises OSError, ValueError or IndexError if unknown."""
    lines = dict(line.split(":", 1) for line in (root / str(pid) / "status").read_text().splitlines())
    return sum(int(lines.get(name, "0").split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def is_room(pid: int, cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> bool:
    """Whether there is memory for another process like this one beside it."""
    free = free_memory(cgroups, meminfo)
    try:
        return free is not None and free >= memory_of(pid)
    except (OSError, ValueError, IndexError):
        return False
