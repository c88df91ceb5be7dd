"""Lines for people, by `logging`: the logger "perdure", each line with the run and the rank it comes from.

A line goes to stderr as `perdure run 3 rank 0: saved step 480`, unless the script has given the logger "perdure" a
handler of its own; then that one has it alone. Who speaks is set once per process, as there is one Session in it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from perdure.channel import Committed, Opened

if TYPE_CHECKING:
    from perdure.telemetry.events import Event

LOGGER: Final = logging.getLogger("perdure")


class _Stderr(logging.Handler):
    """The default: one line, as it is now sys.stderr's."""

    def emit(self, record: logging.LogRecord) -> None:
        if LOGGER.handlers != [self]:
            return
        try:
            after = " " if getattr(record, "speaker", "") else ": "
            print(f"perdure{after}{record.getMessage()}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # closed, or nobody reads it
            return


_STDERR: Final = _Stderr()
_speaker = ""


def speak_as(run: int | None, rank: int) -> None:
    """From here on each line says that it comes from this rank of this run; None: the run is not known yet."""
    global _speaker  # noqa: PLW0603 - one process is one rank
    _speaker = f"run {run} rank {rank}" if run is not None else f"rank {rank}"


def fall_silent() -> None:
    """From here on lines say nothing of who speaks: the Session is closed."""
    global _speaker  # noqa: PLW0603 - see above
    _speaker = ""


def say(text: str, level: int = logging.INFO) -> None:
    """One line."""
    if not LOGGER.handlers:
        _install()
    LOGGER.log(level, f"{_speaker}: {text}" if _speaker else text, extra={"speaker": _speaker})


def warn(text: str) -> None:
    """One line about what went wrong while training goes on."""
    say(text, logging.WARNING)


def _install() -> None:
    """A script that has set the level, or given the logger a handler, has the say."""
    LOGGER.addHandler(_STDERR)
    LOGGER.propagate = False
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)


class LogLines:
    """The sink: what happens to a run, for whoever reads the pod's log. Rank 0 speaks for all."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def take(self, event: Event) -> None:
        """Says what is worth a line."""
        match event:
            case Opened(run):
                speak_as(run, self._rank)
            case Committed(commit) if self._rank == 0:
                say(f"saved step {commit.step}")
