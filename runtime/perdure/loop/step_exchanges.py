"""Sees an optimizer that exchanges values with other ranks while it steps."""

from __future__ import annotations

from typing import Any

from perdure.group.world import collectives_so_far


class StepExchanges:
    """Counts torch's collectives during an optimizer's step.

    Steps lie within one another: torch calls an optimizer's hooks again where its step calls the step of its base
    class, and an optimizer may hold another one. The outermost step counts.
    """

    def __init__(self) -> None:
        self._outermost: Any = None
        self._before = 0
        """How many collectives there were before the outermost step."""

    def begin(self, optimizer: Any) -> None:
        """An optimizer begins a step."""
        if self._outermost is None:
            self._outermost, self._before = optimizer, collectives_so_far()

    def end(self, optimizer: Any) -> Any:
        """An optimizer has stepped. Returns the outermost optimizer if values were exchanged, None if not."""
        found = (self._outermost or optimizer) if collectives_so_far() != self._before else None
        if optimizer is self._outermost:
            self._outermost = None
        return found

    def reset(self) -> None:
        """No optimizer is stepping. A step that has raised an exception has no end."""
        self._outermost = None
