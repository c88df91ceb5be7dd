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


def withdrawn(draft: Draft, intent: Intent, nodes: tuple[str, ...]) -> Draft:
    """With one withdrawal more, if these were nodes that were to be left."""
    if intent.disruption is not Disruption.NODE_LEAVING:
        return draft
    row = _row(draft)
    if row and row.nodes and not nodes:
        return draft  # what is said of pods alone says nothing of these nodes
    row = row if row and bool(row.nodes) == bool(nodes) else None
    nodes = tuple(sorted({*(row.nodes if row else ()), *nodes}))
    return draft.update(withdrawals=Withdrawals(count=(row.count if row else 0) + 1, last_time=draft.now, nodes=nodes))


def quiet_for(draft: Draft, nodes: tuple[str, ...]) -> timedelta:
    """How long a signal of these nodes has to last because of those withdrawn before it; zero where they were few."""
    count = _count(draft, nodes)
    seconds = min(2**count, LONGEST_QUIET_SECONDS) if count >= FLAPPING else 0
    return timedelta(seconds=seconds)


def restless(draft: Draft, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the nodes whose signals were withdrawn in this row."""
    row = _row(draft)
    return tuple(name for name in nodes if row and name in row.nodes)


def settled_at(draft: Draft, nodes: tuple[str, ...]) -> datetime | None:
    """Until when signals of these nodes, withdrawn again and again, make no new member beside another that stays."""
    row, quiet = draft.status.withdrawals, quiet_for(draft, nodes)
    return row.last_time + quiet if nodes and row and quiet else None


def describe_flapping(draft: Draft, nodes: tuple[str, ...]) -> str:
    """In words, for the condition; "" where nothing flaps."""
    count, seconds = _count(draft, nodes), quiet_for(draft, nodes).seconds
    if count < FLAPPING:
        return ""
    return f"signals like it were withdrawn {count} times in a row: it has to last {seconds} s"


def _count(draft: Draft, nodes: tuple[str, ...]) -> int:
    """Nobody who drains a node, or asks for a pod, waits because another node's sensor is loose."""
    row = _row(draft)
    alike = row and bool(nodes) == bool(row.nodes) and set(nodes) <= set(row.nodes)
    return row.count if row and alike else 0


def _row(draft: Draft) -> Withdrawals | None:
    """The row that a withdrawal now would make longer."""
    row = draft.status.withdrawals
    return row if row and draft.now < later(row.last_time, ROW_SECONDS) else None
