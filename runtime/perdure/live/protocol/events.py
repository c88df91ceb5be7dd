"""Events and actions of a party in a hand-over. Values only; the package's docstring lists them.

Called by the machines and by the shell that drives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord


class Alarm(StrEnum):
    """A timeout; perdure.live.protocol.timing defines the times."""

    ACK = "ack"  # the agent has not acknowledged Voting
    SILENCE = "silence"  # not all votes came within the stop's time limit
    LIMIT = "limit"  # from here on only the log decides the attempt
    QUIET = "quiet"  # voted parties that still wait append Refused; parties without the decider do so earlier
    LAST_CALL = "last-call"  # aborted, and no newer assignment: an exit save still fits
    DEADLINE = "deadline"  # this process is about to be killed


class Choice(IntEnum):
    """What an old rank wants after a failed stop. The highest choice of all ranks counts."""

    TRAIN = 0
    EXIT = 1
    RESTART = 2


@dataclass(frozen=True)
class AllWarm:
    """Every party is warm, and all hold the same modules and versions."""


@dataclass(frozen=True)
class Connected:
    """This party has connected the bridge and its groups of the newer run."""


@dataclass(frozen=True)
class AllConnected:
    """Every party has."""


@dataclass(frozen=True)
class StoreSeen:
    """Whether the object store answers."""

    answers: bool


@dataclass(frozen=True)
class NotLive:
    """This script cannot swap members live."""

    why: str


@dataclass(frozen=True)
class Unable:
    """This party can no longer take part."""

    why: str


@dataclass(frozen=True)
class Stopped:
    """All old ranks have stopped before the same batch, for this attempt."""


@dataclass(frozen=True)
class ExitAgreed:
    """All old ranks have agreed to save and exit."""


@dataclass(frozen=True)
class TrainingDone:
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
    """Whether all parties voted."""
    why: str = ""
    """Why not, otherwise."""


@dataclass(frozen=True)
class LogAnswered:
    """The log's verdict; None if the store did not answer."""

    verdict: Verdict | None


@dataclass(frozen=True)
class Heard:
    """Another party said this word on the bridge."""

    word: HandoverWord
    why: str = ""


@dataclass(frozen=True)
class LinkClosed:
    """The link to the decider is closed."""


@dataclass(frozen=True)
class Silent:
    """A party was silent for seconds. That proves nothing: it ends the attempt or makes others read the log."""

    party: int
    lost: bool = False
    """Silent for so long that collectives with it are given up."""


@dataclass(frozen=True)
class SeenBy:
    """A party knows the outcome."""

    party: int


@dataclass(frozen=True)
class PartyGone:
    """A party's link to the decider is closed."""

    party: int


@dataclass(frozen=True)
class RoundDone:
    """The common choice of all old ranks; None if the round failed."""

    choice: Choice | None


@dataclass(frozen=True)
class OlderRunEnded:
    """The older run has ended in the log."""


@dataclass(frozen=True)
class Sigterm:
    """This pod is asked to end."""


@dataclass(frozen=True)
class Newer:
    """There is an assignment above this attempt's run; `takes_over` is the run in its own block, if it has one."""

    takes_over: int | None


@dataclass(frozen=True)
class Passed:
    """An alarm has gone off."""

    alarm: Alarm


Event = (
    AllWarm | Connected | AllConnected | StoreSeen | NotLive | Unable | Stopped | ExitAgreed | TrainingDone | Moved
    | FirstBatch | Acknowledged | VoteReduced | LogAnswered | Heard | LinkClosed | Silent | SeenBy | PartyGone
    | RoundDone | OlderRunEnded | Sigterm | Newer | Passed
)  # fmt: skip


@dataclass(frozen=True)
class SetWarm:
    """Set this party's warm key."""


@dataclass(frozen=True)
class Connect:
    """Connect all parties, and the newer run's groups, in the background."""


@dataclass(frozen=True)
class SetConnected:
    """Set this party's connected key."""


@dataclass(frozen=True)
class MoveState:
    """Send or receive state."""


@dataclass(frozen=True)
class TellVoting:
    """Tell the agent that this trainer is about to vote."""


@dataclass(frozen=True)
class Vote:
    """Contribute to the vote."""


@dataclass(frozen=True)
class AppendOpened:
    """Append the Opened entry that takes over the living run."""

    again: bool = False
    """True: wait a moment, then append the same bytes again, because the store did not answer."""


@dataclass(frozen=True)
class AppendRefused:
    """Append Refused, unless the attempt is already decided."""


@dataclass(frozen=True)
class ReadLog:
    """Read the attempt's outcome from the log."""

    again: bool = False
    """True: wait a moment, then read again, because the log had no outcome."""


@dataclass(frozen=True)
class SayToAll:
    """Say a word to every party."""

    word: HandoverWord
    why: str = ""


@dataclass(frozen=True)
class SetSeen:
    """Set this party's seen key: it no longer needs the decider's store."""


@dataclass(frozen=True)
class BeginRound:
    """Agree with the other old ranks on how the stop ends."""

    choice: Choice


@dataclass(frozen=True)
class Install:
    """Become a rank of the newer run."""


@dataclass(frozen=True)
class TellTookOver:
    """Tell the agent that this process is now a trainer of the newer run."""


@dataclass(frozen=True)
class TellEnded:
    """Tell the agent that the attempt failed."""

    word: HandoverWord
    why: str


@dataclass(frozen=True)
class TrainOn:
    """Keep training as the older run, whose later entries say that run `aborted` never opens."""

    aborted: int


@dataclass(frozen=True)
class AskExit:
    """Vote for an exit of the older run."""


@dataclass(frozen=True)
class SaveAndExit:
    """Save and end the older run; its last entries say that run `aborted` never opens."""

    aborted: int = 0


@dataclass(frozen=True)
class JoinInPlace:
    """Begin the newer run in place, after the older one's end."""


@dataclass(frozen=True)
class CloseStore:
    """Close the attempt's store."""


@dataclass(frozen=True)
class ExitProcess:
    """End this process."""

    kind: ExitKind
    why: str = ""


Action = (
    SetWarm | Connect | SetConnected | MoveState | TellVoting | Vote | AppendOpened | AppendRefused | ReadLog | SayToAll
    | SetSeen | BeginRound | Install | TellTookOver | TellEnded | TrainOn | AskExit | SaveAndExit | JoinInPlace
    | CloseStore | ExitProcess
)  # fmt: skip
