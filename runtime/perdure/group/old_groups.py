"""Frees the groups of older runs in a living process while training goes on.

Freeing a group takes about 10 ms in which no other thread of this process runs. So it does not happen during the stop,
and never for all groups at once. It also waits: other parties may still read the hand-over's outcome from the old
connections, and would take their end for this process's death. Called by perdure.live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

GRACE_SECONDS: Final = 10.0
"""Wait after the last party knows the outcome, so that all messages have arrived."""
LOOK_SECONDS: Final = 1.0


class OldGroups:
    """The old groups of one process."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._kept: dict[int, list[Any]] = {}
        self._closed = threading.Event()
        self._freed = threading.Condition()
        self._number = 0

    def keep(self, things: list[Any], needed: Callable[[], bool]) -> None:
        """Keep groups while they are `needed`, and a while longer; then free them, the last first. The caller must keep
        no other reference."""
        self._number += 1
        self._kept[self._number] = things
        name, number = "perdure-old-groups", self._number
        threading.Thread(target=self._free_later, args=(number, needed), name=name, daemon=True).start()

    def clear(self) -> None:
        """Free all of them now."""
        self._closed.set()
        self._kept.clear()

    def wait(self, seconds: float) -> bool:
        """Wait until all are freed; False after `seconds`."""
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
                things.pop()  # one at a time, so that other threads can run
            self._freed.notify_all()
