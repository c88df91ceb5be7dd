"""Whether the kernel has killed for want of memory, as the container's cgroup counts it: version 2, else version 1.

Where a whole container is killed at once (memory.oom.group) no agent is left to say so; the kubelet does, with the
reason OOMKilled. Reads files below one folder and keeps nothing; used by perdure.agent.processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OutOfMemory:
    """The kernel has killed for want of memory."""

    limit: int | None
    """Bytes this container may use; None where only the node was short."""

    @property
    def words(self) -> str:
        """For whoever reads the outcome."""
        killed = "the kernel killed a process of container 0"
        if self.limit is None:
            return f"{killed} because its node was out of memory: set resources.requests.memory to what it needs"
        return (
            f"{killed} at its memory limit of {self.limit / 2**20:.0f} MiB: raise resources.limits.memory, "
            f"or use less (batch size, loader workers)"
        )


def oom_kills(root: Path) -> int | None:
    """How many processes of this container the kernel has killed for want of memory; None where nobody counts."""
    for counters in (root / "memory.events", root / "memory" / "memory.oom_control"):
        try:
            words = dict(line.split() for line in counters.read_text().splitlines())
            return int(words["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return None
