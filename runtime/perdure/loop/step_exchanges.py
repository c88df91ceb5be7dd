"""Sees ranks that exchange values while an optimizer steps, or between two optimizers."""

from __future__ import annotations

from typing import Any

from perdure.group.world import collectives_so_far


class StepExchanges:
    """Counts torch's collectives during an optimizer's step, and between two of them.

    Steps lie within one another: torch calls an optimizer's hooks again where its step calls the step of its base
    class, and an optimizer may hold another one. The outermost step counts.
    """

    def __init__(self) -> None:
        self._outermost: Any = None
        self._before = 0
        """How many collectives there were before the outermost step."""
        self._behind: int | None = None
        """How many there were behind the last one; None if no optimizer has stepped yet."""

    def begin(self, optimizer: Any) -> bool:
        """An optimizer begins a step. Returns whether values were exchanged since the optimizer before it."""
        if self._outermost is not None:
            return False
        self._outermost, self._before = optimizer, collectives_so_far()
        return self._behind not in (None, self._before)

    def end(self, optimizer: Any) -> Any:
        """An optimizer has stepped. Returns the outermost optimizer if values were exchanged, None if not."""
        found = (self._outermost or optimizer) if collectives_so_far() != self._before else None
        if optimizer is self._outermost:
            self._outermost, self._behind = None, collectives_so_far()
        return found

    def reset(self) -> None:
        """A step of the training begins. An optimizer's step that has raised an exception has no end."""
        self._outermost = self._behind = None
