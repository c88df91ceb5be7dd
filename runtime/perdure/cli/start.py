"""Where the command `perdure` begins: nothing may come between exec and the first line of `main` that can wait.

The kernel drops a signal that PID 1 neither handles nor blocks. A pod that is deleted in its first second would lose
its SIGTERM so and then last for its whole grace. Blocked, the signal waits until the agent's handlers are there
(perdure.agent.shell unblocks it). What comes before even this finds `perdure stop`, the pod's preStop hook.
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
        # The agent ends the container as soon as it has seen the marker: an orderly exit would be killed half-way, and
        # be told as a hook that has failed.
        os._exit(status)
    return status
