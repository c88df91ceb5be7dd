"""Lightning's own collectives before the first batch, which a process that joins a living run skips.

The others have made theirs long ago. If the newer run begins in place instead, all its ranks start again, and make them
while this process waits in its restore: then it makes those that it has skipped. A collective that the script asks for
is made as usual: without other ranks it fails, and the ranks that made it do not change live.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from perdure.session.driven import joins, own_collectives
from perdure.session.session import Session

T = TypeVar("T")

BARRIERS: Final = ("lightning.",)
BROADCASTS: Final = ("lightning.pytorch.callbacks.model_checkpoint", "lightning.pytorch.trainer.trainer")
"""Modules that broadcast a folder, which a resume restores."""
REDUCTIONS: Final = ("lightning.pytorch.utilities.data",)
"""Modules that reduce a loader's length, to see whether some rank has no batch."""


class EarlyCollectives:
    """The collectives that Lightning makes in one process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left_out: list[Callable[[], Any]] = []

    def made(self, own: tuple[str, ...], collective: Callable[[], T], alone: T) -> T:
        """The result of a strategy's collective. `own`: the names of the modules that ask for Lightning's own ones; a
        process without other ranks skips these, and gets `alone`."""
        caller = str(sys._getframe(2).f_globals.get("__name__"))
        if not caller.startswith(own):
            return collective()
        if joins(self._session):
            self._left_out.append(collective)
            return alone
        with own_collectives(self._session):
            return collective()

    def make_up(self) -> None:
        """The newer run begins in place: make the skipped collectives, as its other ranks do."""
        left_out, self._left_out = self._left_out, []
        for collective in left_out:
            collective()

    def forget(self) -> None:
        """The newer run has begun live: no rank waits for the skipped collectives."""
        self._left_out = []
