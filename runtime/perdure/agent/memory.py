"""Detects out-of-memory kills by the counters of the container's cgroup (v2 or v1).

If the kernel kills the whole container at once (memory.oom.group), no agent is left to report it; the kubelet does, as
OOMKilled. Stateless; used by perdure.agent.processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OutOfMemory:
    """An out-of-memory kill."""

    limit: int | None
    """Bytes that this container may use; None if only the node was short of memory."""

    @property
    def words(self) -> str:
        """The cause and the remedy, for the outcome."""
        killed = "the kernel killed a process of container 0"
        if self.limit is None:
            return f"{killed} because its node was out of memory: set resources.requests.memory to what it needs"
        return (
            f"{killed} at its memory limit of {self.limit / 2**20:.0f} MiB: raise resources.limits.memory, "
            f"or use less (batch size, loader workers)"
        )


def oom_kills(root: Path) -> int | None:
    """Processes of this container that the kernel killed because memory ran out; None without such a counter."""
    for counters in (root / "memory.events", root / "memory" / "memory.oom_control"):
        try:
            words = dict(line.split() for line in counters.read_text().splitlines())
            return int(words["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return None
