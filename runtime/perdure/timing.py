"""How long the parts of a run's beginning and end took: `seconds` of an outcome. Used by the session."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path


class Timings:
    """Durations by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures a block, also one that fails."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - begun

    def note(self, seconds: Mapping[str, float]) -> None:
        """Takes over what others have measured."""
        self.seconds.update(seconds)

    def begin(self, started: float | None) -> None:
        """Splits the time since the agent started this process into start and import."""
        age = _age_of_this_process()
        if started is None:
            self.seconds |= {"start": 0.0, "import": age or 0.0}
            return
        total = time.monotonic() - started
        imported = total if age is None else min(age, total)
        self.seconds |= {"start": total - imported, "import": imported}


def _age_of_this_process() -> float | None:
    """Seconds since the process was made; None where there is no Linux to ask."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        born = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - born)
    except (OSError, AttributeError, ValueError, IndexError):
        return None
