"""The parent of one rank: what the rank has started ends with it, and all of it with the process that tests.

A program of its own, `python -m perdure.testing.keeper PARENT COMMAND…`: it has no threads, so it may do between fork
and exec what a test's process may not. It exits with the rank's status, 128 + n after signal n.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from perdure.agent.exit_cause import SHELL_SIGNALLED
from perdure.agent.linux import adopt_orphans, descendants, kill
from perdure.host.parent import die_with_parent


def keep(parent: int, command: Sequence[str]) -> int:
    """The status of `command`, once it has ended and nothing is left of it. SIGTERM ends it at once."""
    die_with_parent()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SHELL_SIGNALLED + signal.SIGTERM))
    if os.getppid() != parent:  # it was gone before this process could ask to end with it
        return SHELL_SIGNALLED + signal.SIGKILL
    try:
        status = subprocess.call(command, close_fds=False, preexec_fn=die_with_parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _clear()
    return status if status >= 0 else SHELL_SIGNALLED - status


def _clear() -> None:
    """Whoever is born meanwhile is found once its parent is reaped."""
    while True:
        kill(descendants(os.getpid()))
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
