"""A member for tests: a real agent in its own process, its assignment file, and what it and its trainer say."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perdure.wire import Assignment, Outcome, read_outcome, write_assignment

HERE = Path(__file__).parent
DEADLINE = 120.0
TRAINER = [sys.executable, str(HERE / "trainer.py")]


class Member:
    """Use as a context manager: nothing is left when it ends."""

    def __init__(
        self, folder: Path, *command: str, environ: dict[str, str] | None = None, **settings: float | str | list[str]
    ) -> None:
        self.folder = folder
        self._command = [sys.executable, str(HERE / "run_agent.py"), json.dumps(settings), str(folder), *command]
        self._environ = {**os.environ, **(environ or {})}
        self._unread = b""
        self.log: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self._environ, bufsize=0
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout or 0, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        self._selector.close()
        if self.process.stdout:
            self.process.stdout.close()

    def assign(self, assignment: Assignment | str) -> None:
        """Replaces the file as a whole, as the kubelet does."""
        text = assignment if isinstance(assignment, str) else write_assignment(assignment)
        temporary = self.folder / "assignment.new"
        temporary.write_text(text)
        temporary.rename(self.folder / "assignment")

    def hears(self, wanted: str) -> str:
        """The next line with these words."""
        return self._until(lambda line: wanted in line, wanted)

    def told(self, key: str) -> Any:
        """What the trainer prints next under this key."""
        line = self._until(lambda line: line.startswith(f'{{"{key}":'), key)
        return json.loads(line)[key]

    def outcome(self) -> tuple[Outcome, int]:
        """An ended agent's remains: the outcome and its exit status."""
        while self._line(time.monotonic() + DEADLINE) is not None:
            pass
        return read_outcome((self.folder / "termination-log").read_text()), self.process.wait(DEADLINE)

    def waits_until(self, true: Callable[[], bool]) -> None:
        """For events that nothing announces."""
        end = time.monotonic() + DEADLINE
        while not true():
            assert time.monotonic() < end, "not within the deadline:\n" + "\n".join(self.log)
            time.sleep(0.01)

    def silent(self) -> None:
        """Waits until no writer is left: neither the agent, nor any process it has started."""
        while self._line(time.monotonic() + DEADLINE) is not None:
            pass

    def _until(self, wanted: Callable[[str], bool], what: str) -> str:
        end = time.monotonic() + DEADLINE
        while (line := self._line(end)) is not None:
            if wanted(line):
                return line
        raise AssertionError(f"the agent ended without {what!r}:\n" + "\n".join(self.log))

    def _line(self, end: float) -> str | None:
        """The next line, None at the end of all."""
        while b"\n" not in self._unread:
            if not self._selector.select(end - time.monotonic()) or self.process.stdout is None:
                raise AssertionError("nothing more within the deadline:\n" + "\n".join(self.log))
            chunk = self.process.stdout.read(65536)
            if not chunk:
                return None
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        self.log.append(line.decode())
        return self.log[-1]


def gone(pid: int) -> bool:
    """Whether there is no such process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()
