"""Reports which call each rank is in, once one of them has been in the same call for long.

Ranks that meet in one collective at different calls get an error there (perdure.group.peers). In different groups, as
when one is in its backward pass and another evaluates, each waits for a rank that never comes. So each rank's heartbeat
carries its place, and a rank that makes no progress reads all of them. Pure; used by perdure.group.heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

STILL_SECONDS: Final = 60.0
"""A rank that is at one place for this long, and for longer than its longest step, looks at the others."""
LOOK_SECONDS: Final = 10.0
"""How often it then looks again."""
SILENT_SECONDS: Final = 20.0
"""A rank without a new beat for this long is called silent."""
SILENT: Final = "sends no heartbeats that arrive"
UNBEGUN: Final = "has not begun"
ADVICE: Final = "if none of them works so long, make the same calls of the session, in the same order, on every rank"


@dataclass(frozen=True)
class Beat:
    """One heartbeat of a rank. Its place follows "rank 0"; it is empty before the run is open."""

    number: int
    seconds: int = 0
    """How long the rank has been there."""
    place: str = ""

    def encode(self) -> str:
        """The beat as text in the store."""
        return f"{self.number} {self.seconds} {self.place}"


def decode(text: str) -> Beat:
    """A beat from the store. Ranks of an earlier version write the number alone."""
    number, _, rest = text.partition(" ")
    seconds, _, place = rest.partition(" ")
    return Beat(int(number), int(seconds or 0), place)


class Standstill:
    """How long this rank has been at one place, and what it has logged about it. The caller passes the time."""

    def __init__(self) -> None:
        self._place = ""
        self._since = 0.0
        self._looks_at = 0.0
        """When it looks at the others, in seconds of this standstill."""
        self._heard: dict[int, tuple[Beat, float]] = {}
        self._said: tuple[str, ...] = ()

    def at(self, place: str, now: float) -> int:
        """The rank is at this place; returns for how many seconds it has been seen there."""
        if place != self._place:
            self._place, self._since, self._looks_at = place, now, STILL_SECONDS
            self._heard, self._said = {}, ()
        return int(now - self._since)

    def is_to_look(self, now: float, longest_step: float) -> bool:
        """Whether this rank now looks where the others are. Never before its run is open."""
        seconds = now - self._since
        if not self._place or seconds < max(self._looks_at, longest_step):
            return False
        self._looks_at = seconds + LOOK_SECONDS
        return True

    def line(self, beats: Mapping[int, Beat], now: float) -> str:
        """Where all ranks are; "" if all are at one place, or at the places that the last line said."""
        for rank, beat in beats.items():
            if rank not in self._heard or self._heard[rank][0] != beat:
                self._heard[rank] = beat, now
        silent = {rank for rank in beats if now - self._heard[rank][1] > SILENT_SECONDS}
        places = tuple(SILENT if rank in silent else beat.place or UNBEGUN for rank, beat in sorted(beats.items()))
        if len(set(places)) < 2 or places == self._said:
            return ""
        self._said = places
        return _described(beats, places)


def _described(beats: Mapping[int, Beat], places: Sequence[str]) -> str:
    at: dict[str, list[int]] = {}
    for rank, place in zip(sorted(beats), places, strict=True):
        at.setdefault(place, []).append(rank)
    parts = []
    for place, ranks in at.items():
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        seconds = "" if place == SILENT else f" (for {max(beats[rank].seconds for rank in ranks)} s)"
        parts.append(f"{who} {place}{seconds}")
    return f"the ranks are at different places: {'; '.join(parts)}" + ("" if SILENT in at else f": {ADVICE}")
