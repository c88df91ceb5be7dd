"""Runs perdure.checkpoint.rescue, which commits the last trainer's image before its pod goes.

The agent has no storage client and must not block, so it only reads one line of that process and its end. Called by
the shell.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from perdure.agent.pod_log import Outlet
from perdure.agent.processes import Pipe
from perdure.agent.state import Rescued
from perdure.host.parent import die_with_parent
from perdure.wire import CommitRef

_COMMAND: Final = ("-P", "-m", "perdure.checkpoint.rescue")
"""-P: a file in the script's folder must not shadow a module."""


class Rescuer:
    """Runs the process at most once."""

    def __init__(self, log: Outlet) -> None:
        self._log = log
        self._answer: Pipe | None = None
        self._lines: Pipe | None = None
        self._text = b""
        self._failed = ""

    def begin(
        self,
        runs: tuple[int, int, int],
        files: Sequence[Path],
        environ: Mapping[str, str],
        selector: selectors.BaseSelector,
    ) -> None:
        """Start to commit the images in these files.

        `runs` are the run that the commit ends, the run that then never opens, and the lost run that may have begun
        there; 0 for none.
        """
        (answer, answer_end), (lines, lines_end) = os.pipe(), os.pipe()
        self._answer, self._lines = Pipe(answer, selector), Pipe(lines, selector)
        try:
            process = subprocess.Popen(
                [sys.executable, *_COMMAND, *map(str, runs), *map(str, files)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=answer_end,
                stderr=lines_end,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - safe: the agent has no threads
            )
            process.returncode = 0  # keeps Popen from waiting for it: the agent's waitpid(-1) does
        except OSError as error:
            self._failed = f"{sys.executable} cannot be started: {error.strerror}"
        finally:
            os.close(answer_end)
            os.close(lines_end)

    def results(self) -> Iterator[Rescued]:
        """The result, once the process has ended."""
        if self._answer is None or self._lines is None:
            return
        self._log.write(self._lines.read())
        self._text += self._answer.read()
        if self._answer.closed:
            self._log.write(self._lines.read())
            self._lines.close()
            self._answer = None
            yield self._read()

    def _read(self) -> Rescued:
        try:
            answer = json.loads(self._text)
            if "seq" in answer:
                return Rescued(CommitRef(answer["seq"], answer["step"]))
            return Rescued(why=str(answer["why"]))
        except (ValueError, KeyError, TypeError):
            return Rescued(why=self._failed or "its process ended without a message")
