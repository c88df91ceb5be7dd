"""The state of numpy's global generator, read in full only where it may have moved.

numpy takes longer to tell it than all other generators together, number by number, and most scripts draw nothing from
it between two batches. So the end of its memory is compared with what it was: the place that each draw moves, and
numbers that change whenever all are used up. That does not show whether a normal number is kept in store, as every
second one is: where one was, the state is always read in full. What remains unseen is a script that goes back to a
state with one in store, from the state right after it, which then has not moved in between.

Called by perdure.loop.survivor_snapshots at each place where the run may stop; a commit reads everything.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

STATE_BYTES: Final = 4 * 624 + 4
"""Of a Mersenne Twister: its numbers, and which of them is next."""
END_BYTES: Final = 4 * 4 + 4
"""What is looked at: the last numbers and the place."""
_IN_STORE: Final = 3
"""Where a state tells whether a normal number is."""
_RANDOM: Final[Any] = np.random  # its types do not know all of it


class NumpyGenerator:
    """Whichever numpy's own functions draw from."""

    def __init__(self) -> None:
        self._known: Any = None
        self._end: Any = None
        """The end of its memory, where that shows that it has moved."""
        self._was = b""
        self._state: Any = None

    def state(self) -> Any:
        """As `numpy.random.get_state` gives it."""
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
    """A view, for as long as somebody keeps the generator."""
    return (ctypes.c_char * END_BYTES).from_address(generator.ctypes.state_address + STATE_BYTES - END_BYTES)


def _shows_each_draw() -> bool:
    """Whether numpy's generators lie in memory as is believed here: the first draw moves all, the next the place."""
    probe: Any = np.random.MT19937(0)
    end = _end_of(probe)
    seen = [end.raw]
    for _ in range(2):
        probe.random_raw()
        seen.append(end.raw)
    return len(set(seen)) == len(seen)
