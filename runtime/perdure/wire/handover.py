"""The block of an assignment that offers a live hand-over: membership changes between two batches, and training goes
on.

An agent that does not know the block, or cannot read it, treats the assignment as one without it: a newer run, hence an
exit request for the older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final

from perdure.wire.codec import Natural, Positive, from_json
from perdure.wire.reading import LARGEST, ContractError, integer, string

RANKS_AT_MOST: Final = 2**20
"""Ranks of one world in a block. The limit counts what a range stands for, because a range itself is short."""

WHY_CHARACTERS: Final = 120
"""The length of a hand-over's reason in an outcome, which has to hold several."""


NO_WORD: Final = "none"
"""The word of an attempt whose outcome is not known, in an outcome."""


class HandoverWord(StrEnum):
    """How an attempt ended."""

    GO = "go"  # the membership has changed
    ABORT = "abort"  # nothing has changed: the older run trains on
    RESTART = "restart"  # the older run saves and exits, the newer one begins in place


@lru_cache(maxsize=16)
def write_ranks(ranks: tuple[int, ...]) -> str:
    """Ascending ranks as ranges: `0-3,7`.

    Each member of a run is offered the same ones.
    """
    ranges: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def read_ranks(value: Any) -> tuple[int, ...]:
    """The ranks in such ranges, ascending. Raises ContractError for anything else."""
    if not isinstance(value, str):
        raise ContractError(f"ranks are not ranges as in '0-3,7': {str(value)[:80]!r}")
    ranks: list[int] = []
    for part in value.split(",") if value else []:
        first, dash, last = part.partition("-")
        low, high = _rank(first), _rank(last if dash else first)
        if high < low or (ranks and low <= ranks[-1]) or high - low + len(ranks) >= RANKS_AT_MOST:
            raise ContractError(f"ranks are not ascending ranges as in '0-3,7': {value[:80]!r}")
        ranks.extend(range(low, high + 1))
    return tuple(ranks)


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))):
        raise ContractError(f"not a rank: {text[:80]!r}")
    return int(text)


def read_address(value: Any) -> str:
    """An ip:port; raises ContractError for anything else."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not (host and port.isascii() and port.isdigit()):
        raise ContractError(f"{str(value)[:80]!r} is not ip:port")
    return str(value)


Ranks = Annotated[tuple[int, ...], read_ranks]
Address = Annotated[str, read_address]


@dataclass(frozen=True)
class Handover:
    """The newer run takes over the living `run` without ending it."""

    run: Positive
    """The living run."""
    world: Positive
    """The living run's number of ranks."""
    joins: Ranks
    """Ranks of the newer run that newcomers hold, ascending."""
    leavers: Ranks
    """Ranks of the living run that leave, ascending."""
    master: Address
    """ip:port of the attempt's own store, at the decider."""
    limit: Natural
    """Seconds from first sight until which the attempt may be decided; at most the assignment's `seconds`."""
    token: str
    """The first key and the prefix in that store: connections of other attempts, and stray ones, get no further."""


@dataclass(frozen=True)
class HandoverRecord:
    """One attempt that a pod took part in."""

    run: int
    """The newer run."""
    word: HandoverWord
    why: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part; `pause` is from the last step of the older run to the first batch of the newer."""


@dataclass(frozen=True)
class AttemptRecord:
    """What a pod's trainer did and read in its newest attempt, without conclusions from what it did not get."""

    run: int
    """The newer run."""
    voted: bool = False
    """Whether its vote may be counted. Where it is not, the newer run has not taken over, and never will."""
    word: HandoverWord | None = None
    """GO: it knows that `Opened` is in the log. ABORT: it knows that it never will be. None: it knows neither."""


def write_handover(block: Handover) -> dict[str, Any]:
    """The block as a JSON object."""
    return vars(block) | {"joins": write_ranks(block.joins), "leavers": write_ranks(block.leavers)}


def read_handover(value: Any) -> Handover | None:
    """The block in a JSON object; None for anything else, since an attempt is only ever an offer."""
    try:
        block = from_json(Handover, value) if isinstance(value, dict) else None
    except ContractError:
        return None
    return block if block and all(rank < block.world for rank in block.leavers) else None


def write_record(record: HandoverRecord) -> dict[str, Any]:
    """The record as a JSON object."""
    parts = {name: round(float(seconds), 3) for name, seconds in record.parts.items()}
    return {"run": record.run, "word": record.word.value, "why": record.why[:WHY_CHARACTERS], "parts": parts}


def read_record(value: Any) -> HandoverRecord | None:
    """The record in a JSON object; None for anything else: it is only shown."""
    if not isinstance(value, dict):
        return None
    try:
        word = HandoverWord(string(value, "word"))
        run, why = integer(value, "run", 1), string(value, "why", "")[:WHY_CHARACTERS]
    except (ContractError, ValueError):
        return None
    parts = value.get("parts")
    known = parts if isinstance(parts, dict) else {}
    seconds = {name: float(s) for name, s in known.items() if type(s) in (int, float) and abs(s) < 1e9}
    return HandoverRecord(run, word, why, seconds)


def write_attempt(attempt: AttemptRecord) -> dict[str, Any]:
    """The record as a JSON object."""
    return {"run": attempt.run, "voted": attempt.voted, "word": attempt.word.value if attempt.word else NO_WORD}


def read_attempt(value: Any) -> AttemptRecord | None:
    """The record in a JSON object; None for anything else."""
    if not isinstance(value, dict) or type(value.get("voted")) is not bool:
        return None
    try:
        run, word = integer(value, "run", 1), string(value, "word")
        known = None if word == NO_WORD else HandoverWord(word)
    except (ContractError, ValueError):
        return None
    return None if known is HandoverWord.RESTART else AttemptRecord(run, value["voted"], known)
