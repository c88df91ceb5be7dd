"""The status of a TrainingJob: the operator's only memory.

The operator writes status before anything else in a round, so the cluster never shows what status lacks. A run's plan
is never edited: any change is the next run. Only `current` and `next` list members.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from perdure_operator.api.model import TolerantModel
from perdure_operator.api.reasons import ConditionType


class Phase(StrEnum):
    """Where a job is in its life, for people. The operator decides nothing by it.

    A value of a newer operator, after a rollback, is read as Pending; the same round overwrites it.
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

    A value of a newer operator, after a rollback, is read as Other; the move is finished all the same.
    """

    NODE_LEAVING = "NodeLeaving"
    NODE_FAULT = "NodeFault"
    SIZE_CHANGE = "SizeChange"
    MEMBER_LOST = "MemberLost"
    MEMBER_DELETED = "MemberDeleted"
    RUN_LOST = "RunLost"  # the run before it, whose save it waits for, ended without one
    SUSPEND = "Suspend"
    STOP = "Stop"  # activeDeadlineSeconds is over
    OTHER = "Other"

    @classmethod
    def _missing_(cls, value: object) -> Disruption:  # noqa: ARG003
        return cls.OTHER


class Takeover(StrEnum):
    """How a run took over from the one before it.

    A value of a newer operator, after a rollback, is read as unknown; the operator only shows it.
    """

    START = "start"  # the first run, or the first after a suspension
    LIVE = "live"  # between two batches, without a stop
    IN_PLACE = "in place"  # staying members saved and restarted in their pods
    RECREATE = "recreate"  # all members saved and left, and all members are new
    NEVER = "never"  # an offer that the operator took for the run that is on, until a member reported that it failed
    UNKNOWN = "unknown"  # live or in place: no member has reported yet

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
    """Members that joined (+) and left (-), at most 8 of them."""
    changes: int = 0
    """How many joined and left in all."""
    cause: str = ""
    """Why the run before it ended."""
    disruption: Disruption | None = None
    """The kind of that cause; absent for a job's first run, and if an older operator did not record it."""
    how: Takeover = Takeover.UNKNOWN
    """How it took over."""
    why: str = ""
    """Why it did not take over in a better way."""
    pause: float | None = None
    """Seconds from the last step of the run before it to its first batch; absent until a member reports it."""
    steps_lost: int = 0
    """Steps of the run before it that it did not begin with."""
    steps_in_doubt: int = 0
    """Steps of the run before it that are in no commit. Its own end shows whether it began with them."""
    unreported: bool = False
    """True while no member has reported how far the run before it came: more of its steps may be lost."""
    rescued: int = 0
    """Steps of the run before it that were in no commit and that it began with all the same."""
    steps_behind_skipped: int | None = None
    """Steps from where it began to the newest commit, which it could not use; absent if it used that."""
    began: int | None = None
    """The step it began at, as members reported; absent until then, and after a live hand-over."""
    reached: int | None = None
    """The last step of the run before it, as far as members reported."""
    kept: int | None = None
    """The step of the newest commit that was known when that run ended."""
    time: datetime | None = None
    """When it became the current run."""


class EarlierDisruption(TolerantModel):
    """Runs that history no longer lists and that followed one kind of disruption."""

    disruption: Disruption
    """Why the runs before them ended."""
    live: int = 0
    """How many took over between two batches, without a stop."""
    in_place: int = 0
    """How many in the same pods, after a save."""
    recreate: int = 0
    """How many in new pods."""
    steps_lost: int = 0
    """Steps that they did not begin with."""


class EarlierTakeovers(TolerantModel):
    """How many runs that history no longer lists took over in each way."""

    live: int = 0
    """Between two batches, without a stop."""
    in_place: int = 0
    """Staying members saved and restarted in their pods."""
    recreate: int = 0
    """All members saved and left."""


PAUSE_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""Upper bounds of the pauses in PauseCounts.counts. Part of the format: they never change."""


class PauseCounts(TolerantModel):
    """Pauses of training over the job's life."""

    counts: tuple[int, ...] = ()
    """Of up to 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900 s, and longer; each pause in one of them."""
    seconds: float = 0
    """All of them together."""


class Assigned(TolerantModel):
    """One member of a run's plan: the pod by name and uid, and the rank of its first process."""

    name: str
    """The pod's name."""
    uid: str
    """The pod's uid."""
    rank: int
    """Rank of its first process."""
    node: str = ""
    """The pod's node when the plan was made."""


class Floor(TolerantModel):
    """A commit that is known to exist."""

    seq: int
    """Its number in the log."""
    step: int
    """Its step."""


class HandoverOffer(TolerantModel):
    """How a run takes over the living run before it, between two batches and without a stop."""

    run: int
    """The living run."""
    world: int
    """How many processes it has."""
    joins: tuple[int, ...] = ()
    """Ranks of the newer run that newcomers hold."""
    leavers: tuple[int, ...] = ()
    """Ranks of the living run that leave."""
    master: str
    """ip:port of the attempt's own store, on the decider."""
    limit: int
    """Seconds in which the attempt may be decided, counted by each agent."""


class RunPlan(TolerantModel):
    """The immutable part of a run: enough to write every assignment again."""

    run: int
    """The run's number."""
    world: int
    """How many processes the run has."""
    master: str
    """ip:port where rank 0 listens for the others."""
    cause: str = ""
    """Why the run before this one ended."""
    seconds: int
    """Seconds that trainers of the run before may take to save, counted by each agent."""
    wait: int
    """Seconds that rank 0 waits for the run before to end before it opens the log."""
    lost: tuple[int, ...] = ()
    """The runs that were lost when the plan was made."""
    floor: Floor | None = None
    """The newest commit that outcomes had reported. A run that finds less in the log refuses to begin."""
    members: tuple[Assigned, ...]
    """The members in the order of their ranks."""
    leavers: tuple[str, ...] = ()
    """Names of members of the run before it that this plan asks to leave."""
    takes_over: int = 0
    """The run whose living pods it continues in; 0 if all its members are new."""
    joins: tuple[int, ...] | None = None
    """First ranks of its members that were not in that run; absent if an older operator did not record them."""
    handover: HandoverOffer | None = None
    """How it takes that run over live; absent if every trainer of it has to end first."""
    assigned_time: datetime | None = None
    """When the plan was made."""


class Intent(TolerantModel):
    """The decision to end the current run before its work is done."""

    disruption: Disruption
    """Why the current run ends."""
    cause: str
    """The same in words, with names."""
    nodes: tuple[str, ...] = ()
    """The nodes that members have to leave."""
    since: datetime
    """When the first signal of this disruption was seen."""
    newest: datetime | None = None
    """When the newest of `nodes` was added. The quiet second counts from here, and the time for image pulls."""
    deadline_seen: datetime | None = None
    """When a deadline of one of `nodes` was first seen, perhaps long after `since`; absent if no node shows one."""
    prepare: bool = False
    """True while standbys start and the run keeps training. The signal may still be withdrawn."""
    ready_by: datetime | None = None
    """While standbys start: if they are not Ready by then, all members are asked to leave. Absent if no member has to
    leave, so that standbys have no time limit."""
    grow_by: datetime | None = None
    """While standbys start for a larger run: when they are deleted, and the run goes on in its size."""
    not_before: datetime | None = None
    """While standbys start after a failure: the next run begins no earlier."""
    leave: bool = False
    """False while the quiet second collects more nodes and the signal may still be withdrawn. True is final."""
    fallback_reason: str = ""
    """Why no standby took over, although the operator waited for some."""
    ahead: bool = False
    """True: the next members are created while these leave. One that needs the room of a leaving member stays Pending
    until that is gone."""
    seconds: int = 0
    """Seconds that each trainer may take to save, from `leave` on. A member's deletion or loss only shortens it."""
    lost: tuple[int, ...] = ()
    """Lost runs, including the current one if its members can no longer save together."""
    deadline: datetime | None = None
    """`leave` time + seconds + 30: members that still run then are deleted."""


class MemberOutcome(TolerantModel):
    """How one member of the current run ended, kept before its pod is deleted."""

    name: str
    """The pod's name."""
    uid: str
    """The pod's uid."""
    outcome: str
    """A value of perdure.wire.ExitKind, or "" if the pod left no outcome."""
    run: int = 0
    """The run that the outcome is about."""
    step: int = 0
    """Steps done when the trainer ended."""
    epoch: int | None = None
    """Epochs finished by then; absent if the trainer did not report it."""
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
    """When it died, by its kubelet's clock; otherwise the earliest time at which it can have died."""
    infrastructure: bool = False
    """True if the pod or its node vanished, or the container was killed from outside."""
    unsaved: int = 0
    """Periodic checkpoints that had failed in a row by then."""
    unsaved_why: str = ""
    """Why the last of them failed, for the first member that ended in this way."""
    pause: float | None = None
    """Seconds from the last step of the run to the first batch of the run that took it over live."""
    taken_over_by: int | None = None
    """The run that took it over live, as this member read in the log."""
    aborted_run: int | None = None
    """The newest run that was planned to take it over live and never will: this member read so, or its vote was needed
    and it had not voted."""


class CurrentRun(TolerantModel):
    """The current run: from the write of its plan until each of its members has ended."""

    run: int
    """The run's number."""
    plan: RunPlan
    """Its members and their ranks; never edited."""
    outcomes: tuple[MemberOutcome, ...] = ()
    """How members of it ended so far."""
    intent: Intent | None = None
    """Set at the first signal that the run has to end."""
    replacements: Replacements | None = None
    """The series of replacements that led to it. The series goes on if the run has to end before its first step."""
    unconfirmed: bool = False
    """True until a member reports that it took over. Until then the run before it may still be the one that trains."""
    saves: int = 0
    """How often its members were asked to save and keep training."""
    warm: bool = False
    """True once every member was Ready. A member that ends later did not fail in its imports."""
    counted: int | None = None
    """The run before it, if its end was counted as a failure. Members that end in that run are not counted again."""


class Replacements(TolerantModel):
    """Members that could not train and were replaced before their run was planned."""

    count: int = 0
    """How often, since the last edit of the spec. The pause before the next replacement grows with it."""
    last_time: datetime
    """When the newest of them were given up. The pause counts from here."""
    generation: int = 0
    """The generation of the spec at that time: an edit ends the pause."""
    cause: str = ""
    """What was wrong with them, in words."""
    nodes: tuple[str, ...] = ()
    """The newest 8 nodes on which they failed by themselves. Later replacements prefer other nodes, and no training run
    is stopped for them."""


class Enough(TolerantModel):
    """Enough members are there for a run of another size than the wanted one."""

    size: int
    """How many members that run would have."""
    since: datetime
    """Since when they are enough."""


class Withdrawals(TolerantModel):
    """Signals in a row that were withdrawn before the operator asked any member to leave."""

    count: int = 0
    """How many signals were withdrawn in a row. The quiet time before the next move grows with it."""
    last_time: datetime
    """When the newest was withdrawn. The count ends ten minutes later."""
    nodes: tuple[str, ...] = ()
    """The nodes whose signals were withdrawn. Signals of other nodes do not wait."""


class Vacating(TolerantModel):
    """The job's annotation perdure.dev/vacate=true: it asks all members to leave that existed when it was seen."""

    below: int
    """Members with a lower number leave; newer ones stay."""


class SavesAsked(TolerantModel):
    """Saves that the operator asked for because of node signals, or a user, while the run keeps training."""

    shown: tuple[str, ...] = ()
    """The current signals that a save was asked for: perdure.dev/save with its value, and at most 64 nodes and rows of
    the table."""
    count: int = 0
    """How many in a row. The pause before the next one grows with it. A user's requests count at most as one."""
    last_time: datetime | None = None
    """When the newest was asked for. The count ends 20 minutes later."""


class Growth(TolerantModel):
    """Attempts in a row at a larger run that were given up."""

    attempts: int = 0
    """How many attempts were made. The pause before the next one grows with it."""
    until: datetime
    """When the next one begins."""
    generation: int = 0
    """The generation of the spec at that time: an edit ends the pause."""
    cause: str = ""
    """What the new members of the last attempt waited for."""


class GangRest(TolerantModel):
    """Starts in a row in which some members found no room."""

    attempts: int = 0
    """How many starts were tried. The pause before the next one grows with it."""
    until: datetime
    """When members are created again."""
    generation: int = 0
    """The generation of the spec at that time: an edit ends the pause."""


class NextRun(TolerantModel):
    """The next run: from the decision that it is needed until its plan is written."""

    run: int
    """The number it will have; a higher one if the log has seen more."""
    members: tuple[str, ...] = ()
    """Names allocated for its members, written before their pods are created."""
    enough: Enough | None = None
    """Set while fewer members than wanted could begin it."""
    in_vain_since: datetime | None = None
    """Since when some of its members hold nodes while too many others find no room and no run is on."""
    plan: RunPlan | None = None
    """Its plan while it takes over the current run. Only evidence shows which of the two trains."""
    attempts: int = 0
    """Hand-overs that failed in this move."""
    broken: int = 0
    """Those failed hand-overs in which a new member failed by itself. No member is stopped for such a failure."""
    attempted_runs: tuple[int, ...] = ()
    """The newest 32 runs that those hand-overs would have begun. No member may continue with one."""
    fallback_reason: str = ""
    """Why it does not take over from the run before in a better way."""
    steps_lost: int = 0
    """Steps of the run before it that are in no commit."""
    unreported: bool = False
    """True while no member has reported how far the run before came: more of its steps may be lost."""
    reached: int | None = None
    """The last step of the run before, as far as members reported."""
    kept: int | None = None
    """The step of the newest commit that was known when the run before ended."""
    replacements: Replacements | None = None
    """Members that could not train and were replaced; counted from zero for each run."""
    disruption: Disruption | None = None
    """Why the run before it ended; absent for the job's first run."""
    cause: str = ""
    """The same in words, with names."""


class Spares(TolerantModel):
    """Standbys beside the run that no next run needs yet."""

    names: tuple[str, ...] = ()
    """Names of their pods, written before the pods are created."""
    replacements: Replacements | None = None
    """Spares that became unusable and were replaced. The count resets after a while without another."""


class LiveRefused(TolerantModel):
    """A script that cannot swap members live."""

    template: str
    """Template hash of the pods that reported it."""
    why: str = ""
    """The reason, as its Session gives it."""


class PreviousRun(TolerantModel):
    """A run whose successor is planned in its living pods: kept until its leaving members have ended."""

    run: int
    """The run's number."""
    first: str = ""
    """The member that had its rank 0."""
    members: tuple[Assigned, ...] = ()
    """Its leaving members that have not ended yet."""
    outcomes: tuple[MemberOutcome, ...] = ()
    """How its other leaving members ended."""
    intent: Intent
    """Why they leave, and how long they may take."""
    counted: int | None = None
    """This run or the one before it, if members that ended since made its end count as a failure."""
    replacements: Replacements | None = None
    """The series of replacements that led to this run. It goes on if the run has to end before its first step."""


class Failures(TolerantModel):
    """Failures so far, and how many of them count. Progress resets the counts."""

    code: int = 0
    """All runs that failed because of the script."""
    infrastructure: int = 0
    """All runs that failed because of a pod, a node or the storage."""
    code_in_a_row: int = 0
    """Code failures that count. Ten new commits after the last one, or one new commit and a day, reset it."""
    code_seq: int = 0
    """The newest commit known when the last code failure was counted."""
    code_time: datetime | None = None
    """When the last code failure was counted."""
    infrastructure_in_a_row: int = 0
    """Infrastructure failures that count: those since the last new commit."""
    last_time: datetime | None = None
    """When the newest failure was counted. The backoff counts from here."""
    consecutive: int = 0
    """Failures since the last new commit. The backoff grows with it."""
    out_of_memory: int = 0
    """Out-of-memory kills in a row, none at a later step than the one before."""
    out_of_memory_step: int = 0
    """The step that they reached."""
    hung_nodes: tuple[str, ...] = ()
    """The newest 8 nodes of members that their agents ended because they made no progress, for as long as such a
    failure counts. New members prefer other nodes."""


class LostLog(TolerantModel):
    """A run found less in the log than members had reported, and refused to begin."""

    time: datetime
    """When the operator learned of it."""
    generation: int = 0
    """The generation of the spec at that time."""
    found_step: int = 0
    """The step of the newest commit that was found; 0 if there was none."""
    message: str = ""
    """What was missing, as the run reported it."""


class RootProblem(TolerantModel):
    """A run could not use its root, and the next one would fail the same way: a person must act."""

    time: datetime
    """When the operator learned of it."""
    generation: int = 0
    """The generation of the spec at that time."""
    damaged: bool = False
    """True: what is stored there is damaged. False: the store refused the run."""
    count: int = 1
    """Runs that ended so since the last new commit. The pause between them grows with it."""
    message: str = ""
    """What is wrong and what to do, as the run reported it."""


class Unready(TolerantModel):
    """A member's node that is not Ready."""

    node: str
    """The node's name."""
    since: datetime
    """When it was first seen so; later if a mass outage ended or the node was Ready in between."""
    outage: bool = False
    """True while so many nodes are not Ready at once that the control plane is the more likely cause."""
    given_up: datetime | None = None
    """When the operator gave up its members although the outage went on."""


class TrainingPhase(StrEnum):
    """What rank 0's trainer is busy with, as it reported.

    A value of a newer operator, after a rollback, is read as Training; the next report overwrites it.
    """

    IMPORTING = "Importing"
    CONNECTING = "Connecting"
    RESTORING = "Restoring"
    TRAINING = "Training"
    SAVING = "Saving"
    EVALUATING = "Evaluating"
    HANDING_OVER = "HandingOver"
    LEAVING = "Leaving"

    @classmethod
    def _missing_(cls, value: object) -> TrainingPhase:  # noqa: ARG003
        return cls.TRAINING


class MoveAct(StrEnum):
    """How far rank 0's trainer is in a live hand-over that it was offered.

    A value of a newer operator, after a rollback, is read as Connecting; the next report overwrites it.
    """

    CONNECTING = "Connecting"
    MOVING = "Moving"
    VOTING = "Voting"

    @classmethod
    def _missing_(cls, value: object) -> MoveAct:  # noqa: ARG003
        return cls.CONNECTING


class SuspectDoes(StrEnum):
    """What is known of a member that all others wait for. A word of a newer operator is read as SaysNothing."""

    COMPUTES = "Computes"
    STANDS = "Stands"
    SAYS_NOTHING = "SaysNothing"
    NOT_HEARD = "NotHeard"

    @classmethod
    def _missing_(cls, value: object) -> SuspectDoes:  # noqa: ARG003
        return cls.SAYS_NOTHING


class Suspect(TolerantModel):
    """A member that does not say that it waits for other ranks, while all others say so."""

    name: str
    """The pod's name."""
    node: str = ""
    """Its node when the run was planned."""
    rank: int
    """Rank of its first process."""
    does: SuspectDoes
    """Computes: its script takes CPU time. Stands: it takes none, and waits for no rank. SaysNothing: it reports no
    standstill. NotHeard: no report came lately."""


class Straggler(TolerantModel):
    """A member that works for much longer in each step than the others, which wait for it."""

    name: str
    """The pod's name."""
    node: str = ""
    """Its node when the run was planned."""
    rank: int
    """Rank of its first process."""
    own_percent: int
    """The part of the time of its steps in which its slowest process works itself, or waits for its data."""
    others_percent: int
    """The median of the same of the other members."""
    data_percent: int | None = None
    """The part in which it waits for its data, if it tells."""
    since: datetime
    """Since when it is slow."""
    named: bool = False
    """Whether it has been slow for a minute. Then Progressing and an event name it."""
    heard_time: datetime | None = None
    """When its report last said so."""


class TrainingProgress(TolerantModel):
    """Where training stands, as the run's rank 0 reported it while it trained, or another member while rank 0 is
    silent."""

    run: int
    """The run that it reported about."""
    rank: int = 0
    """The rank that reported it: another one than 0 while rank 0 is silent."""
    step: int
    """Optimizer steps done."""
    epoch: int | None = None
    """Epochs finished; absent if the script counts none."""
    step_time: datetime | None = None
    """When rank 0 first reported this step; absent if an older operator did not record it."""
    phase: TrainingPhase | None = None
    """What its trainer is busy with; absent if this operator does not know the word."""
    phase_time: datetime | None = None
    """When rank 0 first reported this phase, after another one."""
    handover_act: MoveAct | None = None
    """How far rank 0 is in a live hand-over that is offered to it."""
    began_time: datetime | None = None
    """Time of the first reported step since the members last restarted."""
    seconds_per_step: float | None = None
    """Seconds from one step to the next, over the last seconds of training; absent before the run has made two."""
    samples_per_second: float | None = None
    """Samples per second of all ranks together, over the last seconds; absent if they had no step."""
    data_wait_percent: int | None = None
    """The part of its steps in which rank 0 waits for a batch of the session's loader."""
    own_percent: int | None = None
    """The part of its steps in which rank 0 waits for no other rank."""
    paused_seconds: int | None = None
    """Seconds in which training paused between two steps since the newest commit, as for evaluations; absent if it made
    steps all the time."""
    storage_failing_since: datetime | None = None
    """When the first of the saves failed that have failed in a row; absent if the newest one succeeded."""
    storage_why: str = ""
    """Why the newest of them failed."""
    percent: int | None = None
    """How much of the training is done; absent where its end is not known."""
    remaining_seconds: int | None = None
    """An estimate of the seconds to the end of the training."""
    death_costs: str = ""
    """What the death of any one member costs now; absent while rank 0 does not report it."""
    live: bool | None = None
    """Whether members can change live, between two batches; absent while rank 0 does not report it."""
    live_why: str = ""
    """Why they cannot."""
    required_grace_seconds: int | None = None
    """An estimate of what a save takes that begins now, by what the newest one took; absent before the first one."""
    save_stall_seconds: float | None = None
    """How long training stood still for the newest periodic save."""
    save_seconds: float | None = None
    """How long the newest save took, until it was in the log; absent before the first one."""
    batch: int | None = None
    """Samples in a step of all ranks together, where the script lets its session choose them."""
    efficiency_percent: int | None = None
    """What a sample of such a step wins, beside one in a step of the script's own batch, as measured."""
    values: dict[str, float] = Field(default_factory=dict)
    """The newest numbers that rank 0's script has reported, by name."""
    hang_time: datetime | None = None
    """Since when rank 0 reports that its process hangs; absent while it does not."""
    watched_time: datetime | None = None
    """When rank 0 last reported that its process looks at itself, and so would say that it hangs."""
    may_be_work: bool = False
    """Whether a run that makes no progress may also be at work for long."""
    suspects: tuple[Suspect, ...] = ()
    """Members that the others wait for; absent unless the run hangs and these are one, or all on one node."""
    stragglers: tuple[Straggler, ...] = ()
    """Members that hold up the others while the run advances; absent if there are none, or fewer than three tell."""
    observed_at: datetime
    """When the report came. It is shown once a minute at most."""


class TimeGoesTo(StrEnum):
    """What a job's time goes to while the operator waits for it. A word of a newer operator is read as Held."""

    HELD = "Held"  # no member may be created yet
    NODES = "Nodes"  # a member has no node
    MEMBERS = "Members"  # members have nodes, and start
    RUN = "Run"  # a run is on

    @classmethod
    def _missing_(cls, value: object) -> TimeGoesTo:  # noqa: ARG003
        return cls.HELD


class SecondsSpent(TolerantModel):
    """A job's time by cause. Of the time of runs, rank 0 gives account, or a member that has ended."""

    held: float = 0
    """No run was on, and none of its members might be created: a pause after a failure, or another gate."""
    nodes: float = 0
    """No run was on, and a member had no node."""
    members: float = 0
    """No run was on, and members on their nodes were not Ready."""
    productive: float = 0
    """In finished steps, without those that a later run had to make again."""
    start: float = 0
    """Processes started, imported and looked for each other."""
    restore: float = 0
    """The newest commit was restored."""
    data: float = 0
    """Training waited for a batch of the session's loaders."""
    save: float = 0
    """Training stood still for a save."""
    evaluation: float = 0
    """Passes over an evaluation's loader, and what followed the last step."""
    handover: float = 0
    """Training stood still for a live hand-over."""
    hang: float = 0
    """The process said that it hung."""
    redone: float = 0
    """In steps that a later run did not begin with, and in those that were never finished."""
    unreported: float = 0
    """A run was on, and nobody gave account."""


class OpenAccount(TolerantModel):
    """The newest run that gave account of its time, as far as it is counted."""

    run: int
    """The run."""
    step: int = 0
    """Steps done."""
    productive: float = 0
    """The productive seconds of that run that are counted in `spent`."""
    start: float = 0
    """The same of those in which its processes started, and those of them in which another run went on."""
    restore: float = 0
    """The same of the restore."""
    data: float = 0
    """The same of waits for batches."""
    save: float = 0
    """The same of saves."""
    evaluation: float = 0
    """The same of evaluations."""
    handover: float = 0
    """The same of live hand-overs."""
    hang: float = 0
    """The same of hangs."""
    unfinished: float = 0
    """Seconds since its last step that have no cause yet."""
    unsaved: float = 0
    """Productive seconds whose steps are in no commit yet."""
    unsaved_steps: int = 0
    """These steps."""
    joined: bool = False
    """Whether who told it last joined a living run and knows of no commit since."""
    waited: float | None = None
    """What held, nodes and members in `spent` were together when it stopped training, less the time of its last save.
    What they have more since then is part of the pause before the next run. Absent after a suspension."""


class TimeAccount(TolerantModel):
    """What the job's time went to, since an operator that keeps account has seen it first."""

    goes_to: TimeGoesTo | None = None
    """What the operator waits for; absent while no time counts: suspended, completed or failed."""
    since: datetime | None = None
    """Since when; absent with it."""
    run_seconds: float = 0
    """How long runs were on, before that."""
    spent: SecondsSpent = SecondsSpent()
    """The seconds by cause, up to the newest report and the newest change."""
    open: OpenAccount | None = None
    """The newest run that gave account."""
    before: OpenAccount | None = None
    """The run that handed over to it live, while its leavers may still tell what they did last."""
    restarts: PauseCounts = PauseCounts()
    """The pauses before runs that began with new processes, without unreported seconds."""


class LastSave(TolerantModel):
    """The newest commit that the run's rank 0 reported while it trained."""

    step: int
    """The commit's step."""
    time: datetime
    """When rank 0 learned of it."""
    observed_at: datetime
    """When the report came."""


class Condition(TolerantModel):
    """A standard Kubernetes condition."""

    type: str
    """One of the conditions below."""
    status: str
    """True, False or Unknown."""
    reason: str
    """One of the reasons below."""
    message: str
    """The same in words: whom the job waits for, until when, and what to do."""
    last_transition_time: datetime
    """When `status` changed last."""
    observed_generation: int = 0
    """The generation of the spec that it describes."""


class Scaling(TolerantModel):
    """The size that a job of policy Goodput was given."""

    size: int
    """Members."""
    speedup: float | None = None
    """How much faster than one process it is expected to train; absent if nothing is known."""
    why: str = ""
    """Why this size."""
    since: datetime
    """When the size was chosen."""


class TrainingJobStatus(TolerantModel):
    """The operator's memory of one job. Fields from `current` on are for the operator only."""

    phase: Phase = Phase.PENDING
    """Where the job is in its life, for people."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """The job's conditions now."""
    run: int = 0
    """The newest run number that a plan or an intent used."""
    step: int | None = None
    """Step of the last commit that an outcome reported."""
    epoch: int | None = None
    """Epochs that the trainer which reported that commit had finished when it ended."""
    progress: TrainingProgress | None = None
    """Progress of the current run, as its rank 0 reports it; absent without reports."""
    last_save: LastSave | None = None
    """The newest commit that rank 0 reports; absent if nothing was heard of one."""
    time_account: TimeAccount | None = None
    """What the job's time went to; absent before the first round."""
    result: dict[str, Any] | None = None
    """The script's result, `session.result`, of the newest run that ended with one."""
    steps_lost: int = 0
    """Steps that runs had done and their successors did not begin with, over the job's life, as far as known."""
    steps_in_doubt: int = 0
    """At most this many more steps may be lost: a run in the same pods may have begun with them."""
    runs_unreported: int = 0
    """Runs of which no member reported how far they came. stepsLost may lack steps of each."""
    log_lost: LostLog | None = None
    """Set while the log lacks commits."""
    log_looks: int = 0
    """How often the operator checked again a log that lost commits, since the last new commit."""
    root_problem: RootProblem | None = None
    """Set when a run could not use its root, until the next new commit."""
    exit_seconds: float | None = None
    """Seconds that members took to save and leave when last asked; absent before the first time."""
    replicas: int = 0
    """Living members of the current run, or of a finished job, for the scale subresource."""
    selector: str = ""
    """Selects the job's members, for the scale subresource."""
    how: Takeover | None = None
    """How the newest run took over from the one before it."""
    history: tuple[HistoryEntry, ...] = ()
    """The newest 20 runs, oldest first."""
    earlier_takeovers: EarlierTakeovers = EarlierTakeovers()
    """The runs before those, counted, so that counters of metrics go on."""
    earlier_disruptions: tuple[EarlierDisruption, ...] = ()
    """The same runs by what ended the run before each of them, as far as that was recorded."""
    pauses: PauseCounts = PauseCounts()
    """The pauses of live take-overs, each as the first member reported it."""
    failures: Failures = Failures()
    """Budgets used up so far."""
    start_time: datetime | None = None
    """When members were first wanted since the last suspension. activeDeadlineSeconds counts from here."""
    completion_time: datetime | None = None
    """When the job was Completed."""
    observed_generation: int = 0
    """The generation of the spec that the operator has seen."""
    current: CurrentRun | None = None
    """The current run."""
    previous: PreviousRun | None = None
    """The run before it, while its leaving members have not ended."""
    next: NextRun | None = None
    """The next run. It gets its members while the current one may still train."""
    spares: Spares | None = None
    """Standbys beside the run; absent if there are none."""
    next_member: int = 0
    """The next member number; numbers are never reused."""
    lost: tuple[int, ...] = ()
    """The newest 32 runs that ended without a report: their members can no longer save together."""
    opened: int = 0
    """The highest run number that an outcome saw in the log."""
    commit_seq: int = 0
    """Number in the log of the newest reported commit. A higher one is a new commit, which resets the backoff."""
    withdrawals: Withdrawals | None = None
    """Signals of nodes that were withdrawn."""
    vacate: Vacating | None = None
    """Set while the job has the annotation perdure.dev/vacate=true."""
    saves: SavesAsked | None = None
    """Saves that node signals, or a user, caused."""
    scaling: Scaling | None = None
    """The size by policy Goodput; absent with another."""
    growth: Growth | None = None
    """Set when an attempt at a larger run was given up, until the run has the wanted size."""
    gang: GangRest | None = None
    """Set when some members found no room at a start, until a run is planned."""
    live_refused: LiveRefused | None = None
    """Set when members report that their script cannot be handed over live; applies to their template only."""
    unready: tuple[Unready, ...] = ()
    """Members' nodes that are not Ready, and since when."""
    given_up: datetime | None = None
    """When a node was given up last while an outage went on. The wait for the next one counts from here."""
    template_checked: str = ""
    """Hash of the pod that passed the dry run last. It names the ControllerRevision that keeps its template."""

    def stored(self) -> dict[str, Any]:
        """The JSON that the cluster keeps, and that `kubectl describe` shows: what differs from its default, and what
        people and scripts read. So a default that was written once must stay: it is part of the format."""
        differs = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        always = self.model_dump(mode="json", by_alias=True, exclude_none=True, include=ALWAYS_STORED)
        return differs | {name: _merged(differs.get(name), value) for name, value in always.items() if value != []}

    def find(self, kind: ConditionType) -> Condition | None:
        """The condition of this type, or None."""
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
        """When the job completed or failed; None while it has not."""
        for kind in (ConditionType.COMPLETED, ConditionType.FAILED):
            end = self.find(kind)
            if end is not None and end.status == "True":
                return end.last_transition_time
        return None


ALWAYS_STORED: Final[dict[str, Any]] = {
    **dict.fromkeys(("phase", "conditions", "run", "progress", "replicas", "selector", "observed_generation"), True),
    **dict.fromkeys(("steps_lost", "steps_in_doubt", "runs_unreported"), True),
    "failures": {"code", "infrastructure", "out_of_memory"},
    "history": {"__all__": {"how", "steps_lost", "steps_in_doubt"}},
}
"""What of a status is stored also where it is as by default."""


def _merged(differs: Any, always: Any) -> Any:
    """All of both; what both have is the same."""
    if isinstance(differs, dict) and isinstance(always, dict):
        names = {**differs, **always}
        return {name: _merged(differs.get(name), always.get(name)) for name in names}
    if isinstance(differs, list) and isinstance(always, list):
        return [_merged(one, other) for one, other in zip(differs, always, strict=True)]
    return differs if always is None else always
