"""The agent's state, events and actions: values only.

`perdure.agent.stage` derives stages from the state, `perdure.agent.machine` decides, and the shell creates the events
and carries out the actions. Every time is time.monotonic() of this pod: seconds in assignments count from their first
sight, never by another machine's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.agent.memory import OutOfMemory
from perdure.wire import (
    AFTER_COMPLETION_SECONDS,
    DEFAULT_GRACE_SECONDS,
    LINGER_SECONDS,
    Assignment,
    Beginning,
    CommitRef,
    Completion,
    ExitKind,
    Failure,
    HandoverRecord,
    Leave,
    Outcome,
    Rescue,
    SkippedCommit,
    Train,
    Unsaved,
)
from perdure.wire.account import RunAccount
from perdure.wire.channel import Exiting, Figures, Hangs, Imaged, TookOver, TrainerReport, Voting


@dataclass(frozen=True)
class AgentSettings:
    """The agent's own durations, in seconds, and the number of processes per run."""

    processes: int = 1
    completion: Completion = Completion.LOG
    """The meaning of exit status 0 without a Session's report."""
    grace: float = DEFAULT_GRACE_SECONDS
    """terminationGracePeriodSeconds: time from SIGTERM until the kubelet kills everything."""
    grace_margin: float = 5.0
    """The part of the grace period reserved to kill what hangs and to write the outcome."""
    warm_up: float = 60.0
    """How long a member waits for the zygote before it becomes Ready and starts trainers."""
    linger: float = LINGER_SECONDS
    """How long the seat is held for a newer assignment."""
    no_step: float = 2.0
    """Time for a trainer without a finished step to exit; it closes a run that it opened."""
    siblings: float = 5.0
    """Time for the other processes of this pod to report their endings after one failed."""
    image: float = 5.0
    """Time for a trainer that can save no more to leave an image; once it writes a large one, it may take longer."""
    teardown: float = 30.0
    """Time for a process to exit after its ending report (a process group's teardown may hang), and for killed
    processes to disappear (one that waits inside the kernel may never)."""
    rescue: float = 60.0
    """Time for the commit of an image before the pod goes, unless its grace period ends earlier."""
    ends_hangs: bool = False
    """Whether a process that says that it hangs is ended."""
    stacks: float = 10.0
    """Time for a process that says that it hangs to write its stacks."""
    after_completion: float = AFTER_COMPLETION_SECONDS
    """Time for a script to go on after it reported its completion."""


@dataclass(frozen=True)
class Process:
    """One process of the trainer, by its reports."""

    rank: int
    """Its rank at its start."""
    attached: bool = False
    """Whether it has a Session."""
    pid: int = 0
    """The process with the Session, which may be below a shell."""
    live: bool = False
    """Whether it looks for offers of a live hand-over."""
    live_why: str = ""
    """Why it does not."""
    opened_at: float | None = None
    """When it reported that its Session opened the run."""
    step: int | None = None
    """The newest step that it finished in this run."""
    epoch: int | None = None
    """Epochs finished by then; None if it does not report them."""
    commit: CommitRef | None = None
    """The newest commit that it knows."""
    committed_at: float | None = None
    """When it reported that commit; None if it has begun with it."""
    goal: bool = False
    """Whether that commit is the last of the training."""
    highest: int = 0
    """The highest run that it saw opened in the log."""
    unsaved: Unsaved | None = None
    """Checkpoints that failed since the newest commit."""
    failing_since: float | None = None
    """When it reported the first of these."""
    figures: Figures | None = None
    """How it says that training goes."""
    hangs: Hangs | None = None
    """What it said of its hang; None while it makes progress."""
    hangs_since: float | None = None
    """Since when it makes none."""
    watched_at: float | None = None
    """When it last said that it looks at itself."""
    allowed: float | None = None
    """For how long it might make no progress then; None: for ever."""
    result: Mapping[str, Any] | None = None
    """The script's result."""
    ending: Exiting | None = None
    """Its ending report."""
    exiting_at: float = 0.0
    """When it reported its ending."""
    outcome: Outcome | None = None
    """Set once the process has ended."""
    ended_at: float = 0.0
    took_over: TookOver | None = None
    """The newest run that it took over live."""
    images: bool = False
    """Whether it can leave an image."""
    image_due: float | None = None
    """The deadline of the image that it is writing."""
    rescue: Rescue | None = None
    """The image that it began from, if that was in no commit."""
    imaged: Imaged | None = None
    """Set once it has left an image, or said that it leaves none."""
    makes_way: bool = False
    """Whether it only has its interpreter to shut down, and holds nothing that another trainer needs."""

    @property
    def rank_now(self) -> int:
        """Its rank in the run that it trains now."""
        return self.took_over.rank if self.took_over else self.rank

    @property
    def owes_image(self) -> bool:
        """Whether it may still leave an image."""
        return self.images and self.imaged is None and self.ending is None

    @property
    def completed(self) -> bool:
        """Whether it reported that the training is done and in the log."""
        return self.ending is not None and self.ending.outcome is ExitKind.COMPLETED


@dataclass(frozen=True)
class KillTime:
    """A deadline: processes that still run at `at` are killed, and count as `outcome` without an ending report."""

    at: float
    outcome: ExitKind
    reason: str
    error: Failure | None = None
    """Set for a failure."""


@dataclass(frozen=True)
class Requested:
    """A request that the trainer ends."""

    at: float
    """When it was first asked."""
    deadline: float
    """The deadline, which only gets nearer."""


@dataclass(frozen=True)
class TrainerProcesses:
    """The processes of one run in this pod, and what the agent did to them."""

    run: int
    """The newest run that it is known to train; a live hand-over changes it."""
    processes: tuple[Process, ...]
    completion: Completion = Completion.LOG
    request: Requested | None = None
    imaging: KillTime | None = None
    """Set if its run is lost, or did not save in time: it is killed once it has left an image, or at this limit."""
    killed: KillTime | None = None
    """The limit that it was killed for."""
    clearing: float | None = None
    """Since when its leftover processes are being killed."""
    started_for: int | None = None
    """The run that it was started for, if it trains another now."""
    offered: tuple[Train | Leave, ...] = ()
    """Offered runs that would take over this trainer's run, newest last."""
    saves: tuple[int, int] = (0, 0)
    """The run in which it was last asked to save and train on, and that request's number."""
    joins: bool = False
    """Whether it was started as a newcomer to a living run."""
    voted: int = 0
    """The newest run for which its vote may have been counted."""
    voting: Voting | None = None
    """Set while its vote may already be in the log and the outcome is unknown here."""
    rescuing: float | None = None
    """The deadline for the commit of its image, which no later trainer of this pod will read."""
    rescued: Rescued | None = None
    """The result of that commit."""

    @property
    def origin(self) -> int:
        """The run that it was started for, which names its folder."""
        return self.run if self.started_for is None else self.started_for

    @property
    def live(self) -> bool:
        """Whether each of its processes looks for offers of a live hand-over."""
        return all(process.live for process in self.processes)

    @property
    def bound(self) -> bool:
        """Whether it votes or took over a run: then it counts as having opened and stepped, even without such
        reports."""
        return self.voting is not None or any(process.took_over for process in self.processes)

    @property
    def alive(self) -> tuple[Process, ...]:
        """Its living processes."""
        return tuple(process for process in self.processes if process.outcome is None)

    @property
    def left_image(self) -> bool:
        """Whether it has left an image."""
        return any(one.imaged and one.imaged.step is not None for one in self.processes)

    @property
    def image_of(self) -> int:
        """The run of its image: its own, or the one that it joined; 0 for none."""
        left = (one.imaged for one in self.processes if one.imaged and one.imaged.step is not None)
        return max((imaged.of or self.run for imaged in left), default=0)

    @property
    def completed(self) -> bool:
        """Whether the training is done and in the log. The script may still do other work."""
        return any(process.completed for process in self.processes)

    @property
    def attached(self) -> bool:
        """Whether it has a Session."""
        return any(process.attached for process in self.processes)

    @property
    def opened_at(self) -> float | None:
        """When its Session first reported that it opened the run."""
        return min((process.opened_at for process in self.processes if process.opened_at is not None), default=None)

    @property
    def stepped(self) -> bool:
        """Whether a step of this run is finished."""
        return any(process.step is not None for process in self.processes)


@dataclass(frozen=True)
class Shutdown:
    """The agent is going to end: after SIGTERM, or an assignment of an unknown version.

    It no longer follows assignments.
    """

    deadline: float
    margin: float
    """Time left after it to kill what hangs and to write the outcome."""
    cause: str
    error: Failure | None = None


@dataclass(frozen=True)
class AgentState:
    """The agent's state."""

    settings: AgentSettings
    current: Train | Leave | None = None
    """The newest assignment with a run; None before the first and as a standby."""
    first_seen: float = 0.0
    """When the run number of `current` was first seen."""
    warming_until: float | None = None
    """How long a start waits for the launcher; None if there is nothing to wait for."""
    ready: bool = False
    """Whether an assignment was read."""
    trainer: TrainerProcesses | None = None
    """The trainer of the newest run in this pod; it stays here after its end."""
    hold_until: float | None = None
    """How long the seat is held."""
    shutdown: Shutdown | None = None
    handovers: tuple[HandoverRecord, ...] = ()
    """Attempts with a known outcome, one per run."""
    accounts: tuple[RunAccount, ...] = ()
    """What the first process of its trainers did with its time, by run."""
    accounts_at: float | None = None
    """When it said so; None once it has given the last account of a run."""
    begun: tuple[Beginning, ...] = ()
    """Where runs opened by this pod's trainers began, and how far each run before had come."""
    skipped_commit: SkippedCommit | None = None
    """The commit that the newest of these runs skipped, if one did."""
    stood: tuple[int, int] = (0, 0)
    """The newest run that an earlier trainer trained, and its last finished step."""
    keeps_images: bool = False
    """Whether an earlier trainer may have left an image."""
    image_of: int = 0
    """The run of that image, if no commit contains it yet; 0 for none."""
    finished: bool = False

    @property
    def newest(self) -> int:
        """The highest run number of the assignments."""
        return self.current.run if self.current else 0


# Events.


@dataclass(frozen=True)
class AssignmentRead:
    """The assignment file has a new assignment."""

    assignment: Assignment


@dataclass(frozen=True)
class Unreadable:
    """The assignment file cannot be parsed."""

    message: str
    unsupported: bool = False
    """Whether it is an assignment of an unknown major version."""


@dataclass(frozen=True)
class ReportReceived:
    """A process of the trainer wrote a report."""

    rank: int
    report: TrainerReport


@dataclass(frozen=True)
class ProcessEnded:
    """A process has ended."""

    rank: int
    status: int
    """Exit status, or minus the signal's number."""
    tail: str = ""
    """The end of its stderr."""
    left_behind: bool = False
    """Whether it was the last one and descendants are left: then Cleared follows."""
    out_of_memory: OutOfMemory | None = None
    """Set if the kernel killed for want of memory since the trainer was started."""


@dataclass(frozen=True)
class MakesWay:
    """A process only has its interpreter to shut down."""

    rank: int
    why_not: str = ""
    """Why another trainer cannot begin before its end; "" if it can."""


@dataclass(frozen=True)
class Cleared:
    """All descendants of the trainer are gone."""


@dataclass(frozen=True)
class SigtermReceived:
    """The pod is being deleted, by SIGTERM or its preStop hook. It gets no more assignments."""

    at: float | None = None
    """When its grace period began, if earlier than now."""


@dataclass(frozen=True)
class Warmed:
    """The launcher is prepared."""


@dataclass(frozen=True)
class Rescued:
    """The last trainer's image was committed, or cannot be."""

    commit: CommitRef | None = None
    why: str = ""
    """Why it was not committed."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    AssignmentRead | Unreadable | ReportReceived | MakesWay | ProcessEnded | Cleared | Rescued | SigtermReceived
    | Warmed | Tick
)  # fmt: skip

# Actions.


@dataclass(frozen=True)
class PrintLine:
    """Write one line to the pod's log."""

    line: str


@dataclass(frozen=True)
class MarkWarm:
    """Let the startup probe succeed."""


@dataclass(frozen=True)
class Start:
    """Start the processes of this run, beside the last ones of an older run."""

    train: Train


@dataclass(frozen=True)
class Ask:
    """Write the exit request, and send SIGTERM unless only the deadline changed."""

    run: int
    """The run that the trainer was started for, which names its folder."""
    cause: str
    deadline: float
    sessions: Mapping[int, int] = field(default_factory=dict)
    """The processes with a Session, by rank."""
    again: bool = False
    """Whether only the deadline changed."""
    image: bool = False
    """Whether it asks for an image instead of a save, because the run is lost or did not save in time."""


@dataclass(frozen=True)
class OfferAssignment:
    """Offer an assignment for a live hand-over to the trainer started for `run`."""

    run: int
    assignment: Train | Leave


@dataclass(frozen=True)
class AskForSave:
    """Ask the trainer started for `run` to save and train on; each new word is a new request."""

    run: int
    word: str


@dataclass(frozen=True)
class Acknowledge:
    """Acknowledge the vote for run `next` to the trainer started for `run`."""

    run: int
    next: int


@dataclass(frozen=True)
class ForgetImages:
    """Free the images of earlier trainers."""


@dataclass(frozen=True)
class CommitImage:
    """Commit the image of this run's trainer, if the log allows it. Rescued follows."""

    run: int
    aborted: int = 0
    """The run that would have taken it over and now never opens, as the commit says; 0 for none."""
    successor: int = 0
    """The lost run that may have begun at this image, which the commit then ends; 0 for none."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL everything that the trainer started."""


@dataclass(frozen=True)
class Finish:
    """Write the outcome and exit."""

    outcome: Outcome


Action = (
    PrintLine | MarkWarm | Start | Ask | AskForSave | OfferAssignment | Acknowledge | ForgetImages | CommitImage | Kill
    | Finish
)  # fmt: skip

HOLDS_SEAT: Final = frozenset({ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.PEER_LOST})
"""Endings without a fault of this member: the operator may plan a next run with it."""

ENDS_SIBLINGS: Final = frozenset(
    {ExitKind.FAILED, ExitKind.ROOT_TAKEN_OVER, ExitKind.FENCED, ExitKind.PEER_LOST, ExitKind.HANDOVER_FAILED}
)
"""Endings of one process after which the others of its pod cannot continue."""
