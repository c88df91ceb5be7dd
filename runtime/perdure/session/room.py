"""How much memory a process may still take: what its container's limit leaves, or its node. Linux alone tells.

Used before an image is written: a pod that is killed for want of memory costs more than the steps it would have saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
MEMINFO: Final = Path("/proc/meminfo")


def free_memory(cgroups: Path = CGROUPS, meminfo: Path = MEMINFO) -> int | None:
    """Bytes; None where nobody tells."""
    found = [room for room in (_limited(cgroups), _available(meminfo)) if room is not None]
    return min(found, default=None)


def _limited(root: Path) -> int | None:
    """What the container's limit leaves (cgroup v2, else v1); files that are cached can be given up."""
    for limit, used, files in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            taken = int((root / used).read_text()) - _cached((root / files).read_text())
            return int((root / limit).read_text()) - taken
        except (OSError, ValueError):  # "max": no limit
            continue
    return None


def _cached(stat: str) -> int:
    numbers = dict(line.split() for line in stat.splitlines())
    return sum(int(numbers.get(name, 0)) for name in ("inactive_file", "active_file"))


def _available(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
