"""Starts one trainer process.

`Launcher` is the interface that the zygote (perdure.agent.zygote) implements too. A launcher must make the process the
leader of its own session and a child of the agent, which learns of its end by waitpid.
"""

from __future__ import annotations

import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from perdure.host.parent import die_with_parent


class Started(NamedTuple):
    """A process that runs."""

    pid: int
    how: str = ""
    """A note for the pod's log; "" for none."""


class Launcher(Protocol):
    """Starts processes of the user's command."""

    @property
    def helper(self) -> int | None:
        """A process of the launcher's own, which is not killed with a trainer."""

    @property
    def warming(self) -> bool:
        """Whether a start will soon be much quicker."""

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Prepare; `selector` wakes up when there is news."""

    def log_lines(self) -> Iterator[str]:
        """Lines for the pod's log, each once."""

    def start(self, command: Sequence[str], environment: Mapping[str, str], report: int, stderr: int) -> Started:
        """Start a process. It inherits `report`, whose number is in PERDURE_REPORT_FD, and `stderr` as file 2.

        Raises OSError if the command cannot be started.
        """


class Exec:
    """Executes the command for each start."""

    helper = None
    warming = False

    def __init__(self, why: str = "") -> None:
        self._why = why

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Nothing to prepare."""

    def log_lines(self) -> Iterator[str]:
        """Why there is no zygote, if that is worth a line."""
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
