"""Commits that retention keeps: each pin is a name, and belongs to the newest commit that was saved under it.

Every commit's entry has the places of all pins, so one entry is enough to know them, however old their commits are.
When a pin moves on, its former commit is listed as released until retention has handled it, because it may be below
retired commits, where retention no longer looks. Pure values; perdure.log.writer keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.errors import UserError
from perdure.log.entry import Committed

MOST: Final = 16
"""How many pins fit into an entry of the log, beside everything else."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


@dataclass(frozen=True)
class Pins:
    """Where the pins are after an entry of the log."""

    names: Mapping[str, int] = field(default_factory=dict)
    """The seq of each pin's commit."""
    released: tuple[int, ...] = ()
    """Former commits of pins."""

    @property
    def held(self) -> set[int]:
        """The commits that have a pin."""
        return set(self.names.values())

    def of(self, seq: int) -> tuple[str, ...]:
        """The pins that a commit has."""
        return tuple(sorted(name for name, pinned in self.names.items() if pinned == seq))

    def put_into(self, event: Committed) -> Committed:
        """The commit with everything that its entry says about pins. UserError if there are too many."""
        others = {name: seq for name, seq in self.names.items() if name != event.pin}
        if event.pin is not None and len(others) >= MOST:
            raise UserError(
                f"save(pin={event.pin!r}): there are {MOST} pins already, {', '.join(sorted(others))}, and no more can "
                f"be kept: use one of these names again"
            )
        left = self.names.get(event.pin) if event.pin is not None else None
        released = (*self.released, *([left] if left is not None and left not in others.values() else []))
        return replace(event, pins=others, released=released[-MOST:])

    def without(self, seqs: Collection[int]) -> Pins:
        """The pins after retention has handled these commits."""
        return replace(self, released=tuple(seq for seq in self.released if seq not in seqs))


def pins_after(seq: int, committed: Committed) -> Pins:
    """The pins after that commit, entry `seq`."""
    own = {} if committed.pin is None else {committed.pin: seq}
    return Pins({**committed.pins, **own}, committed.released)


def check_pin(name: object) -> str:
    """UserError for what cannot be a pin's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(
            f"save(pin={name!r}): give a name of at most 32 letters, digits, dots, dashes and underlines that begins "
            f"with a letter or a digit"
        )
    return name
