"""How much memory a process may still take: what its container's limit leaves, or its node. Linux alone tells.

Used before an image is written, and before two trainers are in one pod: a pod that is killed for want of memory costs
more than what it would have saved. No torch here: the agent imports this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.host.cgroup import CGROUPS, memory_limit, memory_used

MEMINFO: Final = Path("/proc/meminfo")


def free_memory(cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> int | None:
    """Bytes; None where nobody tells."""
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
