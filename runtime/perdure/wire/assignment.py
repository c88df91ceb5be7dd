"""What the operator tells a member: be these ranks of this run, leave, or wait as a standby."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from perdure.wire.codec import Natural, Positive, from_json
from perdure.wire.handover import Address, Handover, read_handover, write_handover
from perdure.wire.reading import VERSION, CommitRef, ContractError, document, read_commit

Offer = Annotated[Handover | None, read_handover]
MinimumCommit = Annotated[CommitRef | None, read_commit]

ASSIGNMENT_BYTES: Final = 1024
"""An assignment is at most this long: it is an annotation and a file in every pod."""


@dataclass(frozen=True)
class Train:
    """Be ranks `rank` .. `rank + processes - 1` of `world` processes in run `run`."""

    run: Positive
    rank: Natural
    world: Positive
    master: Address
    """ip:port of rank 0's store."""
    cause: str = ""
    """Why the run before this one ends: shown to the trainer that is asked to save."""
    seconds: Natural = 0
    """How long the trainer of an older run may take to save, from first sight of this assignment."""
    wait: Natural = 0
    """How long rank 0 waits for the older run to end before it opens the log."""
    lost: tuple[int, ...] = ()
    """Runs that can no longer save together: their trainers are killed at once."""
    floor: MinimumCommit = None
    """The newest commit known from outcomes: a run that finds an older log refuses to begin. None: any log will do."""
    handover: Offer = None
    """How to take over the living run; None if all its trainers have to end first."""
    save: Natural = 0
    """How often the run was asked to save and train on: alone of all this grows within a run."""


@dataclass(frozen=True)
class Leave:
    """Save, commit, exit: run `run` will train without this member."""

    run: Positive
    cause: str = ""
    seconds: Natural = 0
    lost: tuple[int, ...] = ()
    handover: Offer = None
    """How to leave the living run without ending it for the others."""
    suspect: bool = False
    """What this member has computed is suspect: nothing of a lost run is kept, in memory or in the store."""


@dataclass(frozen=True)
class Standby:
    """Warm up and wait."""


Assignment = Train | Leave | Standby


def write_assignment(assignment: Assignment) -> str:
    """The annotation's text. Raises ContractError if it would be longer than ASSIGNMENT_BYTES."""
    body: dict[str, Any] = {"v": VERSION}
    match assignment:
        case Standby():
            body["standby"] = True
        case Leave(run, cause, seconds, lost, handover, suspect):
            body |= {"run": run, "lost": list(lost), "leave": True, "cause": cause, "seconds": seconds}
            body |= _block(handover) | ({"suspect": True} if suspect else {})
        case Train(run, rank, world, master, cause, seconds, wait, lost, floor, handover, save):
            body |= {"run": run, "lost": list(lost), "rank": rank, "world": world, "master": master}
            body |= {"cause": cause, "seconds": seconds, "wait": wait}
            if floor:
                body["floor"] = asdict(floor)
            body |= _block(handover) | ({"save": save} if save else {})
    text = json.dumps(body, separators=(",", ":"))
    if len(text.encode()) > ASSIGNMENT_BYTES:
        raise ContractError(
            f"assignment of run {body.get('run')} is longer than {ASSIGNMENT_BYTES} bytes: {text[:80]}…"
        )
    return text


def _block(handover: Handover | None) -> dict[str, Any]:
    return {"handover": write_handover(handover)} if handover else {}


def read_assignment(text: str) -> Assignment:
    """The assignment in an annotation's text.

    Raises UnsupportedVersion for another major version, ContractError for anything else that is not an assignment.
    """
    doc = document("assignment", text)
    if doc.get("standby") is True:
        return Standby()
    if doc.get("leave") is True:
        return from_json(Leave, doc)
    train = from_json(Train, doc)
    if train.rank >= train.world:
        raise ContractError(f"assignment: rank {train.rank} is not below world {train.world}")
    return train
