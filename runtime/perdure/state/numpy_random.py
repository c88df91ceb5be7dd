"""The state of NumPy's global generator, read in full only if it may have changed.

NumPy returns it number by number, which takes longer than all other generators together, and most scripts do not draw
from it between two batches. So this compares the end of the generator's memory: the position, which each draw changes,
and numbers that change whenever all are used up. That does not show whether the generator stores a normal number, as it
does after every second one. If one was stored, the state is always read in full. A single case is missed: a script that
returns to a state with a stored number from the state right after it.

Called by perdure.loop.survivor_snapshots at each place where the run may stop; a commit reads everything.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

STATE_BYTES: Final = 4 * 624 + 4
"""Size of a Mersenne Twister: its numbers, and which of them is next."""
END_BYTES: Final = 4 * 4 + 4
"""The compared values: the last numbers and the position."""
_IN_STORE: Final = 3
"""Where a state says whether a normal number is stored."""
_RANDOM: Final[Any] = np.random  # its types lack some names


class NumpyGenerator:
    """The generator that NumPy's own functions draw from."""

    def __init__(self) -> None:
        self._known: Any = None
        self._end: Any = None
        """The end of its memory, if that shows each draw."""
        self._was = b""
        self._state: Any = None

    def state(self) -> Any:
        """What `numpy.random.get_state()` returns."""
        generator = _RANDOM.get_bit_generator()
        if generator is not self._known:
            self._known, self._end, self._state = generator, None, None
            if type(generator) is np.random.MT19937 and _shows_each_draw():
                self._end = _end_of(generator)
        if self._end is None:
            return np.random.get_state()  # the one that scripts use
        now = self._end.raw
        if self._state is None or now != self._was or self._state[_IN_STORE]:
            self._was, self._state = now, np.random.get_state()
        return self._state


def _end_of(generator: Any) -> Any:
    """A view that is valid as long as the generator lives."""
    return (ctypes.c_char * END_BYTES).from_address(generator.ctypes.state_address + STATE_BYTES - END_BYTES)


def _shows_each_draw() -> bool:
    """Whether NumPy's generators have the expected memory layout: the first draw changes all, the next one the
    position."""
    probe: Any = np.random.MT19937(0)
    end = _end_of(probe)
    seen = [end.raw]
    for _ in range(2):
        probe.random_raw()
        seen.append(end.raw)
    return len(set(seen)) == len(seen)
