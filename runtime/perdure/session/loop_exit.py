"""How a script has left its epoch loop, by `break` (or `return`) or because something was raised in its body, and how
it has ended as a whole.

A generator is closed alike in both cases, while the frame of the loop still stands at the instruction that did it.
That tells: `break` takes the iterator off the stack, by an instruction that raises nothing itself. An iterator that
somebody has kept is closed later, from elsewhere, and tells nothing.

In the same way the frame of the script's main module tells whether it has come to its end: a SystemExit ends the
interpreter without a word to anybody, and its status is known to the parent alone.

Why it is done so: docs/decisions/012. Called by perdure.session.job and by the Session.
"""

from __future__ import annotations

import dis
import inspect
from enum import Enum
from types import FrameType
from typing import Final

_TAKES_OFF: Final = frozenset({"POP_TOP", "POP_ITER"})
_DROPS: Final = frozenset({"DELETE_FAST", "DELETE_NAME", "STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
"""Instructions that let go of a variable's value, whatever happened in a loop over it."""

_ENDS: Final = frozenset({"RETURN_VALUE", "RETURN_CONST"})


class Departure(Enum):
    """How a loop was left."""

    BREAK = 1
    RAISED = 2
    UNKNOWN = 3
    """Its iterator was kept, and closed when the loop was over already."""


def loop() -> int:
    """Tells apart the loop that the calling generator hands its next value to."""
    return id(_frame(2))


def departure(consumer: int) -> Departure:
    """How the loop `consumer` was left, whose iterator, the calling generator, is being closed."""
    frame = _frame(2)
    if frame is None or frame.f_lasti < 0:
        return Departure.UNKNOWN
    doing = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if doing in _TAKES_OFF:
        return Departure.BREAK
    return Departure.RAISED if id(frame) == consumer and doing not in _DROPS else Departure.UNKNOWN


def main_frame() -> FrameType | None:
    """The frame of the main module's own code, which the caller was called from; None where it was not."""
    frame = _frame(1)
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"):
        frame = frame.f_back
    return frame


def has_ended(frame: FrameType) -> bool:
    """Whether a frame that runs no longer has come to its end, instead of being left by an exception."""
    return frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]] in _ENDS


def _frame(above: int) -> FrameType | None:
    """Of the caller's `above`-th caller."""
    frame = inspect.currentframe()
    for _ in range(above + 1):
        frame = frame.f_back if frame else None
    return frame
