"""A signal that comes and goes: the more often it was withdrawn in a row, the longer the next one has to last.

Questions, and what status keeps for their answers. A signal with a deadline, a fault and a deletion are told at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from perdure_operator.api.status import Disruption, Intent, Withdrawals
from perdure_operator.decide.draft import Draft, later

FLAPPING: Final = 3
"""So many withdrawals in a row are no chance any more."""
ROW_SECONDS: Final = 600
"""After so long without one the row is over."""
LONGEST_QUIET_SECONDS: Final = 60


def withdrawn(draft: Draft, intent: Intent) -> Draft:
    """With one withdrawal more, if it was a node that was to be left."""
    if intent.disruption is not Disruption.NODE_LEAVING:
        return draft
    return draft.update(withdrawals=Withdrawals(count=_count(draft) + 1, last_time=draft.now))


def quiet_for(draft: Draft) -> timedelta:
    """How long a signal has to last because of those that were withdrawn before it; zero where they were few."""
    count = _count(draft)
    seconds = min(2**count, LONGEST_QUIET_SECONDS) if count >= FLAPPING else 0
    return timedelta(seconds=seconds)


def settled_at(draft: Draft) -> datetime | None:
    """Until when one that is withdrawn again and again makes no new member beside another that stays."""
    row, quiet = draft.status.withdrawals, quiet_for(draft)
    return row.last_time + quiet if row and quiet else None


def told(draft: Draft) -> str:
    """In words, for the condition; "" where nothing flaps."""
    count = _count(draft)
    if count < FLAPPING:
        return ""
    return f"signals like it were withdrawn {count} times in a row: it has to last {quiet_for(draft).seconds} s"


def _count(draft: Draft) -> int:
    row = draft.status.withdrawals
    return row.count if row and draft.now < later(row.last_time, ROW_SECONDS) else 0
