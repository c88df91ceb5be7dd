"""Tells how a script has left its epoch loop, by `break` (or `return`) or by an exception, and how it has ended.

A generator is closed in the same way in both cases, while the frame of the loop is still at the instruction that did
it. That instruction tells: `break` takes the iterator off the stack, by an instruction that raises nothing itself. An
iterator that is kept elsewhere is closed later, from other code, and tells nothing.

In the same way the frame of the script's main module tells whether it has come to its end: a SystemExit ends the
interpreter silently, and only the parent process learns its status.

Decision 012 has the reasons (docs/decisions). Called by perdure.session.job and by the Session.
"""

from __future__ import annotations

import dis
import inspect
from enum import Enum
from types import FrameType
from typing import Final

_TAKES_OFF: Final = frozenset({"POP_TOP", "POP_ITER"})
_DROPS: Final = frozenset({"DELETE_FAST", "DELETE_NAME", "STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
"""Instructions that release a variable's value, whatever happened in a loop over it."""

_ENDS: Final = frozenset({"RETURN_VALUE", "RETURN_CONST"})


class Departure(Enum):
    """How a loop was left."""

    BREAK = 1
    RAISED = 2
    UNKNOWN = 3
    """The script kept the loop's iterator, and closed it after the loop."""


def loop() -> int:
    """Identifies the loop that the calling generator hands its next value to."""
    return id(_frame(2))


def departure(consumer: int) -> Departure:
    """How the loop `consumer` was left. Called while its iterator, the calling generator, is being closed."""
    frame = _frame(2)
    if frame is None or frame.f_lasti < 0:
        return Departure.UNKNOWN
    doing = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if doing in _TAKES_OFF:
        return Departure.BREAK
    return Departure.RAISED if id(frame) == consumer and doing not in _DROPS else Departure.UNKNOWN


def main_frame() -> FrameType | None:
    """The frame of the main module, if the caller was called from it; otherwise None."""
    frame = _frame(1)
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"):
        frame = frame.f_back
    return frame


def has_ended(frame: FrameType) -> bool:
    """Whether a frame that no longer runs has come to its end. Otherwise an exception left it."""
    return frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]] in _ENDS


def _frame(above: int) -> FrameType | None:
    """The frame of the caller's `above`-th caller."""
    frame = inspect.currentframe()
    for _ in range(above + 1):
        frame = frame.f_back if frame else None
    return frame
