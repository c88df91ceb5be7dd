"""This container's memory by its cgroup: version 2, else version 1. Linux only.

Reads files below one folder and keeps nothing. The agent uses it to say why a container was killed, the session to find
out how much is left; so it is below both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
"""A container sees its own cgroup there."""

_LIMIT: Final = ("memory.max", "memory/memory.limit_in_bytes")
_USED: Final = (("memory.current", "memory.stat"), ("memory/memory.usage_in_bytes", "memory/memory.stat"))
_UNLIMITED: Final = 2**60
"""Version 1 says a number near 2^63 where there is no limit."""


def memory_limit(root: Path) -> int | None:
    """Bytes this container may use; None without a limit."""
    for limit in _LIMIT:
        try:
            value = int((root / limit).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        return value if value < _UNLIMITED else None
    return None


def memory_used(root: Path) -> int | None:
    """Bytes in use, without cached files, which can be reclaimed; None if unknown."""
    for used, stat in _USED:
        try:
            return int((root / used).read_text()) - _cached((root / stat).read_text())
        except (OSError, ValueError):
            continue
    return None


def _cached(stat: str) -> int:
    numbers = dict(line.split() for line in stat.splitlines())
    return sum(int(numbers.get(name, 0)) for name in ("inactive_file", "active_file"))
