"""Commits that retention leaves alone: each pin is a name, and the newest commit that was saved under it has it.

Every commit's entry says where all pins are, so that one entry tells them, however old what they hold is. When a pin
moves on, the commit it has left is listed as released until retention has seen to it: it may lie below commits that
are retired, where nobody looks any more. Pure values; perdure.log.writer keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.errors import UserError
from perdure.log.entry import Committed

MOST: Final = 16
"""So many pins fit into an entry of the log, beside everything else."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


@dataclass(frozen=True)
class Pins:
    """Where the pins are after an entry of the log."""

    names: Mapping[str, int] = field(default_factory=dict)
    """The seq of the commit that each has."""
    released: tuple[int, ...] = ()
    """Commits that a pin has left."""

    @property
    def held(self) -> set[int]:
        """The commits that any pin has."""
        return set(self.names.values())

    def of(self, seq: int) -> tuple[str, ...]:
        """The pins that a commit has."""
        return tuple(sorted(name for name, pinned in self.names.items() if pinned == seq))

    def put_into(self, event: Committed) -> Committed:
        """The commit with all that its entry says of pins. UserError where there are too many."""
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
        """Once retention has seen to these."""
        return replace(self, released=tuple(seq for seq in self.released if seq not in seqs))


def pins_after(seq: int, committed: Committed) -> Pins:
    """Where the pins are after that commit, entry `seq`."""
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
