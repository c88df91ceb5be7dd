"""The marker file of a pod that is being deleted, written by `perdure stop`.

The kubelet runs a container's preStop hook before it sends SIGTERM. A signal before its handler would be lost; a file
is not. The marker holds the time at which the hook started, because the pod's grace period counts from there.
`perdure stop` imports only this module and the paths of the agent, because the grace period is running.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from perdure.host.process_age import age, born

HOOK_SECONDS: Final = 10.0
"""The longest credible delay until the agent sees the marker."""
_SLACK_SECONDS: Final = 1.0


def stop_marker(scratch: Path) -> Path:
    """The file that exists once the pod is being deleted."""
    return scratch / "stop"


def write_stop(scratch: Path) -> None:
    """Write the marker, and the agent's folder if needed. Raises OSError if the folder is not writable."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    marker = stop_marker(scratch)
    half = marker.with_name(f"stop-{os.getpid()}")
    half.write_text(repr(born() or 0.0))
    half.replace(marker)


class StopMarker:
    """Looks for the marker. One that is older than this process was for an earlier agent, and is ignored."""

    def __init__(self, scratch: Path) -> None:
        self._path = stop_marker(scratch)
        self._born = born() or 0.0
        self._done = False

    def seen(self) -> float | None:
        """When the pod's grace period began, returned once; None while the pod is not being deleted."""
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
