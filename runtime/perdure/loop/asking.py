"""Further sources of a request to exit: signals that the script names, and a file.

The file is JSON and requests an exit while `GracefulExit` equals 1, the name that MindSpore's scripts use. It may be
incomplete or malformed. That is reported once and never raised, because training must not end for such a file. Called
by perdure.loop.requests.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from perdure.console import say
from perdure.errors import UserError

WORD: Final = "GracefulExit"
_MOST_BYTES: Final = 64 * 1024
"""How much of the file is read; it needs one key."""

_SHOWN_CHARACTERS: Final = 40

_NEVER: Final = {
    signal.SIGKILL: "the kernel tells no process of it",
    signal.SIGSTOP: "the kernel tells no process of it",
    signal.SIGCHLD: "torch's DataLoader watches its workers by it",
    **dict.fromkeys(
        (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
        "a process that gets it is broken, and cannot save",
    ),
}


def exit_signals(given: Iterable[Any]) -> tuple[signal.Signals, ...]:
    """The signals that request an exit: SIGTERM, and those in `given`. Ctrl-C is handled apart. UserError for a signal
    that cannot be caught."""
    if isinstance(given, int | str):
        raise UserError(f"exit_signals={given!r}: give a list of signals, exit_signals=[signal.SIGUSR1]")
    known = [_signal(number) for number in given]
    return tuple(dict.fromkeys((signal.SIGTERM, *(one for one in known if one is not signal.SIGINT))))


def _signal(number: Any) -> signal.Signals:
    try:
        one = signal.Signals(number)
    except ValueError as error:
        raise UserError(f"exit_signals has {number!r}, which is no signal: give one of the module signal") from error
    if one in _NEVER:
        raise UserError(f"exit_signals has {one.name}, which cannot ask for an exit: {_NEVER[one]}; SIGUSR1 can")
    return one


class ExitFile:
    """A file that requests an exit as long as it says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reported_problem = ""
        """The problem that was reported last."""

    def asks(self) -> bool:
        """Whether the file requests an exit now. Raises nothing: each new problem with the file is reported once."""
        try:
            asks, problem = _reads(_content(self.path)), ""
        except FileNotFoundError:
            asks, problem = False, ""
        except (OSError, ValueError, RecursionError) as error:
            asks, problem = False, str(error) or type(error).__name__
        if problem and problem != self._reported_problem:
            say(f"the exit file {self.path} asks for nothing, training goes on: {problem}")
        self._reported_problem = problem
        return asks


def _content(path: Path) -> bytes:
    """The file's content. Does not block, even if the path is a pipe without a writer."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST_BYTES)
    finally:
        os.close(file)


def _reads(content: bytes) -> bool:
    """Whether these bytes request an exit. ValueError if they are no JSON object."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(
            f"it holds {json.dumps(found)[:_SHOWN_CHARACTERS]} and not an object, as {{{json.dumps(WORD)}: 1}} is"
        )
    return bool(found.get(WORD) == 1)
