"""Real time that one history may take: code that loops without virtual time passing must not end the whole test run.

`clock` notices a loop of callbacks at one virtual moment; this catches the rest: one callback that does not return, and
time that passes in steps too small to arrive anywhere. Called by `history`, in the main thread.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

WORK_SECONDS: Final = 60.0
"""Of this process: the longest history takes five, and a busy machine takes none of them."""
WAIT_FACTOR: Final = 10
"""So many times as long by the wall clock, because a blocked process does no work."""
_FRAMES: Final = 4


class Overtime(KeyboardInterrupt):
    """No loop and no task keeps it, as they keep other exceptions."""


@contextmanager
def patience(work: float = WORK_SECONDS) -> Iterator[None]:
    """Raises Overtime, which says where the code stands, once the body has worked for so many seconds."""
    began, worked = time.monotonic(), time.process_time()

    def look(_: int, frame: FrameType | None) -> None:
        done, waited = time.process_time() - worked, time.monotonic() - began
        if done >= work or waited >= work * WAIT_FACTOR:
            raise Overtime(f"not over after {done:.0f} s of work in {waited:.0f} s, stands in {_where(frame)}")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, work / 4, work / 4)  # again and again: one may be swallowed on its way
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _where(frame: FrameType | None) -> str:
    """The innermost calls, the last one first."""
    calls = traceback.extract_stack(frame, None)[::-1][:_FRAMES]
    return " < ".join(f"{one.name} ({one.filename.rpartition('/')[2]}:{one.lineno})" for one in calls)
