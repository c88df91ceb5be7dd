"""The state of Python's global generator, read in full only if it has changed.

Python returns it as a tuple of 625 numbers. That takes longer than all other copies between two steps, and few scripts
draw from it there. So this compares the generator's memory, all of it, after checking that it has the expected layout.
One number is kept elsewhere, a stored normal number; it is compared as well.

Called by perdure.loop.survivor_snapshots at each place where the run may stop; a commit reads everything.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, Final

NUMBERS: Final = 624
_LAYOUT: Final = struct.Struct(f"@i{NUMBERS}I")
"""A Mersenne Twister after the object's head: which of its numbers is next, and the numbers."""


class PythonGenerator:
    """The generator that the functions of Python's `random` draw from."""

    def __init__(self) -> None:
        self._generator: Any = getattr(random.getstate, "__self__", None)
        self._memory = _memory_of(self._generator)
        self._was = b""
        self._state: Any = None

    def state(self) -> Any:
        """What `random.getstate()` returns."""
        if self._memory is None:
            return random.getstate()
        now = self._memory.raw
        if now != self._was or self._state[-1] != self._generator.gauss_next:
            self._was, self._state = now, random.getstate()
        return self._state


def _memory_of(generator: Any) -> Any:
    """A view of the generator's numbers, valid as long as it lives; None if the memory has another layout."""
    if type(generator) is not random.Random:
        return None
    view = (ctypes.c_char * _LAYOUT.size).from_address(id(generator) + object.__basicsize__)
    next_one, *numbers = _LAYOUT.unpack(view.raw)
    return view if (*numbers, next_one) == generator.getstate()[1] else None
