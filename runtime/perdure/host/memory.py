"""How much memory a process may still take: what its container's limit leaves, or its node. Linux only.

Used before an image is written, and before two trainers share a pod: a pod killed for lack of memory costs more than
either would save. No torch here, because the agent imports this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.host.cgroup import CGROUPS, memory_limit, memory_used

MEMINFO: Final = Path("/proc/meminfo")


def free_memory(cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> int | None:
    """Bytes; None if unknown."""
    found = [room for room in (_limited(cgroups), _available(meminfo)) if room is not None]
    return min(found, default=None)


def _limited(root: Path) -> int | None:
    """What the container's limit leaves."""
    limit, used = memory_limit(root), memory_used(root)
    return None if limit is None or used is None else limit - used


def _available(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
