"""What a script lets ask for an exit beside SIGTERM and Ctrl-C: signals of its own choice, and a file.

The file is JSON, with `GracefulExit` equal to 1 as the only word that counts, the name that MindSpore's scripts look
for. Whoever writes it may be half done, or wrong: that is told once, and never raised, as training knows better than
to end for a file. Called by perdure.loop.requests.
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
"""Of a file that asks: it says one word."""

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
    """Those that ask: SIGTERM always, and `given`. Ctrl-C asks in its own way. UserError for one that cannot."""
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
    """A file that asks for an exit as long as it says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = ""
        """What was last found wrong with it."""

    def asks(self) -> bool:
        """Whether it asks now. Never an error: what is wrong with it is said, once until something else is."""
        try:
            asks, problem = _reads(_content(self.path)), ""
        except FileNotFoundError:
            asks, problem = False, ""
        except (OSError, ValueError, RecursionError) as error:
            asks, problem = False, str(error) or type(error).__name__
        if problem and problem != self._told:
            say(f"the exit file {self.path} asks for nothing, training goes on: {problem}")
        self._told = problem
        return asks


def _content(path: Path) -> bytes:
    """Whatever lies there, a pipe that nobody writes to say, nobody waits for it."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST_BYTES)
    finally:
        os.close(file)


def _reads(content: bytes) -> bool:
    """Whether these bytes ask. ValueError if they are nothing that could."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(
            f"it holds {json.dumps(found)[:_SHOWN_CHARACTERS]} and not an object, as {{{json.dumps(WORD)}: 1}} is"
        )
    return bool(found.get(WORD) == 1)
