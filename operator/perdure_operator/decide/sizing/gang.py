"""When members that hold nodes while the others of their job find none are let go, and for how long.

Two jobs that hold half of the nodes each would wait for ever. One has to let go, and only one: the youngest goes first,
so that the oldest gets its room; the pauses that follow differ by uid, so that two do not meet again in step. A run
that trains is never asked. Pure. Called by `decide.gangs`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.decide.backoff import doubled_seconds

FIRST_PAUSE_SECONDS: Final = 60
MOST_YIELDS: Final = 5
"""So many younger ones an older one waits for at most: who can never start must not keep all of them from it."""


@dataclass(frozen=True)
class Gang:
    """Members of a run that has not begun."""

    needed: int
    """With fewer it cannot begin."""
    placed: int
    """How many have a node."""
    roomless: int
    """How many are told that there is no room for them, by the scheduler or by a quota."""

    @property
    def in_vain(self) -> bool:
        """Whether some hold nodes that do nothing until others find some."""
        return 0 < self.placed < self.needed and self.roomless > 0


def lets_go(since: datetime, timeout: int, younger: int) -> datetime:
    """When a gang that holds nodes in vain since then lets go, beside so many younger ones that do or just did."""
    return since + timedelta(seconds=timeout * (1 + min(younger, MOST_YIELDS)))


def pause(uid: str, attempts: int, timeout: int) -> timedelta:
    """Before its members are made again, after so many attempts: doubled up to the timeout, and up to twice by uid."""
    seconds = doubled_seconds(attempts, FIRST_PAUSE_SECONDS, timeout)
    drawn = hashlib.sha256(f"{uid} {attempts}".encode()).digest()[0] / 256
    return timedelta(seconds=round(seconds * (1 + drawn)))


def longest_pause(timeout: int) -> int:
    """Of any uid, in seconds."""
    return 2 * timeout
