"""The state of Python's global generator, read in full only where it has moved.

Python tells it as a tuple of 625 numbers, which takes longer than all else that is copied between two steps, and few
scripts draw from it there. So its memory is compared with what it was: all of it, once it is known to lie where it is
believed to. The one number that is kept elsewhere, a normal number in store, is compared as well.

Called by perdure.loop.survivor_snapshots at each place where the run may stop; a commit reads everything.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, Final

NUMBERS: Final = 624
_LAYOUT: Final = struct.Struct(f"@i{NUMBERS}I")
"""Of a Mersenne Twister behind an object's head: which of its numbers is next, and the numbers."""


class PythonGenerator:
    """The one that the functions of Python's `random` draw from."""

    def __init__(self) -> None:
        self._generator: Any = getattr(random.getstate, "__self__", None)
        self._memory = _memory_of(self._generator)
        self._was = b""
        self._state: Any = None

    def state(self) -> Any:
        """As `random.getstate` gives it."""
        if self._memory is None:
            return random.getstate()
        now = self._memory.raw
        if now != self._was or self._state[-1] != self._generator.gauss_next:
            self._was, self._state = now, random.getstate()
        return self._state


def _memory_of(generator: Any) -> Any:
    """A view of its numbers, for as long as it lives; None where they are not found as Python tells them."""
    if type(generator) is not random.Random:
        return None
    view = (ctypes.c_char * _LAYOUT.size).from_address(id(generator) + object.__basicsize__)
    next_one, *numbers = _LAYOUT.unpack(view.raw)
    return view if (*numbers, next_one) == generator.getstate()[1] else None
