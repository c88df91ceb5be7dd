"""Of whom nothing was heard for how long, by one process's clock, and only as long as this process was awake itself.

Whoever stood still hears nothing either, and would take all others for silent when it goes on. Pure; called by the
shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.live.protocol.events import Silent
from perdure.live.protocol.timing import LOST_SECONDS, SILENCE_SECONDS

LOOK_SECONDS: Final = 1.0
"""One look is made in this time; what takes longer is this process's own affair."""


class Hearing:
    """What one party hears of others."""

    def __init__(self, parties: Iterable[int], now: float) -> None:
        self._looked = now
        self._awake = 0.0
        self._heard = dict.fromkeys(parties, 0.0)

    def heard(self, party: int) -> None:
        """It is there."""
        self._heard[party] = self._awake

    def silent(self, now: float) -> Iterator[Silent]:
        """Of whom nothing is heard; at least one look in LOOK_SECONDS is to be made."""
        self._awake += min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        for party, heard in self._heard.items():
            if self._awake - heard >= SILENCE_SECONDS:
                yield Silent(party, lost=self._awake - heard >= LOST_SECONDS)
