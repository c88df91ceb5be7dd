"""What one rank knows of saves in the background: a frozen value that the machine transforms, and questions about it.

Half of it is agreed: it changes only by what all ranks read alike, so it is equal on all of them at the same call. The
other half is this rank's own. Called by the machine; the shell asks only the functions below.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from perdure.checkpoint.background.events import Action, Save, Wish
from perdure.checkpoint.background.vector import ArenaUse, Words

_SEQ_BITS: Final = 40
_NAME_CHARACTERS: Final = 16


class PartState(StrEnum):
    """The state of this rank's part of the save under way."""

    NONE = "none"
    COPYING = "copying"
    UPLOADING = "uploading"
    HELD = "held"  # sealed, and its upload was stopped for a whole save
    DURABLE = "durable"
    FAILED = "failed"


class CommitState(StrEnum):
    """What rank 0 does for the save under way."""

    NONE = "none"
    PREPARING = "preparing"  # reads the index objects, writes the manifest
    SENT = "sent"  # from here on only the log knows whether it is committed
    ANSWERED = "answered"


class Mode(StrEnum):
    """Where the main threads of all ranks are."""

    TRAINS = "trains"
    STANDS = "stands"  # at a boundary, for a save of this very step
    SETTLES = "settles"  # in the stop of a hand-over, for the answer to a commit
    STOPPED = "stopped"  # in the stop of a hand-over: nothing is begun here
    LEAVES = "leaves"
    LEFT = "left"


@dataclass(frozen=True)
class LoggedCommit:
    """A commit in the log."""

    number: int
    final: bool
    seq: int

    def pack(self) -> int:
        """The answer as one integer."""
        return ((self.number << 1 | self.final) << _SEQ_BITS) | self.seq

    @classmethod
    def unpack(cls, packed: int) -> LoggedCommit:
        """The answer from that integer."""
        upper, seq = divmod(packed, 1 << _SEQ_BITS)
        return cls(upper >> 1, bool(upper & 1), seq)


@dataclass(frozen=True)
class SaveOutcome:
    """How a save ended, before the ranks know."""

    save: Save
    seq: int = 0
    """Its entry in the log; 0 if it failed."""
    why: str = ""
    """Why it failed, as far as this rank knows."""
    changed: bool = False
    """Whether all that this rank knows is that the state has changed while it was copied."""


@dataclass(frozen=True)
class Firm:
    """A save of this very step, for which the ranks stand."""

    wish: Wish
    step: int
    reason: str
    same: bool
    """Whether the save under way is of this very position."""


@dataclass(frozen=True)
class Carried:
    """What a newer run has to know of the older one's saves."""

    owed: str = ""
    """Why a save is due at once; empty if none is."""
    dropped: bool = False
    """Whether a save was dropped for a hand-over, and no commit has followed."""


@dataclass(frozen=True)
class SavesState:
    """One rank's saves."""

    writer: str
    """The mark of rank 0's entries in the log."""
    rank: int

    number: int = 0
    """Agreed: of the last save that was begun."""
    save: Save | None = None
    """Agreed: the save under way."""
    everywhere: bool = False
    """Agreed: it is durable on all ranks, so rank 0 commits it."""
    outcome: SaveOutcome | None = None
    """Agreed: how the last save ended, until the next place where the ranks report it."""
    busiest: ArenaUse = ArenaUse.IN_USE
    """Agreed: what all ranks said of their arenas, as last read. Nothing is known before the first vector."""
    owed: str = ""
    """Agreed: the reason of a save that failed, was dropped or could not be made, and is to be made again."""
    dropped: bool = False
    """Agreed: a save was dropped for a hand-over, and no commit has followed."""
    mode: Mode = Mode.TRAINS
    firm: Firm | None = None
    """Agreed: why the ranks stand."""
    found: bool = False
    """Agreed: a save was under way as the ranks began to leave."""
    waits: bool = False
    """Agreed: while the ranks leave, there was time to wait for the save under way and to make a whole one."""
    finishes: bool = False
    """Agreed: while the ranks leave, the save under way is finished, and no other is made."""
    final: bool = False
    """Agreed: while the ranks leave, the save under way is the last one, if its append is not sent yet."""
    ended: bool = False
    """Agreed: the run's final commit is in the log."""
    kept: bool = False
    """Agreed: what the ranks leave with is in the log, in a commit that does not say that it is final."""
    tried: bool = False
    """Agreed: while the ranks leave, a whole save has failed."""

    part: PartState = PartState.NONE
    durable: int = 0
    failed: int = 0
    why: str = ""
    """Why this rank's part failed."""
    changed: bool = False
    """Whether it failed because the state has changed while it was copied."""
    arena: str = ""
    """The name of the save in this rank's arena, while the arena may still be written or read."""
    copying: bool = False
    room: bool = False
    """Whether there is an arena."""
    broken: bool = False
    """Whether a reader of the arena could not be ended."""
    uploader: int = 0
    """The process that takes orders; 0 if none lives."""
    uploaders: int = 0
    """How many processes were begun."""
    dying: int = 0
    """The process that is being ended; 0 if none is."""
    orders: int = 0
    """How many processes were ordered to upload the save under way."""

    commit: CommitState = CommitState.NONE
    sent_final: bool = False
    """Whether the append says that the commit is final."""
    answer: int = 0
    """The last commit that rank 0 made, packed."""
    fenced: str = ""
    """Why rank 0 may no longer write."""


Step = tuple[SavesState, tuple[Action, ...]]


def stay(state: SavesState, *actions: Action, **changes: Any) -> Step:
    """The state with these changes, and the actions."""
    return replace(state, **changes) if changes else state, actions


def then(step: Step, after: Step) -> Step:
    """Two steps as one; `after` begins from the first one's state."""
    return after[0], (*step[1], *after[1])


def begin(writer: str, rank: int, carried: Carried | None = None) -> SavesState:
    """The first state of a rank. `writer` is the mark of rank 0's entries, equal on all ranks."""
    before = carried or Carried()
    return SavesState(writer, rank, owed=before.owed, dropped=before.dropped)


def renewed(state: SavesState, writer: str, rank: int) -> SavesState:
    """The first state of the same process in a newer run, after HandsOver: it keeps its arena and its uploader."""
    first = begin(writer, rank, carried(state))
    return replace(
        first,
        arena=state.arena,
        copying=state.copying,
        room=state.room,
        broken=state.broken,
        uploader=state.uploader,
        uploaders=state.uploaders,
        dying=state.dying,
    )


def name_of(writer: str, number: int) -> str:
    """The name of a save, which no other save has."""
    return hashlib.sha256(f"{writer}/{number}".encode()).hexdigest()[:_NAME_CHARACTERS]


def words(state: SavesState) -> Words:
    """What this rank says now."""
    if state.fenced:
        arena = ArenaUse.FENCED
    elif state.broken or not state.room:
        arena = ArenaUse.NONE
    else:
        # Also after it has released the arena an uploader has work to do, and takes no other order.
        busy = state.arena or state.dying or state.part in (PartState.UPLOADING, PartState.HELD)
        arena = ArenaUse.IN_USE if busy else ArenaUse.FREE
    return Words(state.durable, state.failed, arena, state.answer)


def stands(state: SavesState) -> bool:
    """Whether the main threads of all ranks have to wait here and gather words."""
    return state.mode in (Mode.STANDS, Mode.SETTLES)


def under_way(state: SavesState) -> Save | None:
    """The save under way, the same on all ranks."""
    return state.save


def may_hand_over(state: SavesState) -> bool:
    """Whether the save under way may be dropped for a hand-over: never two in a row."""
    return not (state.save and state.dropped)


def carried(state: SavesState) -> Carried:
    """What the newer run has to know if the run is handed over now. The save under way is dropped then."""
    if state.save is None:
        return Carried(state.owed, state.dropped)
    return Carried(state.owed or state.save.reason, dropped=True)


def unanswered(state: SavesState) -> bool:
    """On rank 0: whether an append was sent that has no answer."""
    return state.commit is CommitState.SENT and not state.fenced


def quiet(state: SavesState) -> bool:
    """Whether no uploader of this rank lives."""
    return not (state.uploader or state.dying)
