"""Keeps Python's garbage collector out of a time for which others wait.

A full collection goes through all objects of the process: 0.1 to 0.3 s in one that has imported torch, more in one that
holds a dataset. The collector begins one whenever enough objects were made, so it would sooner or later fall into the
stop of a hand-over.
"""

from __future__ import annotations

import gc


class CollectorPause:
    """A time without collections. The script may have switched the collector off itself; then it stays off."""

    def __init__(self) -> None:
        self._paused = False

    def begin(self) -> None:
        """No collection begins from here on."""
        if gc.isenabled():
            self._paused = True
            gc.disable()

    def end(self) -> None:
        """Collections may begin again. May be called more than once, or without `begin`."""
        if self._paused:
            self._paused = False
            gc.enable()
