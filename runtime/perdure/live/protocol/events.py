"""What happens to a party in a hand-over, and what it is to do. Values alone; the package's docstring is their table.

Called by the machines and by the shell that drives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord


class Alarm(StrEnum):
    """A moment that passes by itself; when each of them is, perdure.live.protocol.timing says."""

    ACK = "ack"  # the agent has not acknowledged Voting
    SILENCE = "silence"  # the stop has lasted too long without everybody's vote
    LIMIT = "limit"  # the attempt is not to be decided any more by words
    QUIET = "quiet"  # whoever still waits for the log settles it; who has lost the decider does so before
    LAST_CALL = "last-call"  # aborted, and no newer assignment: an exit save still fits
    DEADLINE = "deadline"  # this process is about to be killed


class Choice(IntEnum):
    """What an old rank wants after a stop that led to nothing; the highest of all counts."""

    TRAIN = 0
    EXIT = 1
    RESTART = 2


@dataclass(frozen=True)
class AllWarm:
    """Every party is warm, and all are alike."""


@dataclass(frozen=True)
class Connected:
    """The bridge and the newer run's groups stand."""


@dataclass(frozen=True)
class StoreSeen:
    """Whether the object store answers."""

    answers: bool


@dataclass(frozen=True)
class NotLive:
    """This script cannot change its membership in place."""

    why: str


@dataclass(frozen=True)
class Unable:
    """This party cannot take part any more."""

    why: str


@dataclass(frozen=True)
class Stopped:
    """All old ranks stand at the same hand-out, for this attempt."""


@dataclass(frozen=True)
class ExitAgreed:
    """All old ranks are to save and exit."""


@dataclass(frozen=True)
class GoalReached:
    """The training is done."""


@dataclass(frozen=True)
class Moved:
    """This party has sent, or received, all state."""


@dataclass(frozen=True)
class FirstBatch:
    """A newcomer's script asks for its first batch."""


@dataclass(frozen=True)
class Acknowledged:
    """The agent knows that this trainer votes."""


@dataclass(frozen=True)
class VoteReduced:
    """The vote is over."""

    whole: bool
    """Whether everybody's is in it."""
    why: str = ""
    """... and if not, why."""


@dataclass(frozen=True)
class LogAnswered:
    """What the log says now; None: the store did not answer."""

    verdict: Verdict | None


@dataclass(frozen=True)
class Heard:
    """Another party said so on the bridge."""

    word: HandoverWord
    why: str = ""


@dataclass(frozen=True)
class LinkClosed:
    """The link to the decider is closed."""


@dataclass(frozen=True)
class Silent:
    """Nothing was heard of a party for seconds. It proves nothing: an attempt is ended for it, or the log asked."""

    party: int
    lost: bool = False
    """For so long that nobody waits any more for what all do together."""


@dataclass(frozen=True)
class SeenBy:
    """A party knows the word."""

    party: int


@dataclass(frozen=True)
class Gone:
    """A party's link to the decider is closed."""

    party: int


@dataclass(frozen=True)
class RoundDone:
    """What all old ranks do together; None: the round failed."""

    choice: Choice | None


@dataclass(frozen=True)
class Saved:
    """The older run has ended in the log."""


@dataclass(frozen=True)
class Sigterm:
    """This pod is to end."""


@dataclass(frozen=True)
class Newer:
    """There is an assignment above this attempt's run; its own block, if it has one, takes over `takes_over`."""

    takes_over: int | None


@dataclass(frozen=True)
class Passed:
    """An alarm has gone off."""

    alarm: Alarm


Event = (
    AllWarm | Connected | StoreSeen | NotLive | Unable | Stopped | ExitAgreed | GoalReached | Moved | FirstBatch
    | Acknowledged | VoteReduced | LogAnswered | Heard | LinkClosed | Silent | SeenBy | Gone | RoundDone | Saved
    | Sigterm | Newer | Passed
)  # fmt: skip


@dataclass(frozen=True)
class SetWarm:
    """Set this party's warm key."""


@dataclass(frozen=True)
class Connect:
    """Connect all parties, and the newer run's groups, in the background."""


@dataclass(frozen=True)
class Move:
    """Send or receive state."""


@dataclass(frozen=True)
class TellVoting:
    """Tell the agent that this trainer is about to vote."""


@dataclass(frozen=True)
class Vote:
    """Contribute to the vote."""


@dataclass(frozen=True)
class AppendOpened:
    """Append the Opened that takes the living run over."""

    again: bool = False
    """The store did not answer: after a pause, with the same bytes."""


@dataclass(frozen=True)
class AppendRefused:
    """Append Refused, unless the attempt is decided already."""


@dataclass(frozen=True)
class ReadLog:
    """Ask the log what has become of the attempt."""

    again: bool = False
    """It told nothing: after a pause."""


@dataclass(frozen=True)
class Say:
    """Say it to every party."""

    word: HandoverWord
    why: str = ""


@dataclass(frozen=True)
class SetSeen:
    """Set this party's seen key: it needs the decider's store no more."""


@dataclass(frozen=True)
class Round:
    """Agree with the other old ranks on how the stop ends."""

    choice: Choice


@dataclass(frozen=True)
class Install:
    """Become a rank of the newer run."""


@dataclass(frozen=True)
class TellTookOver:
    """Tell the agent that this is a trainer of the newer run now."""


@dataclass(frozen=True)
class TellEnded:
    """Tell the agent that the attempt did not take place."""

    word: HandoverWord
    why: str


@dataclass(frozen=True)
class TrainOn:
    """Go on as the older run, whose later entries say that run `aborted` never opens."""

    aborted: int


@dataclass(frozen=True)
class AskExit:
    """Vote for an exit of the older run."""


@dataclass(frozen=True)
class SaveAndExit:
    """Save and end the older run; with `aborted` its last entries say so."""

    aborted: int = 0


@dataclass(frozen=True)
class JoinInPlace:
    """Begin the newer run as its own, after the older one's end."""


@dataclass(frozen=True)
class CloseStore:
    """Give the attempt's store up."""


@dataclass(frozen=True)
class Exit:
    """End this process."""

    kind: ExitKind
    why: str = ""


Action = (
    SetWarm | Connect | Move | TellVoting | Vote | AppendOpened | AppendRefused | ReadLog | Say | SetSeen | Round
    | Install | TellTookOver | TellEnded | TrainOn | AskExit | SaveAndExit | JoinInPlace | CloseStore | Exit
)  # fmt: skip
