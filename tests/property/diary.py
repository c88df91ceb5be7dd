"""What a script writes down of itself while it trains, and the moments at which something happens to it.

Scripts of this folder import it; nothing of Perdure is used, so that what the judge reads owes nothing to what is
judged. A line is written by one system call, so a SIGKILL leaves it whole or leaves it out.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from hashlib import sha256
from typing import Any, Final

PATH: Final = "PROPERTY_DIARY"
DISTURBANCE: Final = "PROPERTY_DISTURBANCE"
"""JSON [kind, moment, delay], for the rank to which it happens."""


class Diary:
    """One rank's, in one run."""

    def __init__(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(os.environ[PATH], flags, 0o644)
        self._kind, self._moment, self._delay = json.loads(os.environ.get(DISTURBANCE, '["", 0, 0]'))
        self._passed = 0

    def write(self, kind: str, *values: Any) -> None:
        """A line, and a moment; a float is written to its last bit."""
        self.close(kind, *values)
        self.moment()

    def close(self, kind: str, *values: Any) -> None:
        """A line after which nothing happens any more: SIGTERM is no business of a session that is done."""
        line = [kind, *(value.hex() if isinstance(value, float) else value for value in values)]
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def moment(self) -> None:
        """A place where the script may be asked to leave, or be killed."""
        self._passed += 1
        if self._passed != self._moment:
            return
        if "term" in self._kind:
            os.kill(os.getpid(), signal.SIGTERM)
        if "kill" in self._kind:
            threading.Thread(target=self._die, daemon=True).start() if self._delay else self._die()

    def _die(self) -> None:
        time.sleep(self._delay / 1000)
        os.kill(os.getpid(), signal.SIGKILL)


def fingerprint(*tensors: Any) -> str:
    """Of the bytes of tensors."""
    digest = sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
