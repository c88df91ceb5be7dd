"""What a TrainingJob's status says: the only memory of the operator.

Status is written before anything else in a round, so whatever the cluster shows follows from it. A run's plan is never
edited once written: any change is the next run. Only `current` and `next` list members.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from perdure_operator.api.model import TolerantModel
from perdure_operator.api.reasons import ConditionType


class Phase(StrEnum):
    """Where a job is in its life; for people. No decision is taken from it.

    A word of a newer operator, after a rollback, is read as Pending: it is written anew in the same round.
    """

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    VACATING = "Vacating"
    RESCALING = "Rescaling"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"

    @classmethod
    def _missing_(cls, value: object) -> Phase:  # noqa: ARG003
        return cls.PENDING


class Disruption(StrEnum):
    """Why a run has to end before its work is done.

    A word of a newer operator, after a rollback, is read as Other: the move is finished all the same.
    """

    NODE_LEAVING = "NodeLeaving"
    NODE_FAULT = "NodeFault"
    SIZE_CHANGE = "SizeChange"
    MEMBER_LOST = "MemberLost"
    MEMBER_DELETED = "MemberDeleted"
    RUN_LOST = "RunLost"  # the one before it, whose end it waits for
    SUSPEND = "Suspend"
    STOP = "Stop"  # activeDeadlineSeconds is over
    OTHER = "Other"

    @classmethod
    def _missing_(cls, value: object) -> Disruption:  # noqa: ARG003
        return cls.OTHER


class Takeover(StrEnum):
    """How a run took over from the one before it.

    A word of a newer operator, after a rollback, is read as unknown: it is only shown.
    """

    START = "start"  # nobody ran before, or the job was suspended
    LIVE = "live"  # between two batches, and nobody stopped
    IN_PLACE = "in place"  # those who stayed saved, and went on in their pods
    RECREATE = "recreate"  # all saved and left, and all members are new
    UNKNOWN = "unknown"  # live or in place: nobody has told yet

    @classmethod
    def _missing_(cls, value: object) -> Takeover:  # noqa: ARG003
        return cls.UNKNOWN


class HistoryEntry(TolerantModel):
    """How one run took over from the one before it."""

    run: int
    """The run's number."""
    size: int
    """How many members it has."""
    changed: tuple[str, ...] = ()
    """Members that came (+) and went (-), at most 8 of them."""
    changes: int = 0
    """How many came and went in all."""
    cause: str = ""
    """Why the run before it ended."""
    how: Takeover = Takeover.UNKNOWN
    """How it took over."""
    why: str = ""
    """Why not in a better way."""
    pause: float | None = None
    """Seconds from the last step of the run before to its first batch; absent until a member has told."""
    steps_lost: int = 0
    """Steps of the run before it that it has not begun with."""
    steps_in_doubt: int = 0
    """Steps of the run before it that are in no commit: whether it has begun with them is told at its end."""
    untold: bool = False
    """True while nobody has told how far the run before it had come: more of its steps may be lost."""
    rescued: int = 0
    """Steps of the run before it that were in no commit, and that it has begun with all the same."""
    fell_back: int | None = None
    """Steps from where it has begun to the newest commit, which could not be used; absent where it could."""
    began: int | None = None
    """The step at which it has begun, as members have told; absent until then, and where it has taken over alive."""
    reached: int | None = None
    """The last step of the run before it, as far as members have told."""
    kept: int | None = None
    """The step of the newest commit that was known when that ended."""
    time: datetime | None = None
    """When it was the one that is on."""


class Assigned(TolerantModel):
    """One member of a run's plan: the pod by name and uid, and the rank of its first process."""

    name: str
    """The pod's name."""
    uid: str
    """The pod's uid."""
    rank: int
    """Rank of its first process."""
    node: str = ""
    """The node it was on when the plan was made."""


class Floor(TolerantModel):
    """A commit that is known to have been made."""

    seq: int
    """Its number in the log."""
    step: int
    """Its step."""


class HandoverOffer(TolerantModel):
    """How a run takes over the living one before it, between two batches, so that nobody stops."""

    run: int
    """The living run."""
    world: int
    """How many processes it has."""
    joins: tuple[int, ...] = ()
    """Ranks of the newer run that newcomers hold."""
    leavers: tuple[int, ...] = ()
    """Ranks of the living run that leave."""
    master: str
    """ip:port of the attempt's own store, at the decider."""
    limit: int
    """Seconds until which the attempt may be decided, counted by each agent."""


class RunPlan(TolerantModel):
    """The immutable part of a run, complete enough to write every assignment again."""

    run: int
    """The run's number."""
    world: int
    """How many processes the run has."""
    master: str
    """ip:port where rank 0 listens for the others."""
    cause: str = ""
    """Why the run before this one ended."""
    seconds: int
    """How long trainers of the run before may take to save, counted by each agent."""
    wait: int
    """How long rank 0 waits for the run before to end before it opens the log."""
    lost: tuple[int, ...] = ()
    """The lost runs when the plan was made."""
    floor: Floor | None = None
    """The newest commit that outcomes had told of: a run that finds less in the log refuses to begin."""
    members: tuple[Assigned, ...]
    """The members in the order of their ranks."""
    leavers: tuple[str, ...] = ()
    """Names of members of the run before it that do not go on: they are told to leave with this plan."""
    takes_over: int = 0
    """The run whose living pods it goes on in; 0 where all its members are new."""
    joins: tuple[int, ...] | None = None
    """First ranks of its members that were not in that run; absent where that was not written down."""
    handover: HandoverOffer | None = None
    """How it takes that run over alive; absent where every trainer of it has to end first."""
    assigned_time: datetime | None = None
    """When the plan was made."""


class Intent(TolerantModel):
    """The decision that the current run ends before its work is done."""

    disruption: Disruption
    """Why the current run ends."""
    cause: str
    """The same in words, with names."""
    nodes: tuple[str, ...] = ()
    """The nodes that members have to leave."""
    since: datetime
    """When the first signal was seen."""
    newest: datetime | None = None
    """When the newest of `nodes` was added: the quiet second counts from here."""
    deadline_seen: datetime | None = None
    """When a deadline of one of `nodes` was first seen, which may be long after `since`; absent: none is shown."""
    prepare: bool = False
    """True while standbys start and the run trains on; the signal may still be withdrawn."""
    ready_by: datetime | None = None
    """While standbys start: when everybody is asked to leave if they are not Ready; absent where they have all the
    time they need, as nobody has to leave."""
    grow_by: datetime | None = None
    """While standbys start for a larger run: when they are let go."""
    not_before: datetime | None = None
    """While standbys start: the next run begins no earlier, after a failure."""
    leave: bool = False
    """False while quiet seconds collect more nodes and the signal may still be withdrawn; True is final."""
    fell: str = ""
    """Why no standby took over, where some were awaited."""
    ahead: bool = False
    """True: the next members are made while these leave; who needs the room of one of these is Pending until then."""
    seconds: int = 0
    """How long each trainer may take to save, from `leave` on; only shortened, when a member is deleted or lost."""
    lost: tuple[int, ...] = ()
    """Lost runs, with the current one where its members can no longer save together."""
    deadline: datetime | None = None
    """`leave` time + seconds + 30: what still runs then is deleted."""


class MemberOutcome(TolerantModel):
    """How one member of the current run ended, kept before its pod is deleted."""

    name: str
    """The pod's name."""
    uid: str
    """The pod's uid."""
    outcome: str
    """A value of perdure.wire.ExitKind, or "" where the pod left none."""
    run: int = 0
    """The run the outcome tells of."""
    step: int = 0
    """Steps done when the trainer ended."""
    epoch: int | None = None
    """Epochs finished by then; absent where the trainer did not tell."""
    commit_seq: int | None = None
    """Number in the log of the newest commit the member knew."""
    commit_step: int | None = None
    """Step of that commit."""
    error_kind: str = ""
    """A value of perdure.wire.ErrorKind, or "" without an error."""
    error_name: str = ""
    """The exception's class, the signal or the exit status."""
    error_tail: str = ""
    """The last lines of the traceback or of stderr, for the first member that ended in this way."""
    time: datetime | None = None
    """When it died: by its kubelet's clock, else the earliest moment at which that can have been."""
    infrastructure: bool = False
    """True where the pod or its node vanished, or the container was killed from outside."""
    unsaved: int = 0
    """Periodic checkpoints that had failed in a row by then."""
    unsaved_why: str = ""
    """Why the last of them did, for the first member that ended in this way."""
    pause: float | None = None
    """Seconds from the last step of the run to the first batch of the one that has taken over from it alive."""
    went: int | None = None
    """The run that has taken over from it alive, as this member has read in the log."""
    aborted: int | None = None
    """The newest run that was to, and never will: this member has read so, or was needed for it and had not voted."""


class CurrentRun(TolerantModel):
    """The run that is on: from the write of its plan until each of its members has ended."""

    run: int
    """The run's number."""
    plan: RunPlan
    """Who trains in it; never edited."""
    outcomes: tuple[MemberOutcome, ...] = ()
    """How members of it ended so far."""
    intent: Intent | None = None
    """Set from the first signal that the run has to end."""
    replacements: Replacements | None = None
    """The row of replacements that led to it: it goes on if the run has to end before its first step."""
    unconfirmed: bool = False
    """True while nobody has told that it has taken over: the run before it may still be the one that trains."""
    saves: int = 0
    """How often its members were asked to save and train on."""
    warm: bool = False
    """Each of its members has been Ready: who ends from then on has not ended of its imports."""
    counted: int | None = None
    """The run before it, whose end was counted as a failure: members that have ended in that one cost no second."""


class Replacements(TolerantModel):
    """Members that could not train and were replaced before their run was planned."""

    count: int = 0
    """How often, since the last edit of the spec: the pause before the next ones grows with it."""
    last_time: datetime
    """When the newest of them were given up; the pause counts from here."""
    generation: int = 0
    """The generation of the spec at that time: an edit ends the pause."""
    cause: str = ""
    """What was wrong with them, in words."""
    nodes: tuple[str, ...] = ()
    """Where they failed by themselves, the newest 8: those that follow rather go elsewhere, and no run that trains is
    stopped for them."""


class Enough(TolerantModel):
    """So many members are there that a run of another size than the wanted one could begin."""

    size: int
    """That size."""
    since: datetime
    """Since when."""


class Withdrawals(TolerantModel):
    """Signals that were withdrawn before anybody was asked to leave, in a row."""

    count: int = 0
    """How many: the quiet time before the next move grows with it."""
    last_time: datetime
    """When the newest was withdrawn; the row ends ten minutes later."""
    nodes: tuple[str, ...] = ()
    """Which nodes they were about: what any other node announces does not wait."""


class Vacating(TolerantModel):
    """What the job's annotation perdure.dev/vacate=true asks for: all members that there were when it was seen."""

    below: int
    """Members with a lower number leave; those made since stay."""


class SavesAsked(TolerantModel):
    """Saves that were asked for because of what nodes show, while the run trains on."""

    shown: tuple[str, ...] = ()
    """For what of what is shown now, at most 64: nodes and rows of the table."""
    count: int = 0
    """How many in a row: the pause before the next one grows with it."""
    last_time: datetime | None = None
    """When the newest was asked for; the row ends 20 minutes later."""


class Growth(TolerantModel):
    """Attempts at a larger run that were given up in a row."""

    attempts: int = 0
    """How many: the pause before the next one grows with it."""
    until: datetime
    """When the next one begins."""
    generation: int = 0
    """The generation of the spec at that time: an edit ends the pause."""


class GangRest(TolerantModel):
    """Starts in a row for which not all members found room."""

    attempts: int = 0
    """How many: the pause before the next one grows with it."""
    until: datetime
    """When members are made again."""
    generation: int = 0
    """The generation of the spec at that time: an edit ends the pause."""


class NextRun(TolerantModel):
    """The run that comes next: from the decision that it is needed until its plan is written."""

    run: int
    """The number it will have, or a higher one where the log has seen more."""
    members: tuple[str, ...] = ()
    """Names allocated for it, written before their pods are created."""
    enough: Enough | None = None
    """Set while fewer members than are wanted could begin it."""
    in_vain_since: datetime | None = None
    """Since when some of its members hold nodes while too many others find no room, and no run is on."""
    plan: RunPlan | None = None
    """Its plan, while it takes over the run that is on: which of the two trains is known from evidence alone."""
    attempts: int = 0
    """Hand-overs that did not come about, in this move."""
    broken: int = 0
    """Those of them in which a new member failed by itself: nobody is stopped for such a one."""
    undecided: tuple[int, ...] = ()
    """The runs that those would have begun, the newest 32: nobody may go on with one."""
    fell: str = ""
    """Why no better way was taken from the run before to this one."""
    steps_lost: int = 0
    """Steps of the run before it that are in no commit."""
    untold: bool = False
    """As in history."""
    reached: int | None = None
    """As in history."""
    kept: int | None = None
    """As in history."""
    replacements: Replacements | None = None
    """Members that could not train and were replaced; counted anew for each run."""
    disruption: Disruption | None = None
    """Why the run before it ended; absent for a job's first run."""
    cause: str = ""
    """The same in words, with names."""


class Spares(TolerantModel):
    """Standbys beside the run: no next run needs them yet."""

    names: tuple[str, ...] = ()
    """Names of their pods, written before those are created."""
    replacements: Replacements | None = None
    """Those that could not be used any more and were replaced; forgotten when it was long ago."""


class LiveRefused(TolerantModel):
    """A script that cannot change its membership while it trains."""

    template: str
    """Hash of the pods that have told so."""
    why: str = ""
    """The reason, in the words of its Session."""


class PreviousRun(TolerantModel):
    """A run whose successor is planned in its living pods: kept until those who do not go on have ended."""

    run: int
    """The run's number."""
    first: str = ""
    """The name of the member that had its rank 0."""
    members: tuple[Assigned, ...] = ()
    """Those of its members that do not go on and have not ended yet."""
    outcomes: tuple[MemberOutcome, ...] = ()
    """How the others of them ended."""
    intent: Intent
    """Why they leave, and how long they may take."""
    counted: int | None = None
    """This one, or the run before it, where its end was counted as a failure by those who have ended since."""
    replacements: Replacements | None = None
    """As in the run that is on."""


class Failures(TolerantModel):
    """What went wrong so far, and how much of it counts: what a job has got over is forgiven."""

    code: int = 0
    """Runs that failed by the script's own fault, all of them."""
    infrastructure: int = 0
    """Runs that failed by a pod, a node or the storage, all of them."""
    code_in_a_row: int = 0
    """Those of the code that count: ten new commits after the last one, or one and a day, end the row."""
    code_seq: int = 0
    """The newest commit known when the last one of the code was counted."""
    code_time: datetime | None = None
    """When it was."""
    infrastructure_in_a_row: int = 0
    """Those of infrastructure that count: since the last new commit."""
    last_time: datetime | None = None
    """When the newest failure was counted; the backoff counts from here."""
    consecutive: int = 0
    """Failures since the last new commit: the backoff grows with it."""
    out_of_memory: int = 0
    """Out-of-memory kills in a row that came no further than the one before."""
    out_of_memory_step: int = 0
    """The step they came to."""


class LostLog(TolerantModel):
    """A run found less in the log than members had told of, and refused to begin."""

    time: datetime
    """When that was learnt."""
    generation: int = 0
    """The generation of the spec at that time."""
    found_step: int = 0
    """The step of the newest commit that was found, 0 without any."""
    message: str = ""
    """What was missing, in the words of the run."""


class RootProblem(TolerantModel):
    """A run could not use its root, and the next one would end alike: somebody has to act."""

    time: datetime
    """When that was learnt."""
    generation: int = 0
    """The generation of the spec at that time."""
    damaged: bool = False
    """True: what is stored there is damaged. False: the store refused the run."""
    count: int = 1
    """Runs that ended so since the last new commit: they follow each other ever more slowly."""
    message: str = ""
    """What is wrong and what to do, in the words of the run."""


class Unready(TolerantModel):
    """A node under a member that was first seen with Ready != True at `since`."""

    node: str
    """The node's name."""
    since: datetime
    """When that was first seen, when the outage around it was over, or when it had been Ready in between."""
    outage: bool = False
    """True while so many nodes are not Ready at once that the control plane is more likely at fault."""
    given_up: datetime | None = None
    """When members on it were given up although the outage went on."""


class Condition(TolerantModel):
    """A standard Kubernetes condition."""

    type: str
    """One of the conditions below."""
    status: str
    """True, False or Unknown."""
    reason: str
    """One of the reasons below."""
    message: str
    """The same in words: who is waited for, until when, what to do."""
    last_transition_time: datetime
    """When `status` changed last."""
    observed_generation: int = 0
    """The generation of the spec it was derived from."""


class TrainingJobStatus(TolerantModel):
    """The operator's memory of one job: first what people read, from `current` on what only the operator needs."""

    phase: Phase = Phase.PENDING
    """Where the job is in its life; for people."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """What is true of the job now, and why."""
    run: int = 0
    """The newest run number used by a plan or an intent."""
    step: int | None = None
    """Step of the last commit an outcome has told."""
    epoch: int | None = None
    """Epochs finished by the trainer that has told of that commit, when it ended."""
    result: dict[str, Any] | None = None
    """What the script has given as its result, `session.result`: told when a run ends, by the newest that has one."""
    steps_lost: int = 0
    """Steps that runs have done and the next ones have not begun with, summed over the job's life, as far as known."""
    steps_in_doubt: int = 0
    """At most so many more: a run that members have gone on to in their pods may have begun with them."""
    runs_untold: int = 0
    """Runs of which nobody has told how far they had come: stepsLost may lack steps of each."""
    log_lost: LostLog | None = None
    """Set while the log holds less than it should."""
    log_looks: int = 0
    """How often a log that lost commits was looked into again since the last new commit."""
    root_problem: RootProblem | None = None
    """Set from a run that could not use its root until the next new commit."""
    exit_seconds: float | None = None
    """How long members took to save and leave when they were asked last, in seconds; absent until some have."""
    replicas: int = 0
    """Members of the run that is on and alive, for the scale subresource."""
    selector: str = ""
    """Selects the job's members, for the scale subresource."""
    how: Takeover | None = None
    """How the newest run took over from the one before it."""
    history: tuple[HistoryEntry, ...] = ()
    """The newest 20 runs, oldest first."""
    failures: Failures = Failures()
    """Budgets used up so far."""
    start_time: datetime | None = None
    """When members were first wanted, after the last suspension; activeDeadlineSeconds counts from here."""
    completion_time: datetime | None = None
    """When the job was Completed."""
    observed_generation: int = 0
    """The generation of the spec the operator has seen."""
    current: CurrentRun | None = None
    """The run that is on."""
    previous: PreviousRun | None = None
    """The run before it, while members of it that did not go on are still leaving."""
    next: NextRun | None = None
    """The run that comes next; it gets its members while the current one may still train."""
    spares: Spares | None = None
    """Standbys beside the run; absent where there are none."""
    next_member: int = 0
    """The next member number; numbers are never reused."""
    lost: tuple[int, ...] = ()
    """Runs that ended without telling: they can no longer save together. The newest 32."""
    opened: int = 0
    """The highest run number an outcome has seen in the log."""
    commit_seq: int = 0
    """Its number in the log: a higher one is a new commit, and new commits reset the backoff."""
    withdrawals: Withdrawals | None = None
    """Set from a signal of a node that was withdrawn; see there."""
    vacate: Vacating | None = None
    """Set from the first sight of the annotation perdure.dev/vacate=true until it is taken away."""
    saves: SavesAsked | None = None
    """Set from a node that shows enough to save at once; see there."""
    growth: Growth | None = None
    """Set from an attempt at a larger run that was given up until the run has the wanted size."""
    gang: GangRest | None = None
    """Set from a start for which not all members found room until a run is planned."""
    live_refused: LiveRefused | None = None
    """Set where members have told that their script cannot be handed over alive; counts for their template only."""
    unready: tuple[Unready, ...] = ()
    """Nodes under members that are not Ready, and since when."""
    given_up: datetime | None = None
    """When a node was given up last while an outage went on; the next one counts from here."""
    template_checked: str = ""
    """Hash of the pod that passed the dry run last; names the ControllerRevision that keeps its template."""

    def find(self, kind: ConditionType) -> Condition | None:
        """The condition of this type, if status has it."""
        for condition in self.conditions:  # a generator takes twice as long, and a round asks a hundred times
            if condition.type == kind:
                return condition
        return None

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition is there and True."""
        condition = self.find(kind)
        return condition is not None and condition.status == "True"

    @property
    def finished_at(self) -> datetime | None:
        """When the job came to its end; None while it has not."""
        for kind in (ConditionType.COMPLETED, ConditionType.FAILED):
            end = self.find(kind)
            if end is not None and end.status == "True":
                return end.last_transition_time
        return None
