"""Starting one trainer process.

A `Launcher` is the seam for a warm zygote (perdure.agent.zygote): whoever starts a process must make it the leader of a
session of its own and a child of the agent, because the agent learns of its end from waitpid.
"""

from __future__ import annotations

import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from perdure.agent.linux import die_with_parent


class Started(NamedTuple):
    """A process that runs."""

    pid: int
    how: str = ""
    """For the pod's log, where there is something to say about it."""


class Launcher(Protocol):
    """Starts processes of the user's command."""

    @property
    def helper(self) -> int | None:
        """A process of the launcher's own: no trainer has started it, so it is never killed with one."""

    @property
    def warming(self) -> bool:
        """Whether a start would be much quicker in a while."""

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Prepares; `selector` is woken up when there are news."""

    def news(self) -> Iterator[str]:
        """Lines for the pod's log, each once."""

    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> Started:
        """The new process has `report` and finds its number in PERDURE_REPORT_FD; `stderr` is its file 2.

        OSError where the command cannot be started.
        """


class Exec:
    """A fresh process for each start."""

    helper = None
    warming = False

    def __init__(self, why: str = "") -> None:
        self._why = why

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Has nothing to prepare."""

    def news(self) -> Iterator[str]:
        """Why nothing else is used, where that is worth a line."""
        said, self._why = self._why, ""
        if said:
            yield said

    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> Started:
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
        return Started(process.pid)
