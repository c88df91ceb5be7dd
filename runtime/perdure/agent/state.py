"""What the agent knows, what it can learn and what it can do: values only.

Facts only: what follows from them is `perdure.agent.stage`, what is done about it `perdure.agent.machine`; the shell
makes the events and carries the actions out. Every time is time.monotonic() of this pod: the contract's seconds are
counted from first sight, never by another machine's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.agent.memory import OutOfMemory
from perdure.wire import (
    DEFAULT_GRACE_SECONDS,
    LINGER_SECONDS,
    Assignment,
    Beginning,
    CommitRef,
    Completion,
    ExitKind,
    Failure,
    Fallback,
    HandoverRecord,
    Leave,
    Outcome,
    Rescue,
    Train,
    Unsaved,
)
from perdure.wire.channel import Exiting, Imaged, Report, TookOver, Voting


@dataclass(frozen=True)
class Settings:
    """The agent's own durations, in seconds, and the number of processes it starts for a run."""

    processes: int = 1
    completion: Completion = Completion.LOG
    """What an exit status of 0 is worth where no Session has told how it ended."""
    grace: float = DEFAULT_GRACE_SECONDS
    """terminationGracePeriodSeconds: what SIGTERM leaves until the kubelet kills everything."""
    grace_margin: float = 5.0
    """Kept of the grace to kill what hangs and to write the outcome."""
    warm_up: float = 60.0
    """How long a member is not ready, and starts nothing, while a start would soon be quicker."""
    linger: float = LINGER_SECONDS
    no_step: float = 2.0
    """What a trainer that has finished no step gets to leave: what it has opened, or is just opening, it closes."""
    siblings: float = 5.0
    """What the other processes of this pod get, once one has failed, to tell how they end."""
    image: float = 5.0
    """What a trainer of a lost run gets to leave an image; a large one may take longer once it is being written."""
    teardown: float = 30.0
    """What a process gets to exit after it has told its ending (tearing down a process group may hang), and whatever
    has got SIGKILL to be gone: what waits inside the kernel may never be."""
    rescue: float = 60.0
    """What the commit of an image may take in a pod that goes, where its grace does not end before."""
    after_completion: float = 3600.0
    """What a script gets to go on after it has told that its work is completed: an evaluation, an export."""


@dataclass(frozen=True)
class Process:
    """One process of the trainer, as its reports tell it."""

    rank: int
    """As it was started."""
    attached: bool = False
    """It has a Session."""
    pid: int = 0
    """The process that has the Session: a shell may stand between it and the agent."""
    live: bool = False
    """It looks for offers of a hand-over."""
    live_why: str = ""
    """Why it does not."""
    opened_at: float | None = None
    """When it told that its Session has opened the run."""
    step: int | None = None
    """The newest step it has finished in this run."""
    epoch: int | None = None
    """Epochs finished by then; None where it does not tell."""
    commit: CommitRef | None = None
    goal: bool = False
    """Whether that commit is the last of the training."""
    highest: int = 0
    """The highest run it has seen opened in the log."""
    unsaved: Unsaved | None = None
    """Checkpoints of it that have failed since the newest commit."""
    result: Mapping[str, Any] | None = None
    """What its script has given as its result."""
    ending: Exiting | None = None
    told_at: float = 0.0
    """When it told its ending."""
    outcome: Outcome | None = None
    """Set once the process has ended."""
    ended_at: float = 0.0
    took_over: TookOver | None = None
    """The newest run it went over to without ending."""
    images: bool = False
    """It can be asked for an image."""
    image_due: float | None = None
    """Until when the image that it writes may take."""
    rescue: Rescue | None = None
    """What it has begun with, if that was in no commit."""
    imaged: Imaged | None = None
    """It has left an image, or will leave none."""
    makes_way: bool = False
    """It has only its interpreter to take down, and nothing that another trainer could miss."""

    @property
    def rank_now(self) -> int:
        """In the run that it trains."""
        return self.took_over.rank if self.took_over else self.rank

    @property
    def owes_image(self) -> bool:
        """Whether it may still leave an image of where it stands."""
        return self.images and self.imaged is None and self.ending is None

    @property
    def completed(self) -> bool:
        """Whether it has told that the work is done and in the log."""
        return self.ending is not None and self.ending.outcome is ExitKind.COMPLETED


@dataclass(frozen=True)
class Limit:
    """At `at` what still runs is killed; a process that had told no ending then counts as `outcome`."""

    at: float
    outcome: ExitKind
    reason: str


@dataclass(frozen=True)
class Requested:
    """The trainer has to end, as the newest word about it has it."""

    at: float
    """When it was first told so."""
    deadline: float
    """Only ever comes nearer."""


@dataclass(frozen=True)
class Trainer:
    """The processes of one run in this pod: what is known of them, and what was done to them."""

    run: int
    """The newest that it is known to train: a hand-over changes it."""
    processes: tuple[Process, ...]
    completion: Completion = Completion.LOG
    request: Requested | None = None
    imaging: Limit | None = None
    """Its run is lost: it is killed when it has left an image, or then."""
    killed: Limit | None = None
    """What it was killed for."""
    clearing: float | None = None
    """Since when what is left of it is being killed."""
    started_for: int | None = None
    """The run that it was started for, once it trains another."""
    offered: tuple[Train | Leave, ...] = ()
    """Runs that were to take over its own, the newest last; each as it was shown to it."""
    saves: tuple[int, int] = (0, 0)
    """The run in which it was asked to save and train on, and how often."""
    joins: bool = False
    """It was started as a newcomer: for its run to take over one that lives."""
    voted: int = 0
    """The newest run for which a vote of it may have been counted."""
    voting: Voting | None = None
    """A vote of it may stand in the log already, and the word is not known here."""
    rescuing: float | None = None
    """Until when what it has left may take to be committed: this pod goes, and no next trainer will find it."""
    rescued: Rescued | None = None
    """What has become of that."""

    @property
    def origin(self) -> int:
        """The run that it was started for: its files are there."""
        return self.run if self.started_for is None else self.started_for

    @property
    def live(self) -> bool:
        """Whether each of its processes looks for offers of a hand-over."""
        return all(process.live for process in self.processes)

    @property
    def bound(self) -> bool:
        """It votes, or has gone over to a run: it counts as having opened and stepped, whatever was told of that."""
        return self.voting is not None or any(process.took_over for process in self.processes)

    @property
    def alive(self) -> tuple[Process, ...]:
        """Its processes that have not ended."""
        return tuple(process for process in self.processes if process.outcome is None)

    @property
    def left_image(self) -> bool:
        """Whether it has left an image."""
        return any(one.imaged and one.imaged.step is not None for one in self.processes)

    @property
    def image_of(self) -> int:
        """The run of which it has left an image, its own or the one that it was to take over; 0: none."""
        left = (one.imaged for one in self.processes if one.imaged and one.imaged.step is not None)
        return max((imaged.of or self.run for imaged in left), default=0)

    @property
    def completed(self) -> bool:
        """Whether its work is done and in the log; whatever still runs is the script's own affair."""
        return any(process.completed for process in self.processes)

    @property
    def attached(self) -> bool:
        """Whether it has a Session."""
        return any(process.attached for process in self.processes)

    @property
    def opened_at(self) -> float | None:
        """When its Session told first that it has opened the run."""
        return min((process.opened_at for process in self.processes if process.opened_at is not None), default=None)

    @property
    def stepped(self) -> bool:
        """Whether a step of this run is finished."""
        return any(process.step is not None for process in self.processes)


@dataclass(frozen=True)
class Shutdown:
    """The agent leaves for good, whatever comes: SIGTERM, or an assignment of a version it does not know.

    No assignment is followed any more: a terminating pod gets none, and of an unknown version nothing is understood.
    """

    deadline: float
    margin: float
    """What is left after it to kill what hangs and to write the outcome."""
    cause: str
    error: Failure | None = None


@dataclass(frozen=True)
class State:
    """Everything the agent decides by."""

    settings: Settings
    current: Train | Leave | None = None
    """The newest assignment with a run; None before the first and while a standby."""
    first_seen: float = 0.0
    """When the run number of `current` was first seen."""
    warming_until: float | None = None
    """Until then a start waits for the launcher; None where there is nothing to wait for any more."""
    ready: bool = False
    """An assignment was read."""
    trainer: Trainer | None = None
    """Of the newest run started in this pod; it stays here when it has ended."""
    hold_until: float | None = None
    idle: bool = False
    """No trainer is here, and the seat was held: the pod is not Ready, which is all that a living pod can tell."""
    shutdown: Shutdown | None = None
    handovers: tuple[HandoverRecord, ...] = ()
    """Attempts whose word is known here, one for each run."""
    begun: tuple[Beginning, ...] = ()
    """Where runs have begun that trainers here have opened, one for each, and how far the one before it had come."""
    fell_back: Fallback | None = None
    """The newest of them that could not use the newest commit."""
    stood: tuple[int, int] = (0, 0)
    """The newest run that a trainer before this one has trained, and the step which it had done."""
    keeps_images: bool = False
    """A trainer before this one may have left an image."""
    image_of: int = 0
    """The run of which it has, as far as it is in no commit yet; 0: none."""
    finished: bool = False

    @property
    def newest(self) -> int:
        """The highest run number seen in an assignment."""
        return self.current.run if self.current else 0


# What the agent learns.


@dataclass(frozen=True)
class AssignmentRead:
    """The assignment file holds this."""

    assignment: Assignment


@dataclass(frozen=True)
class Unreadable:
    """The assignment file holds something else."""

    message: str
    unsupported: bool = False
    """It is an assignment, of a major version this agent does not know."""


@dataclass(frozen=True)
class Reported:
    """A process of the trainer wrote a report."""

    rank: int
    report: Report


@dataclass(frozen=True)
class ProcessEnded:
    """A process has ended."""

    rank: int
    status: int
    """Exit status, or minus the signal's number."""
    tail: str = ""
    """The end of what it wrote to stderr."""
    left_behind: bool = False
    """It was the last one, and what it has started is not gone yet: Cleared follows."""
    out_of_memory: OutOfMemory | None = None
    """The kernel has killed for want of memory since the trainer was started."""


@dataclass(frozen=True)
class MakesWay:
    """A process has only its interpreter to take down."""

    rank: int
    why_not: str = ""
    """What keeps another trainer from beginning before it has ended."""


@dataclass(frozen=True)
class Cleared:
    """Nothing that the trainer had started is left."""


@dataclass(frozen=True)
class SigtermReceived:
    """The pod is being deleted, and its assignment is not updated any more: SIGTERM, or its preStop hook."""

    at: float | None = None
    """When its grace began, if that was before now."""


@dataclass(frozen=True)
class Warmed:
    """The launcher has nothing to prepare any more."""


@dataclass(frozen=True)
class Rescued:
    """The image that the last trainer has left is in a commit, or there will be none."""

    commit: CommitRef | None = None
    why: str = ""
    """Why there is none."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    AssignmentRead | Unreadable | Reported | MakesWay | ProcessEnded | Cleared | Rescued | SigtermReceived | Warmed
    | Tick
)  # fmt: skip

# What the agent does.


@dataclass(frozen=True)
class Say:
    """One line for whoever reads the pod's log."""

    line: str


@dataclass(frozen=True)
class MarkWarm:
    """Let the startup probe succeed."""


@dataclass(frozen=True)
class MarkIdle:
    """Let the readiness probe fail: the trainer has ended, and its seat is held."""


@dataclass(frozen=True)
class Start:
    """Start the processes of this run; what is left of an older one's ends beside them."""

    train: Train


@dataclass(frozen=True)
class Ask:
    """Write the exit request; send SIGTERM too unless only the deadline has changed."""

    run: int
    """The one that the trainer was started for: its files are there."""
    cause: str
    deadline: float
    sessions: Mapping[int, int] = field(default_factory=dict)
    """By rank the process that has the Session, where there is one."""
    again: bool = False
    image: bool = False
    """Not for a save: the run is lost."""


@dataclass(frozen=True)
class Offer:
    """Show the trainer started for `run` an assignment that it may go over to."""

    run: int
    assignment: Train | Leave


@dataclass(frozen=True)
class AskForSave:
    """Ask the trainer started for `run` to save and train on; each word is another request."""

    run: int
    word: str


@dataclass(frozen=True)
class Acknowledge:
    """Let the trainer started for `run` know that its vote for run `next` is known."""

    run: int
    next: int


@dataclass(frozen=True)
class ForgetImages:
    """What trainers before this one have left is of no more use."""


@dataclass(frozen=True)
class CommitImage:
    """Have committed what the trainer of this run has left, if the log allows it; Rescued follows."""

    run: int
    aborted: int = 0
    """The run that was to take it over, and now never opens: the commit says so."""
    heir: int = 0
    """The run that may have begun right there, and is lost too: then the commit is its last word."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL for everything the trainer has started."""


@dataclass(frozen=True)
class Finish:
    """Write the outcome and exit."""

    outcome: Outcome


Action = (
    Say | MarkWarm | MarkIdle | Start | Ask | AskForSave | Offer | Acknowledge | ForgetImages | CommitImage | Kill
    | Finish
)  # fmt: skip

HOLDS_SEAT: Final = frozenset({ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.PEER_LOST})
"""Ends that are no fault of this member: the operator may have a next run for its seat."""

ENDS_SIBLINGS: Final = frozenset(
    {ExitKind.FAILED, ExitKind.ROOT_TAKEN_OVER, ExitKind.FENCED, ExitKind.PEER_LOST, ExitKind.HANDOVER_FAILED}
)
"""Ends of one process after which the others of its pod cannot go on."""
