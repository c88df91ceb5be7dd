"""Which members hold up the others, by what their reports say of their own time. Pure.

A step takes as long on all ranks, because those that are done wait for the slow one. So what a member works itself is
compared, and not how fast it is. Called by `serving.reports.progress`; `health` names those that have been slow for
long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure_operator.api.status import Assigned, RunPlan, Straggler
from perdure_operator.decide.draft import clock

PATIENCE: Final = timedelta(seconds=60)
"""A member is named once it has been slow for so long."""
KEPT: Final = timedelta(minutes=10)
"""So long a named one stays so without a report of its own: members report seldom where there are many, and a new
leader has heard none."""
MOST: Final = 16
"""So many are told, those that cost most."""
LEAST: Final = 3
"""Of two members nobody knows which of them is as it should be."""

_TIMES: Final = 1.5
"""A member is slow if its own time is so many times that of the others, and"""
_EXCESS: Final = 0.25
"""if the rest of a step would be shorter by this part of it: of steps that nearly all wait, nobody is slow."""
_TIMES_NAMED: Final = 1.25
"""One that is named stays so above this."""


@dataclass(frozen=True)
class OwnShare:
    """The parts of the time of a member's steps, from 0 to 1."""

    own: float
    """In which it works itself, or waits for its data."""
    data: float | None = None
    """In which it waits for its data, if it tells."""


def stragglers(
    plan: RunPlan, shares: Mapping[str, OwnShare], before: tuple[Straggler, ...], now: datetime
) -> tuple[Straggler, ...]:
    """The members that are slow now, by rank. `shares` are from fresh reports about this run, by uid; `before` are its
    stragglers so far."""
    heard = [(member, shares[member.uid]) for member in plan.members if member.uid in shares]
    if len(heard) < LEAST:
        heard = []  # of so few nobody knows
    known, others = {one.name: one for one in before}, _others([share.own for _, share in heard])
    judged = [_judged(member, share, others(share.own), known.get(member.name), now) for member, share in heard]
    silent = (
        {one.name for one in plan.members} - {one.name for one, _ in heard} if len(plan.members) >= LEAST else set()
    )
    kept = [one for one in before if one.named and one.name in silent and now - (one.heard_time or one.since) < KEPT]
    found = [*filter(None, judged), *kept]
    costliest = sorted(found, key=lambda one: one.others_percent - one.own_percent)[:MOST]
    return tuple(sorted(costliest, key=lambda one: one.rank))


def stragglers_in_words(named: tuple[Straggler, ...]) -> str:
    """What is known of them, as a sentence."""
    return " and ".join(_in_words(one) for one in named)


def _in_words(one: Straggler) -> str:
    where = f"{one.name} on {one.node}" if one.node else one.name
    data = f", {one.data_percent} % waiting for its data" if one.data_percent else ""
    return (
        f"rank {one.rank} ({where}) holds up the others since {clock(one.since)}: it works {one.own_percent} % of each "
        f"step itself{data}, and they work {one.others_percent} %"
    )


def _others(shares: list[float]) -> Callable[[float], float]:
    """The median of all but one of these; of two in the middle the larger, so that at most half are slow."""
    ordered, middle = sorted(shares), (len(shares) - 1) // 2
    return lambda own: ordered[middle + 1] if own <= ordered[middle] else ordered[middle]


def _judged(
    member: Assigned, share: OwnShare, others: float, before: Straggler | None, now: datetime
) -> Straggler | None:
    own = share.own
    slow = own >= _TIMES * others and own - others >= _EXCESS
    named = before is not None and before.named
    if not slow and not (named and own > _TIMES_NAMED * others):
        return None
    since = before.since if before else now
    return Straggler(
        name=member.name,
        node=member.node,
        rank=member.rank,
        own_percent=round(100 * own),
        others_percent=round(100 * others),
        data_percent=None if share.data is None else round(100 * share.data),
        since=since,
        named=named or now - since >= PATIENCE,
        heard_time=now,
    )
