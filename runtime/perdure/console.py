"""Lines for people, by `logging`: the logger "perdure", each line with the run and the rank it comes from.

A line goes to stderr as `perdure run 3 rank 0: saved step 480`, unless the script has given the logger "perdure" a
handler before it makes its Session; then that one has it. Who speaks is set once per process, as there is one Session
in it.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from typing import Final

LOGGER: Final = logging.getLogger("perdure")
MINUTE: Final = 60.0
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


class _Stderr(logging.Handler):
    """The default: one line, as it is now sys.stderr's."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            after = " " if getattr(record, "speaker", "") else ": "
            print(f"perdure{after}{record.getMessage()}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # closed, or its reader is gone
            return


_STDERR: Final = _Stderr()
_speaker = ""


def speak_as(run: int | None, rank: int) -> None:
    """From here on each line says that it comes from this rank of this run; None: the run is not known yet."""
    global _speaker  # noqa: PLW0603 - one process is one rank
    _speaker = f"run {run} rank {rank}" if run is not None else f"rank {rank}"


def fall_silent() -> None:
    """The Session is closed: from here on lines do not name their rank."""
    global _speaker  # noqa: PLW0603 - see above
    _speaker = ""


def say(text: str, level: int = logging.INFO) -> None:
    """One line."""
    if not LOGGER.handlers:
        _install()
    LOGGER.log(level, f"{_speaker}: {text}" if _speaker else text, extra={"speaker": _speaker})


def spoken(text: str) -> str:
    """The line as it stands in a log, for what must take no lock of `logging` or of sys.stderr."""
    return f"perdure {_speaker}: {text}" if _speaker else f"perdure: {text}"


def warn(text: str) -> None:
    """One line about what went wrong while training goes on."""
    say(text, logging.WARNING)


def in_bytes(count: float) -> str:
    """A number of bytes as people read it: "432 MB"."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}" if unit else f"{count} {_UNITS[0]}"


class Trouble:
    """A recurring problem: logged immediately, then once a minute while it lasts.

    A full disk that fails each save is one line a minute, and not one a step.
    """

    def __init__(self) -> None:
        self._said_at = -math.inf
        self._unsaid = 0

    def say(self, text: str) -> None:
        """One line with how many like it were not said, or none where the last is less than a minute old."""
        now = time.monotonic()
        if now - self._said_at < MINUTE:
            self._unsaid += 1
            return
        say(f"{text} ({self._unsaid} more since the last such line)" if self._unsaid else text)
        self._said_at, self._unsaid = now, 0

    def over(self) -> None:
        """The trouble is over: the next line is logged again."""
        self._said_at, self._unsaid = -math.inf, 0


def _install() -> None:
    """A script that set the level, or gave the logger a handler, keeps control of it."""
    LOGGER.addHandler(_STDERR)
    LOGGER.propagate = False
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
