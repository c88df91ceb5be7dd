"""What a Tracker needs of a place that keeps a history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class HistorySink(Protocol):
    """A place that keeps values by step. It may raise any error: the Tracker tries again at the next commit."""

    def open(self, key: str) -> None:
        """Continues the history with this key, or begins it. Called again after `close`."""
        ...

    def last_step(self, name: str) -> int:
        """The newest step of which the history has a value of this name; -1 if there is none."""
        ...

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Adds values of one step: numbers, and texts as marks. Steps come in order."""
        ...

    def flush(self) -> None:
        """Returns when what was written would survive this process."""
        ...

    def close(self) -> None:
        """Flushes, and lets go of files and connections."""
        ...
