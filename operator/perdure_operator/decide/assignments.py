"""The annotations that follow from a run's plan or from an intent.

They follow from status alone, so that an operator can write them again at any time.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from typing import Final

from perdure.wire import (
    Assignment,
    CommitRef,
    ContractError,
    Handover,
    Leave,
    Standby,
    Train,
    read_assignment,
    write_assignment,
)
from perdure_operator.api.status import Assigned, Disruption, Intent, RunPlan

_CAUSE_LENGTH: Final = 160
"""In bytes of JSON, so that every assignment keeps its size limit."""


def train(plan: RunPlan, member: Assigned, saves: int = 0) -> str:
    """The assignment of a member of the run, with the number of saves asked for, if there is room for it."""
    assignment = _train(plan, member)
    try:
        return write_assignment(replace(assignment, save=saves))
    except ContractError:
        return _fitting(assignment)


def _train(plan: RunPlan, member: Assigned) -> Train:
    return Train(
        run=plan.run,
        rank=member.rank,
        world=plan.world,
        master=plan.master,
        cause=_short(plan.cause),
        seconds=plan.seconds,
        wait=plan.wait,
        lost=plan.lost,
        floor=CommitRef(plan.floor.seq, plan.floor.step) if plan.floor else None,
        handover=_block(plan),
    )


def leave(run: int, intent: Intent) -> str:
    """The assignment of a member whose run has to end; `run` is the next run."""
    suspect = intent.disruption is Disruption.NODE_FAULT
    assignment = Leave(run=run, cause=_short(intent.cause), seconds=intent.seconds, lost=intent.lost, suspect=suspect)
    return _fitting(assignment)


def leave_with(plan: RunPlan) -> str:
    """The assignment of a member that leaves with the run of this plan."""
    cause = _short(plan.cause)
    return _fitting(Leave(run=plan.run, cause=cause, seconds=plan.seconds, lost=plan.lost, handover=_block(plan)))


def fits(plan: RunPlan) -> bool:
    """Whether the plan fits in full into every member's assignment: an offer needs all of them."""
    try:
        written = [read_assignment(train(plan, plan.members[-1])), read_assignment(leave_with(plan))]
    except ContractError:
        return False
    return all(not isinstance(said, Standby) and said.lost == plan.lost for said in written)


@lru_cache(maxsize=4096)
def run_named(text: str) -> int:
    """The run that an annotation names, 0 for a standby and for text that no operator wrote.

    A round asks several times for each member, and the next round again.
    """
    said = _read(text)
    return 0 if isinstance(said, Standby) else said.run


@lru_cache(maxsize=4096)
def run_given(text: str) -> int:
    """The run in which an annotation gives a rank, 0 if it gives none."""
    said = _read(text)
    return said.run if isinstance(said, Train) else 0


@lru_cache(maxsize=4096)
def run_joined(text: str) -> int:
    """The run that an annotation has its pod join live as a newcomer, 0 if there is none."""
    said = _read(text)
    return said.run if isinstance(said, Train) and said.handover and said.rank in said.handover.joins else 0


def _read(text: str) -> Assignment:
    try:
        return read_assignment(text)
    except (ContractError, RecursionError):
        return Standby()


def shutdown(run: int, lost: tuple[int, ...]) -> str:
    """The assignment of a pod that was given up, in case it still reads it."""
    return _fitting(Leave(run=max(run, 1), cause="written off", seconds=0, lost=lost))


def _fitting(assignment: Train | Leave) -> str:
    """The text within its size limit: it drops the oldest lost runs first, as members only wait longer for those."""
    lost = assignment.lost
    while lost:
        try:
            return write_assignment(replace(assignment, lost=lost))
        except ContractError:
            lost = lost[1:]
    return write_assignment(replace(assignment, lost=()))


def _block(plan: RunPlan) -> Handover | None:
    offer = plan.handover
    if offer is None:
        return None
    joins, leavers = tuple(offer.joins), tuple(offer.leavers)
    return Handover(offer.run, offer.world, joins, leavers, offer.master, offer.limit, _token(plan))


def _token(plan: RunPlan) -> str:
    """A token that distinguishes this attempt from all others: it keeps stale connections of earlier ones out.

    It is no secret: anyone who reads status can compute it, because a restarted operator has to write it again and
    has only status. A NetworkPolicy decides who may reach the ports.
    """
    words = [str(plan.run), *[member.uid for member in plan.members]]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def _short(cause: str) -> str:
    if _written_length(cause) <= _CAUSE_LENGTH:
        return cause
    kept = cause[: _CAUSE_LENGTH - 3]
    while _written_length(kept) > _CAUSE_LENGTH - 3:
        kept = kept[:-1]
    return kept + "..."


def _written_length(text: str) -> int:
    """How many bytes JSON writes between the quotes: six for `ü`."""
    return len(json.dumps(text)) - 2
