"""Whether only optimizers' steps were seen to change parameters and their state. Only then may a copy of them go on
while training does.

Pure. A save on probation is copied while training waits; it shows whether they were the same, byte by byte, when the
next optimizer was about to step. One change anywhere else ends it. Called by perdure.loop.deferral.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

PROBATIONS: Final = 2
"""Saves that have to show it."""


@dataclass(frozen=True)
class Proof:
    """What this process's saves have shown so far."""

    seen: int = 0
    """Saves on probation before whose next step nothing had changed."""
    refused: bool = False
    """Whether something has changed where no optimizer was about to step."""

    @property
    def holds(self) -> bool:
        """Whether a copy may go on while training does."""
        return not self.refused and self.seen >= PROBATIONS

    def before_step(self, *, same: bool) -> Proof:
        """An optimizer is about to step: `same` as at the save on probation?"""
        return replace(self, seen=self.seen + 1) if same else self.changed()

    def changed(self) -> Proof:
        """Something has changed where no optimizer was about to step."""
        return replace(self, refused=True)

    def again(self) -> Proof:
        """The script has registered more, or this process is a rank of another run: it has to be shown again."""
        return replace(self, seen=0)
