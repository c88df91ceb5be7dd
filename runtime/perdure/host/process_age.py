"""When a process was made, by the clock of the machine that all its containers share. Linux only.

Used by the agent and `perdure stop`, to tell a stop that is meant for this agent, and for the timings of a start.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def born() -> float | None:
    """Seconds from boot until this process was made; None where there is no Linux to ask."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def age(then: float) -> float:
    """Seconds since the moment that `born` returned; negative for a moment in the future."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - then
