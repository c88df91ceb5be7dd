"""What the log says about an attempt to hand over a living run. Pure: one reading for all callers.

`Opened` that takes the run over, and `Refused`, are the only answers, and the first of them is final. Called by
perdure.log.takeover with the entries that it has read; the hand-over's machines use the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from perdure.log.entry import Entry, Opened


class Verdict(StrEnum):
    """The state of the attempt, as far as the log has been read."""

    OPEN = "open"  # nothing is decided yet
    GO = "go"  # the newer run has taken over
    REFUSED = "refused"  # it never will, and never opens: the older run trains on
    ENDED = "ended"  # the older run has ended by itself: the newer one opens in place
    FENCED = "fenced"  # another run, or another job, owns the log


def verdict(entries: Iterable[Entry], *, uid: str, run: int, next_run: int) -> Verdict:
    """What these entries, oldest first, say about run `next_run` taking over `run` of the job `uid`."""
    for entry in entries:
        if entry.uid != uid or entry.run > run:
            taken = isinstance(entry.event, Opened) and entry.event.takes_over == run
            return Verdict.GO if taken and (entry.uid, entry.run) == (uid, next_run) else Verdict.FENCED
        if entry.run == run and entry.refused >= next_run:
            return Verdict.REFUSED
        if entry.run == run and entry.ends_run:
            return Verdict.ENDED
    return Verdict.OPEN
