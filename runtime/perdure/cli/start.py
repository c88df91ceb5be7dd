"""The entry point of the command `perdure`: nothing slow may run before the first line of `main`.

The kernel drops a signal that PID 1 neither handles nor blocks. A pod that is deleted in its first second would lose
its SIGTERM and last for its whole grace period. A blocked signal waits until the agent's handlers exist
(perdure.agent.shell unblocks it). `perdure stop`, the pod's preStop hook, covers the time before this.
"""

from __future__ import annotations

import os
import signal
import sys

BLOCKED = frozenset({signal.SIGTERM, signal.SIGINT})


def main() -> int:
    """The console script."""
    command = sys.argv[1:2]
    if command == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    from perdure.cli.main import main as perdure  # noqa: PLC0415 - imports far more

    status = perdure()
    if command == ["stop"]:
        # The agent ends the container as soon as it sees the marker. That would kill an orderly exit half-way, and
        # Kubernetes would report a failed hook.
        os._exit(status)
    return status
