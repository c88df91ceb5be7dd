"""Whom a run that hangs waits for, by what its members report of their standstills. Pure.

In a collective, all ranks wait but the one that does not come. So a member that does not say that it waits, while all
others do, is the suspect. More than one is named only if they share a node: otherwise they may wait in ways that their
processes do not recognize, such as for a GPU. Called by `serving.reports.progress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure.wire.report import Standing
from perdure_operator.api.status import Assigned, RunPlan, Suspect, SuspectDoes

PATIENCE: Final = timedelta(seconds=60)
"""A member that says nothing of a standstill counts as one that does not wait this long after the first one that does
wait: members look every few seconds, report every 30 s, and may reach their limits one after the other."""

_DOES: Final = {Standing.RUNS: SuspectDoes.COMPUTES, Standing.STANDS: SuspectDoes.STANDS}


@dataclass(frozen=True)
class Said:
    """What a member's newest report in its run says of a standstill."""

    hangs_at: datetime | None = None
    """When it was first heard that it hangs; None: it does not say so."""
    place: Standing | None = None


def suspects(plan: RunPlan, said: Mapping[str, Said], now: datetime) -> tuple[Suspect, ...]:
    """The members that all others wait for; `said` is by the uids of the members that were heard lately
    in this run."""
    words = [(member, said.get(member.uid)) for member in plan.members]
    since = min((one.hangs_at for _, one in words if one and one.hangs_at and _waits(one)), default=None)
    others = [(member, one) for member, one in words if not _waits(one)]
    if since is None or not _of_one_place([member for member, _ in others]):
        return ()
    if now - since < PATIENCE and any(one is None or one.hangs_at is None or one.place is None for _, one in others):
        return ()
    return tuple(
        Suspect(name=member.name, node=member.node, rank=member.rank, does=_does(one)) for member, one in others
    )


def suspects_in_words(found: tuple[Suspect, ...]) -> str:
    """What is known of them, as the rest of a sentence."""
    named = " and ".join(_in_words(one) for one in found)
    return f"all other members say that they wait for other ranks, and {named}"


def _in_words(suspect: Suspect) -> str:
    where = f"{suspect.name} on {suspect.node}" if suspect.node else suspect.name
    match suspect.does:
        case SuspectDoes.COMPUTES:
            does = "computes"
        case SuspectDoes.STANDS:
            does = "stands still elsewhere"
        case SuspectDoes.SAYS_NOTHING:
            does = "does not"
        case SuspectDoes.NOT_HEARD:
            does = "is not heard: it, or its reports alone, may have stopped"
    return f"rank {suspect.rank} ({where}) {does}"


def _waits(one: Said | None) -> bool:
    return one is not None and one.hangs_at is not None and one.place is Standing.WAITS_FOR_RANKS


def _of_one_place(members: list[Assigned]) -> bool:
    nodes = {member.node for member in members}
    return len(members) == 1 or (len(nodes) == 1 and nodes != {""})


def _does(one: Said | None) -> SuspectDoes:
    if one is None:
        return SuspectDoes.NOT_HEARD
    if one.hangs_at is None or one.place is None:
        return SuspectDoes.SAYS_NOTHING
    return _DOES[one.place]
