"""What the log says about an attempt to hand a living run over. Pure: one reading for everybody who asks.

`Opened` that takes the run over, and `Refused`, are the only answers there are, and the first of them counts for ever.
Called by perdure.log.takeover with what it has read, and by the hand-over's machines as a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from perdure.log.entry import Entry, Opened


class Verdict(StrEnum):
    """What has become of the attempt, as far as the log has been read."""

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
