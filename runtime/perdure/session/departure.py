"""How a script has left its epoch loop: by `break` (or `return`), or because something was raised in its body.

A generator is closed alike in both cases, while its caller's frame still stands at the instruction that did it. That
tells: `break` takes the iterator off the stack, by an instruction that raises nothing itself. Called by
perdure.session.job; what stands elsewhere counts as raised, which commits nothing.
"""

from __future__ import annotations

import dis
import inspect
from typing import Final

_TAKES_OFF: Final = frozenset({"POP_TOP", "POP_ITER"})


def left_by_break() -> bool:
    """Whether the loop whose frame closes the caller, a generator, is left on purpose."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame else None
    if frame is None or frame.f_lasti < 0:
        return False
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in _TAKES_OFF
