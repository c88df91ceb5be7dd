"""One party's state in an attempt: a frozen value that the machines transform.

Called by the machines. The shell reads only `phase` and `named`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from perdure.live.protocol.events import Action, Newer
from perdure.live.protocol.parties import Attempt, Party, PartyRole
from perdure.live.protocol.timing import MISSING_SECONDS, QUIET_SECONDS
from perdure.wire import AttemptRecord, ExitKind, HandoverWord


class PartyPhase(StrEnum):
    """What a party is doing."""

    PREPARING = "preparing"  # old ranks train; a newcomer waits in its `restore`
    MOVING = "moving"  # state is being sent or received; old ranks have stopped from here on
    RUNNING_ON = "running-on"  # a newcomer has its state; its script has not asked for a batch yet
    TELLING = "telling"  # waits for the agent's acknowledgement of the vote
    VOTED = "voted"  # from here on only a word or the log gives the outcome
    DECIDING = "deciding"  # the decider's PUT has begun: only the log gives the outcome
    ASKING = "asking"  # reads the log
    ROUND = "round"  # the attempt failed: the old ranks agree how to continue
    ABORTED = "aborted"  # the older run keeps training
    SAVING = "saving"  # the older run's exit save
    TOOK_OVER = "took-over"  # a rank of the newer run
    JOINING = "joining"  # a newcomer begins the newer run in place
    LINGERING = "lingering"  # a decider that exits once no party needs its store
    ENDED = "ended"


UNVOTED = frozenset({PartyPhase.PREPARING, PartyPhase.MOVING, PartyPhase.RUNNING_ON, PartyPhase.TELLING})
"""Phases in which a party may still say abort."""
STANDING = frozenset(
    {PartyPhase.MOVING, PartyPhase.TELLING, PartyPhase.VOTED, PartyPhase.DECIDING, PartyPhase.ASKING, PartyPhase.ROUND}
)
"""Phases in which an old rank does not train."""


@dataclass(frozen=True)
class PartyState:
    """One party in one attempt."""

    attempt: Attempt
    me: Party
    phase: PartyPhase = PartyPhase.PREPARING
    connected: bool = False
    """Old: every party is connected, so none waits in the stop for others to connect."""
    silent: bool = False
    """Decider: the object store has not answered lately."""
    exit_requested: bool = False
    """This pod is asked to end, or time is over: if the attempt fails, the older run has to end."""
    newer: Newer | None = None
    """The newest assignment above this attempt's run."""
    late: bool = False
    """The limit has passed, or an obstacle ends the older run."""
    settles: bool = False
    """This party cannot reach the decider, or time is up: if it has voted, it appends Refused."""
    deaf: bool = False
    """This party's decider is gone or silent."""
    voted: bool = False
    """Its vote may be counted."""
    word: HandoverWord | None = None
    """The attempt's outcome, once this party has read or decided it."""
    reported: bool = False
    """The agent knows that the attempt failed."""
    needed: frozenset[int] = frozenset()
    """Decider: parties that may still need its store."""
    missed: frozenset[int] = frozenset()
    """Decider: parties that were gone, or seemed so, before they knew the outcome."""
    leaves_as: ExitKind = ExitKind.HANDED_OVER
    """How it exits after lingering."""

    @property
    def forced(self) -> bool:
        """Whether members have to leave even if the attempt fails."""
        return bool(self.attempt.leavers)

    @property
    def exits(self) -> bool:
        """Whether the older run has to end if the attempt fails.

        A newer assignment that takes over the older run live needs no end of it; any other does.
        """
        return self.exit_requested or (self.newer is not None and self.newer.takes_over != self.attempt.run)

    @property
    def decides(self) -> bool:
        """Whether this party is the decider."""
        return self.me.decides

    @property
    def leaves(self) -> bool:
        """Whether this party's pod leaves."""
        return self.me.part is PartyRole.LEAVER

    @property
    def joins(self) -> bool:
        """Whether this party is a newcomer."""
        return self.me.part is PartyRole.NEWCOMER


Step = tuple[PartyState, tuple[Action, ...]]


def to(state: PartyState, phase: PartyPhase, *actions: Action, **changes: Any) -> Step:
    """The state in another phase, and the actions."""
    return replace(state, phase=phase, **changes), actions


def stay(state: PartyState, *actions: Action, **changes: Any) -> Step:
    """The state in the same phase, and the actions."""
    return replace(state, **changes) if changes else state, actions


def also(step: Step, after: Sequence[Action]) -> Step:
    """The step with more actions after its own."""
    return step[0], (*step[1], *after)


def waits_for(state: PartyState, party: int) -> bool:
    """Whether silence of that party makes an old rank give up waiting.

    Newcomers are excluded: their scripts may hold the interpreter's lock, and the wait for their votes is short anyway.
    """
    return party < state.attempt.world if state.decides else party == state.attempt.decider


def lingers(state: PartyState, seconds: float, missing: Callable[[], Collection[int]]) -> bool:
    """Whether a decider that has lingered for so many seconds stays on. No other party does.

    `missing` asks the decider's store which parties never arrived. Only the decider asks: from another process that
    may take long.
    """
    if state.phase is not PartyPhase.LINGERING:
        return False
    return seconds <= (QUIET_SECONDS if state.needed - set(missing()) else MISSING_SECONDS)


def known(state: PartyState) -> AttemptRecord | None:
    """The attempt for this process's outcome: whether it voted, and the word that it read. Silence is not part of it.

    None if the newer run begins in place, which is not a hand-over.
    """
    if state.word is HandoverWord.RESTART:
        return None
    return AttemptRecord(state.attempt.next, state.voted, state.word)


def named(state: PartyState) -> int:
    """The run that an old rank offers in the agreement's vector; 0 while it is not ready."""
    ready = state.phase is PartyPhase.PREPARING and state.connected and not state.silent and not state.late
    return state.attempt.next if ready else 0
