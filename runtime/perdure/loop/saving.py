"""Saves that are requested while training continues: the agent writes a request, and ranks read it when they agree
anyway.

Called by perdure.session.boundary.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

from perdure.wire.channel import read_save_request


class SaveRequests:
    """The requests that this process has read. Other ranks may read them later, or not at all."""

    def __init__(self, file: Path | None, look_seconds: float) -> None:
        """`file` is the one of a request to leave. The request for a save is read every `look_seconds` at most."""
        self._file = file
        self._look_seconds = look_seconds
        self._looked = -math.inf
        self._known = 0

    def look(self) -> int:
        """The number of a new request for a save, which no rank has announced yet; otherwise 0."""
        now = time.monotonic()
        if self._file is None or now - self._looked < self._look_seconds:
            return 0
        self._looked = now
        number = _number(read_save_request(self._file))
        if number <= self._known:
            return 0
        self._known = number
        return number

    def agreed(self, number: int) -> None:
        """All ranks make the save with this number. This rank's own request for it, which may come later, is the same
        one."""
        self._known = max(self._known, number)


def _number(word: str) -> int:
    """A growing number from the agent's request, `RUN NUMBER`; 0 for anything else."""
    found = re.fullmatch(r"(\d{1,12}) (\d{1,6})", word.strip())
    return int(found[1]) * 10**6 + int(found[2]) if found else 0
