"""A save that somebody asks for while training goes on: the agent's word for it, looked for when ranks agree anyway.

Called by perdure.session.boundary.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from perdure.channel import save_asked


class SaveRequests:
    """What this process was asked for; the others may know only later, or not at all."""

    def __init__(self, file: Path | None, look_seconds: float) -> None:
        """`file` is that of a request to leave; it is looked for every `look_seconds` at most."""
        self._file = file
        self._look_seconds = look_seconds
        self._looked = -math.inf
        self._known = ""

    def look(self) -> bool:
        """Whether a save was asked for since the last look."""
        now = time.monotonic()
        if self._file is None or now - self._looked < self._look_seconds:
            return False
        self._looked = now
        word, known = save_asked(self._file), self._known
        self._known = word or known
        return self._known != known
