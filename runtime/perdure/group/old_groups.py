"""The groups of older runs in a living process, freed beside the training when nobody needs them any more.

A group has threads and connections, and freeing one takes some 10 ms in which no other thread of this process runs. So
it is not done where all ranks stand still, and never for all at once. Nor soon: whoever has not heard the word yet
reads it from the old connections, and is told of a death by their end. Called by perdure.live.membership.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

GRACE_SECONDS: Final = 10.0
"""After the last party has said that it knows what has happened: what is under way then has arrived."""
LOOK_SECONDS: Final = 1.0


class OldGroups:
    """Those of one process."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._kept: dict[int, list[Any]] = {}
        self._closed = threading.Event()
        self._freed = threading.Condition()
        self._number = 0

    def keep(self, things: list[Any], needed: Callable[[], bool]) -> None:
        """Keeps them for as long as they are `needed`, and a while longer; the last is freed first. No other reference
        may be left then."""
        self._number += 1
        self._kept[self._number] = things
        name, number = "perdure-old-groups", self._number
        threading.Thread(target=self._free_later, args=(number, needed), name=name, daemon=True).start()

    def clear(self) -> None:
        """Frees all of them, now."""
        self._closed.set()
        self._kept.clear()

    def wait(self, seconds: float) -> bool:
        """Whether there are none any more within so many seconds."""
        with self._freed:
            return self._freed.wait_for(lambda: not self._kept, seconds)

    def _free_later(self, number: int, needed: Callable[[], bool]) -> None:
        while needed():
            if self._closed.wait(min(LOOK_SECONDS, self._grace)):
                return
        if self._closed.wait(self._grace):
            return
        with self._freed:
            things = self._kept.pop(number, [])
            while things and not self._closed.is_set():
                things.pop()  # one at a time: other threads run between two
            self._freed.notify_all()
