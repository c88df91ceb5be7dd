"""Starting one trainer process.

A `Launcher` is the seam for a warm zygote: whoever starts a process must make it the leader of a session of its own
and a child of the agent (a forked process whose parent ends becomes one, see `linux.adopt_orphans`), because the
agent learns of its end from waitpid.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.agent.linux import die_with_parent


class Launcher(Protocol):
    """Starts processes of the user's command."""

    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> int:
        """The new process's id; it inherits `report` under the same number and has `stderr` as its file 2.

        OSError where the command cannot be started.
        """


class Exec:
    """A fresh process for each start."""

    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> int:
        """See Launcher."""
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=[report],
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - safe: the agent has no threads
        )
        process.returncode = 0  # keeps Popen from waiting for it: the agent's waitpid(-1) must see every end
        return process.pid
