"""`session.steps(n)`: step numbers for scripts that get their samples elsewhere.

It gives a loop over anything places where it may stop, and a position to resume from. Made by the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.errors import UserError
from perdure.loop.data.source import BatchHooks, Source

NAME: Final = "steps"
"""The name of its cursor, beside those of the loaders."""
KIND: Final = "steps"


class Steps(Source[int]):
    """The numbers 0 to n-1, once an epoch."""

    def __init__(self, session: BatchHooks, count: int) -> None:
        if count < 1:
            raise UserError(f"session.steps({count}): give the number of steps of an epoch, 1 or more")
        super().__init__(NAME, session, end=count, unit=1)

    def __str__(self) -> str:
        return f"session.steps({self.end})"

    def cursor(self, epoch: int) -> dict[str, Any]:
        """What a commit records."""
        return {"kind": KIND, "epoch": epoch, "consumed": self.consumed}

    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position that a cursor stands for."""
        consumed = int(cursor.get("consumed", 0)) if cursor.get("epoch") == epoch else 0
        if consumed > self.end:
            raise UserError(
                f"{self}: the checkpoint in the middle of epoch {epoch} is at step {consumed} of it: give as many as "
                f"before until the epoch is over, or use another root"
            )
        return consumed

    def _draw(self, epoch: int) -> Iterator[tuple[int, int]]:  # noqa: ARG002
        for number in range(self.consumed, self.end):
            yield number + 1, number
