"""The parent process of one rank. It kills all processes of the rank, and ends together with the testing process.

Run as `python -m perdure.testing.keeper PARENT COMMAND…`. It is a separate program because it needs a `preexec_fn`,
which is unsafe in a test's process with its threads. It exits with the rank's status, 128 + n after signal n.
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
    """Run `command`, kill what it left behind, and return its exit status. SIGTERM ends it at once."""
    die_with_parent()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SHELL_SIGNALLED + signal.SIGTERM))
    if os.getppid() != parent:  # the parent ended before `die_with_parent` took effect
        return SHELL_SIGNALLED + signal.SIGKILL
    try:
        status = subprocess.call(command, close_fds=False, preexec_fn=die_with_parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _clear()
    return status if status >= 0 else SHELL_SIGNALLED - status


def _clear() -> None:
    """Kill all descendants. Those started meanwhile become children of this process, and the next round finds them."""
    while True:
        kill(descendants(os.getpid()))
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
