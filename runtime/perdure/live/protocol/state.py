"""Where one party stands in an attempt. A frozen value; the machines make the next one of it.

Called by the machines; the shell reads `phase` alone, and `named`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from perdure.live.protocol.events import Action, Newer
from perdure.live.protocol.parties import Attempt, Part, Party
from perdure.wire import AttemptRecord, ExitKind, HandoverWord


class Phase(StrEnum):
    """What a party is doing."""

    PREPARING = "preparing"  # old ranks train; a newcomer waits in its `restore`
    MOVING = "moving"  # state is being sent or received; old ranks stand still from here on
    RUNNING_ON = "running-on"  # a newcomer has its state, its script has not asked for a batch yet
    TELLING = "telling"  # the agent is being told of the vote
    VOTED = "voted"  # from here on only a word or the log tells what happened
    DECIDING = "deciding"  # the decider's PUT has begun: only the log tells
    ASKING = "asking"  # asks the log
    ROUND = "round"  # nothing came of it: the old ranks agree how to go on
    ABORTED = "aborted"  # the older run trains on
    SAVING = "saving"  # the older run's exit save
    TOOK_OVER = "took-over"  # a rank of the newer run
    JOINING = "joining"  # a newcomer begins the newer run in place
    LINGERING = "lingering"  # a decider that may go once nobody needs its store
    ENDED = "ended"


UNVOTED = frozenset({Phase.PREPARING, Phase.MOVING, Phase.RUNNING_ON, Phase.TELLING})
"""Whoever is in one of these may still say abort."""
STANDING = frozenset({Phase.MOVING, Phase.TELLING, Phase.VOTED, Phase.DECIDING, Phase.ASKING, Phase.ROUND})
"""In these an old rank trains nothing."""


@dataclass(frozen=True)
class State:
    """One party in one attempt."""

    attempt: Attempt
    me: Party
    phase: Phase = Phase.PREPARING
    connected: bool = False
    silent: bool = False
    """Decider: the object store has not answered lately."""
    asked: bool = False
    """This pod is to end, or time is over: the older run has to end if the attempt comes to nothing."""
    newer: Newer | None = None
    """The newest assignment above this attempt's run."""
    late: bool = False
    """The limit has passed."""
    settles: bool = False
    """The decider is gone for this party, or its time is up: whoever has voted settles."""
    deaf: bool = False
    """The decider is gone or silent for this party."""
    voted: bool = False
    """Its vote may be counted."""
    word: HandoverWord | None = None
    """What became of the attempt, once this party has read it or has made it so."""
    told: bool = False
    """The agent knows that the attempt did not take place."""
    needed: frozenset[int] = frozenset()
    """Decider: parties that may still need its store."""
    missed: frozenset[int] = frozenset()
    """Decider: parties that were gone, or taken for that, before they knew the word."""
    leaves_as: ExitKind = ExitKind.HANDED_OVER
    """How it ends when it has lingered."""

    @property
    def forced(self) -> bool:
        """Whether somebody has to leave, attempt or not."""
        return bool(self.attempt.leavers)

    @property
    def exits(self) -> bool:
        """Whether the older run has to end once it is known that the attempt came to nothing.

        A newer run that takes the older one over does not ask for its end; one that builds on this attempt then does.
        """
        return self.asked or (self.newer is not None and self.newer.takes_over != self.attempt.run)

    @property
    def decides(self) -> bool:
        """Whether this party is the decider."""
        return self.me.decides

    @property
    def leaves(self) -> bool:
        """Whether this party's pod leaves."""
        return self.me.part is Part.LEAVER

    @property
    def joins(self) -> bool:
        """Whether this party is a newcomer."""
        return self.me.part is Part.NEWCOMER


Step = tuple[State, tuple[Action, ...]]


def to(state: State, phase: Phase, *actions: Action, **changes: Any) -> Step:
    """The state in another phase, and what to do."""
    return replace(state, phase=phase, **changes), actions


def stay(state: State, *actions: Action, **changes: Any) -> Step:
    """The state in its phase, and what to do."""
    return replace(state, **changes) if changes else state, actions


def also(step: Step, after: Sequence[Action]) -> Step:
    """The step with more to do behind it."""
    return step[0], (*step[1], *after)


def waits_for(state: State, party: int) -> bool:
    """Whether an old rank gives up what it waits for because nothing is heard of that party.

    A newcomer's script may hold the interpreter's lock: that its vote is not awaited for long is enough.
    """
    return party < state.attempt.world if state.decides else party == state.attempt.decider


def known(state: State) -> AttemptRecord | None:
    """What an outcome of this process may say of the attempt: what it did and read. No silence is in it.

    None where the newer run begins in place: it is no hand-over any more.
    """
    if state.word is HandoverWord.RESTART:
        return None
    return AttemptRecord(state.attempt.next, state.voted, state.word)


def named(state: State) -> int:
    """The run that an old rank names in the agreement's vector; 0 while it is not ready."""
    ready = state.phase is Phase.PREPARING and state.connected and not state.silent and not state.late
    return state.attempt.next if ready else 0
