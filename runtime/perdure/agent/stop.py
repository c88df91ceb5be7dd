"""The marker by which a pod that is being deleted tells its agent so, however early: written by `perdure stop`.

The kubelet runs a container's preStop hook before it sends SIGTERM, and a file is not lost as a signal is that comes
before its handler. The marker says when the hook was started, for the pod's grace counts from there. `perdure stop`
imports no more of the agent than this and its paths: a pod's grace runs meanwhile.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from perdure.host.process_age import age, born

HOOK_SECONDS: Final = 10.0
"""At most this much is believed to have passed before the agent sees the marker."""
_SLACK_SECONDS: Final = 1.0


def stop_marker(scratch: Path) -> Path:
    """The file that exists once the pod is being deleted."""
    return scratch / "stop"


def write_stop(scratch: Path) -> None:
    """Tells the agent, whether or not it has made its folder yet. OSError where the folder is not writable."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    marker = stop_marker(scratch)
    half = marker.with_name(f"stop-{os.getpid()}")
    half.write_text(repr(born() or 0.0))
    half.replace(marker)


class StopMarker:
    """Looks for the marker; one that is older than this process was meant for an agent before it."""

    def __init__(self, scratch: Path) -> None:
        self._path = stop_marker(scratch)
        self._born = born() or 0.0
        self._done = False

    def seen(self) -> float | None:
        """When the pod's grace began, told once; None while the pod is not being deleted."""
        if self._done:
            return None
        try:
            asked = float(self._path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            asked = self._born
        self._done = True
        ago = age(asked)
        if asked < self._born or ago < -_SLACK_SECONDS:
            return None
        return time.monotonic() - min(max(ago, 0.0), HOOK_SECONDS)
