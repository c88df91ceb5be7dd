"""Gives the agent's reports to a process that sends them to the operator, once there is a place to send them to.

The agent has no threads and must not block, so it only writes lines to a pipe: at most one a second, and none while the
pipe is full. Without the channel's file and the token it starts nothing. Called by the shell.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from perdure.agent.pod_log import Outlet
from perdure.agent.processes import Pipe
from perdure.agent.reporting import report_of
from perdure.agent.state import AgentState
from perdure.host.parent import die_with_parent
from perdure.wire.report import Report, write_report

_COMMAND: Final = ("-P", "-m", "perdure.agent.sender")
"""-P: a file in the script's folder must not shadow a module."""
LOOK_SECONDS: Final = 1.0
"""How often it looks for the channel, and for what has changed."""


class ReportFeed:
    """One agent's. It starts the process at most once: training does not depend on it."""

    def __init__(self, channel: Path | None, token: Path | None, environ: Mapping[str, str], log: Outlet) -> None:
        self._files = [file for file in (channel, token) if file]
        self._environ, self._log = environ, log
        self._start = secrets.token_hex(16)
        self._next = 0.0
        self._given: Report | None = None
        self._reports = -1
        """Our end of the process's stdin; -1 before its start and after its end."""
        self._lines: Pipe | None = None
        self.pid: int | None = None
        """The sending process while it lives. It does not belong to the trainer."""

    def look(
        self, state: AgentState, selector: selectors.BaseSelector, posted: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Logs what the process says, and gives it the report of this state if that has changed. `posted`: see
        report_of.

        Raises nothing: an error of reporting ends the reports, and never the agent.
        """
        try:
            self._look(state, selector, posted)
        except Exception as error:  # noqa: BLE001 - also a bug of ours
            with contextlib.suppress(OSError):
                self._close()
            self._log.say(f"nothing more is reported to the operator: {type(error).__name__}: {error}")

    def _look(self, state: AgentState, selector: selectors.BaseSelector, posted: Mapping[str, float]) -> None:
        if self._lines is not None:
            self._log.write(self._lines.read())
            if self._lines.closed:
                self._end()
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        if self._lines is None and not self._begin(selector):
            return
        report = report_of(state, self._start, now, time.time() - now, posted)
        if report != self._given and self._has_written(f"{write_report(report)}\n".encode()):
            self._given = report

    def _has_written(self, line: bytes) -> bool:
        """Whether there was room for the line. It is shorter than PIPE_BUF, so the pipe takes all of it or nothing."""
        try:
            os.write(self._reports, line)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self._end()
        return True

    def _begin(self, selector: selectors.BaseSelector) -> bool:
        """Starts the process if there is a channel and a token."""
        if len(self._files) < 2 or not all(map(_has_content, self._files)):
            return False
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            reports_end, reports = os.pipe()
            theirs.callback(os.close, reports_end)
            ours.callback(os.close, reports)
            lines_fd, lines_end = os.pipe()
            theirs.callback(os.close, lines_end)
            lines = ours.enter_context(contextlib.closing(Pipe(lines_fd, selector)))
            os.set_blocking(reports, False)
            process = subprocess.Popen(
                [sys.executable, *_COMMAND, *map(str, self._files)],
                env=self._environ,
                stdin=reports_end,
                stdout=subprocess.DEVNULL,
                stderr=lines_end,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - safe: the agent has no threads
            )
            process.returncode = 0  # keeps Popen from waiting for it: the agent's waitpid(-1) does
            ours.pop_all()
        self._reports, self._lines, self.pid = reports, lines, process.pid
        return True

    def _end(self) -> None:
        if self._lines is not None:
            self._log.write(self._lines.read())
            self._log.say("nothing more is reported to the operator: the process that sends it has ended")
        self._close()

    def _close(self) -> None:
        """Starts no process again; this one ends once its stdin is closed."""
        lines, reports = self._lines, self._reports
        self._next = float("inf")
        self._reports, self._lines, self.pid = -1, None, None
        if lines is not None:
            lines.close()
            os.close(reports)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
