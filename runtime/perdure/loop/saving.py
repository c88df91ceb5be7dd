"""A save that somebody asks for while training goes on: the agent's word for it, looked for when ranks agree anyway.

Called by perdure.session.boundary.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

from perdure.wire.channel import read_save_request


class SaveRequests:
    """What this process was asked for; the others may know only later, or not at all."""

    def __init__(self, file: Path | None, look_seconds: float) -> None:
        """`file` is that of a request to leave; it is looked for every `look_seconds` at most."""
        self._file = file
        self._look_seconds = look_seconds
        self._looked = -math.inf
        self._known = 0

    def look(self) -> int:
        """The number of a save that was asked for since the last look, and that no rank has told of; else 0."""
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
        """All ranks make that save: one's own word for it, which may come later, is no other."""
        self._known = max(self._known, number)


def _number(word: str) -> int:
    """Of the agent's word, `RUN NUMBER`: as one that grows. 0 for anything else."""
    found = re.fullmatch(r"(\d{1,12}) (\d{1,6})", word.strip())
    return int(found[1]) * 10**6 + int(found[2]) if found else 0
