"""The state of numpy's global generator, read in full only where it may have moved.

numpy takes longer to tell it than all other generators together, number by number, and most scripts draw nothing from
it between two batches. So its memory is compared with what it was. That does not show whether a normal number is kept
in store, as every second one is: where one was, the state is always read in full. What remains unseen is a script that
goes back to a state with one in store, from the state right after it, which then has not moved in between.

Called by perdure.session.imaging at each place where the run may stop; a commit reads everything.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

STATE_BYTES: Final = 4 * 624 + 4
"""Of a Mersenne Twister: its numbers, and which of them is next."""
_IN_STORE: Final = 3
"""Where a state tells whether a normal number is."""


class NumpyGenerator:
    """Whichever numpy's own functions draw from."""

    def __init__(self) -> None:
        self._known: Any = None
        self._shows = False
        """Whether its memory shows that it has moved."""
        self._memory = b""
        self._state: Any = None

    def state(self) -> Any:
        """As `numpy.random.get_state` gives it."""
        generator: Any = np.random.get_bit_generator()
        if generator is not self._known:
            self._known, self._state = generator, None
            self._shows = type(generator) is np.random.MT19937 and _shows_each_draw()
        if not self._shows:
            return np.random.get_state()  # the one that scripts use
        memory = _memory(generator)
        if self._state is None or memory != self._memory or self._state[_IN_STORE]:
            self._memory, self._state = memory, np.random.get_state()
        return self._state


def _memory(generator: Any) -> bytes:
    return ctypes.string_at(generator.ctypes.state_address, STATE_BYTES)


def _shows_each_draw() -> bool:
    """Whether this numpy's generators lie in memory as is believed here: the first draw moves all, the next a place."""
    probe = np.random.MT19937(0)
    seen = [_memory(probe)]
    for _ in range(2):
        probe.random_raw()
        seen.append(_memory(probe))
    return len(set(seen)) == len(seen)
