"""The process that commits what the last trainer has left, in a pod that goes: perdure.checkpoint.rescue.

The agent has no store and no time for one: it listens for one line, and for the end. Called by the shell.
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

from perdure.agent.linux import die_with_parent
from perdure.agent.pod_log import Outlet
from perdure.agent.processes import Pipe
from perdure.agent.state import Rescued
from perdure.wire import CommitRef

_COMMAND: Final = ("-P", "-m", "perdure.checkpoint.rescue")
"""-P: nothing in the script's folder may stand for a module of Python's."""


class Rescuer:
    """One at most, and once."""

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
        """Has the images in these files committed as the end of a run, the first of `runs`; the second never opens, and
        the third may have begun there, and is lost too."""
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

    def news(self) -> Iterator[Rescued]:
        """What has come of it, once it has ended."""
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
            told = json.loads(self._text)
            return Rescued(CommitRef(told["seq"], told["step"])) if "seq" in told else Rescued(why=str(told["why"]))
        except (ValueError, KeyError, TypeError):
            return Rescued(why=self._failed or "its process has ended without a word")
