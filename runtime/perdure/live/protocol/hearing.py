"""Detects silent parties by this process's clock, counting only the time that this process itself was awake.

A stalled process hears nothing, and would otherwise consider all others silent when it resumes. Pure; called by the
shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.live.protocol.events import Silent
from perdure.live.protocol.timing import LOST_SECONDS, SILENCE_SECONDS

LOOK_SECONDS: Final = 1.0
"""The longest interval between two looks that counts; more means that this process stalled."""


class Hearing:
    """Records heartbeats of other parties."""

    def __init__(self, parties: Iterable[int], now: float) -> None:
        self._looked = now
        self._awake = 0.0
        self._heard = dict.fromkeys(parties, 0.0)

    def heard(self, party: int) -> None:
        """Record a heartbeat."""
        self._heard[party] = self._awake

    def silent(self, now: float) -> Iterator[Silent]:
        """The silent parties. Call it at least once in LOOK_SECONDS."""
        self._awake += min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        for party, heard in self._heard.items():
            if self._awake - heard >= SILENCE_SECONDS:
                yield Silent(party, lost=self._awake - heard >= LOST_SECONDS)
