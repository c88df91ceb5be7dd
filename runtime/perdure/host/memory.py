"""How much memory a process may still take: what its container's limit leaves, or its node. Linux only.

Used before an image is written, and before two trainers share a pod: a pod killed for lack of memory costs more than
either would save. No torch here, because the agent imports this.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.host.cgroup import CGROUPS, memory_limit, memory_used

MEMINFO: Final = Path("/proc/meminfo")
PROCESS: Final = Path("/proc/self")
_FORGET_PEAK: Final = "5"
"""For clear_refs."""


class MemoryPeak:
    """How much more memory than at one moment this process has had at any time since, as the kernel counts it."""

    def __init__(self, process: Path = PROCESS) -> None:
        """Begins nothing."""
        self._process = process
        self._had: int | None = None

    def begin(self) -> None:
        """Count from now on. A kernel that does not forget the peak before counts that, too."""
        with suppress(OSError):
            (self._process / "clear_refs").write_text(_FORGET_PEAK)
        self._had = _bytes_of(self._process / "status", "VmRSS")

    def growth(self) -> int:
        """Bytes; 0 if they are unknown."""
        most = _bytes_of(self._process / "status", "VmHWM")
        return 0 if most is None or self._had is None else max(most - self._had, 0)


def free_memory(cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> int | None:
    """Bytes; None if unknown."""
    found = [room for room in (_limited(cgroups), _available(meminfo)) if room is not None]
    return min(found, default=None)


def missing_together(ranks: Iterable[tuple[int, int | None]]) -> int:
    """Bytes that are missing in a pod whose ranks take memory at the same time: each rank says how much it needs, and
    how much it has seen free before any of them took some. 0 if there is enough, or if that is unknown."""
    needs, seen = zip(*ranks, strict=True)
    free = min((free for free in seen if free is not None), default=None)
    return 0 if free is None else max(sum(needs) - free, 0)


def _limited(root: Path) -> int | None:
    """What the container's limit leaves."""
    limit, used = memory_limit(root), memory_used(root)
    return None if limit is None or used is None else limit - used


def _available(meminfo: Path) -> int | None:
    return _bytes_of(meminfo, "MemAvailable")


def _bytes_of(file: Path, name: str) -> int | None:
    try:
        # As bytes: the line with a process's name may hold any, and the name is cut anywhere.
        lines = dict(line.split(b":", 1) for line in file.read_bytes().split(b"\n") if b":" in line)
        return int(lines[name.encode()].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
