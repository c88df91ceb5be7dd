"""How a training went over from one run to the next, according to the log and the watch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from e2e.harness import evidence, observed
from e2e.harness.evidence import Entry, Gap
from e2e.harness.watching import Seen


class Way(StrEnum):
    """The rungs of the ladder, best first."""

    LIVE = "live"  # the membership changed in the living processes
    IN_PLACE = "in-place"  # a pod of the older run trains in the newer one, in another process
    RECREATE = "recreate"  # no pod of the older run is in the newer one


def way_of(history: Sequence[Seen], entries: Sequence[Entry], gap: Gap) -> Way:
    """How the run after the pause began."""
    if evidence.took_over(entries, gap.after_run):
        return Way.LIVE
    before, after = (observed.ranked_in(history, run) for run in (gap.before_run, gap.after_run))
    return Way.IN_PLACE if before.keys() & after.keys() else Way.RECREATE
