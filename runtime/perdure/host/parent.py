"""Ends a child process with its parent. Linux only; elsewhere a child has to notice the end by itself.

Used by the agent for all processes that it starts, and by a trainer's uploading process.
"""

from __future__ import annotations

import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def die_with_parent() -> None:
    """Get SIGKILL when the parent ends. Called in the child, also between fork and exec.

    Linux means the thread that made this child: it ends this child, too, when only that thread ends.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
