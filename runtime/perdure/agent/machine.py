"""The agent's state machine: (state, event, now) -> (state, actions).

`_note` records an event in the state; `_converge` then acts by the trainer's stage, never by the order of events. So a
missed or repeated event does no harm. docs/agent.md draws the transitions; a test covers all of them.

Pure: no clock, no files, no processes. `perdure.agent.shell` calls `react` and, when `stage.due` says so, sends a Tick.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final, assert_never

from perdure.agent import handover
from perdure.agent.exit_cause import judge, pod_outcome, step_of, without_trainer
from perdure.agent.stage import AgentStage, given_up_at, limit_of, rescued_by, stage_of
from perdure.agent.state import (
    HOLDS_SEAT,
    Action,
    AgentState,
    Ask,
    AskForSave,
    AssignmentRead,
    Cleared,
    CommitImage,
    Event,
    Finish,
    ForgetImages,
    Kill,
    KillTime,
    MakesWay,
    MarkWarm,
    PrintLine,
    Process,
    ProcessEnded,
    ReportReceived,
    Requested,
    Rescued,
    Shutdown,
    SigtermReceived,
    Start,
    Tick,
    TrainerProcesses,
    Unreadable,
    Warmed,
)
from perdure.wire import (
    BEGINNINGS_KEPT,
    HANDOVERS_KEPT,
    Beginning,
    CommitRef,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    HandoverWord,
    Leave,
    Outcome,
    Rescue,
    SkippedCommit,
    Standby,
    Train,
    Unsaved,
)
from perdure.wire.account import merged
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    Figures,
    HandoverEnded,
    Hangs,
    Imaged,
    Imaging,
    Resulted,
    SaveFailed,
    SessionOpened,
    StepDone,
    TookOver,
    TrainerReport,
    Voting,
    Watched,
)

Noted = tuple[AgentState, list[Action]]

IMAGE_BYTES_PER_SECOND: Final = 200e6
"""A lower bound of memory speed, for the deadline of an image that is being written."""
LOST: Final = "its members can no longer save together"


def react(state: AgentState, event: Event, now: float) -> tuple[AgentState, tuple[Action, ...]]:
    """The next state, and the actions in order."""
    if state.finished:
        return state, ()
    state, noted = _note(state, event, now)
    state, actions = _converge(state, now)
    return state, (*noted, *actions)


# Noting events.


def _note(state: AgentState, event: Event, now: float) -> Noted:
    match event:
        case Tick():
            return state, []
        case AssignmentRead(assignment):
            return _standby(state) if isinstance(assignment, Standby) else _assigned(state, assignment, now)
        case Unreadable(message, unsupported):
            return _unreadable(state, message, unsupported, now)
        case ReportReceived(rank, report):
            return _reported(state, rank, report, now)
        case SigtermReceived(at):
            return _deleted(state, now if at is None else at)
        case Warmed():
            return _warmed(state)
        case MakesWay() | ProcessEnded() | Cleared() | Rescued():
            return _of_the_end(state, event, now)
    assert_never(event)


def _of_the_end(state: AgentState, event: MakesWay | ProcessEnded | Cleared | Rescued, now: float) -> Noted:
    match event:
        case MakesWay(rank, why_not):
            return _makes_way(state, rank, why_not)
        case ProcessEnded():
            return _process_ended(state, event, now)
        case Cleared():
            return _cleared(state), []
        case Rescued():
            return _rescued(state, event)


def _warmed(state: AgentState) -> Noted:
    """The launcher is warm. A member is Ready once it has also read an assignment."""
    warm: list[Action] = [MarkWarm()] if state.ready and state.warming_until is not None else []
    return replace(state, warming_until=None), warm


def _standby(state: AgentState) -> Noted:
    if state.current:
        return state, [PrintLine(f"assignment ignored: standby, but this pod already has run {state.newest}")]
    if state.ready:
        return state, []
    state, warm = _made_ready(state)
    return state, [*warm, PrintLine("waiting as a standby")]


def _made_ready(state: AgentState) -> Noted:
    warm: list[Action] = [MarkWarm()] if state.warming_until is None and not state.ready else []
    return replace(state, ready=True), warm


def _assigned(state: AgentState, assignment: Train | Leave, now: float) -> Noted:
    if state.shutdown:
        return state, []  # ends, whatever comes
    processes = state.settings.processes
    if isinstance(assignment, Train) and assignment.rank + processes > assignment.world:
        first, world = assignment.rank, assignment.world
        return state, [
            PrintLine(f"assignment ignored: {processes} processes from rank {first} on exceed world {world}")
        ]
    if assignment.run < state.newest:
        return state, [PrintLine(f"assignment ignored: run {assignment.run} is older than run {state.newest}")]
    if assignment.run == state.newest:
        return _same_run(state, assignment)
    state, warm = _made_ready(state)
    state = replace(state, current=assignment, first_seen=now, hold_until=None)
    return state, [PrintLine(_described(assignment)), *warm]


def _described(assignment: Train | Leave) -> str:
    match assignment:
        case Train(run, rank, world, master):
            return f"assignment: run {run}, rank {rank} of {world}, master {master}"
        case Leave(run):
            return f"assignment: leave, run {run} goes on without this member"
    assert_never(assignment)


def _same_run(state: AgentState, assignment: Train | Leave) -> Noted:
    """A run's assignment never changes, except for a nearer deadline and new requests for a save."""
    if state.current is None or assignment == state.current:
        return state, []
    if isinstance(assignment, Train) and isinstance(state.current, Train) and assignment.save != state.current.save:
        saves = max(assignment.save, state.current.save)  # a lower number is no new request
        return _same_run(replace(state, current=replace(state.current, save=saves)), replace(assignment, save=saves))
    if assignment.seconds < state.current.seconds:
        nearer = replace(state.current, seconds=assignment.seconds)
        return replace(state, current=nearer), [PrintLine(f"run {nearer.run}: now {nearer.seconds} s to save")]
    return state, [
        PrintLine(f"assignment ignored: run {assignment.run} is known, and a run's assignment never changes")
    ]


def _unreadable(state: AgentState, message: str, unsupported: bool, now: float) -> Noted:
    if not unsupported:
        return state, [PrintLine(f"assignment ignored: {message}")]
    error = Failure(ErrorKind.EXIT, ErrorName.UNSUPPORTED_VERSION, message)
    return _shut_down(state, f"unreadable assignment: {message}", error, now)


def _deleted(state: AgentState, began: float) -> Noted:
    return _shut_down(state, "the pod is being deleted", None, began)


def _shut_down(state: AgentState, cause: str, error: Failure | None, now: float) -> Noted:
    if state.shutdown:
        return state, []
    settings = state.settings
    margin = min(settings.grace_margin, settings.grace / 4)  # leave time to save in a short grace period
    deadline = now + settings.grace - margin
    return replace(state, shutdown=Shutdown(deadline, margin, cause, error)), [PrintLine(f"leaving: {cause}")]


def _reported(state: AgentState, rank: int, report: TrainerReport, now: float) -> Noted:
    trainer = state.trainer
    if trainer is None:
        return state, []
    for process in trainer.processes:
        if process.rank == rank and process.outcome is None:
            trainer = _with(trainer, _after(process, trainer.run, report, now))
            if rank == trainer.processes[0].rank and isinstance(report, Figures | Exiting):
                state = _of_accounts(state, report, now)
            state, actions = handover.noted(replace(state, trainer=trainer), trainer, report)
            state, more = _of_images(state, process, report)
            return _begun(state, trainer.run, report), [*actions, *more]
    return state, []


def _of_accounts(state: AgentState, report: Figures | Exiting, now: float) -> AgentState:
    if not report.accounts:
        return state
    accounts_at = None if isinstance(report, Exiting) else now
    return replace(state, accounts=merged(state.accounts, report.accounts), accounts_at=accounts_at)


def _after_news(process: Process, report: Figures | Hangs | Watched, now: float) -> Process:
    """What is passed on to the operator; a hang may end the trainer."""
    if isinstance(report, Watched):
        return replace(process, watched_at=now, allowed=report.allowed)
    if isinstance(report, Figures):
        return replace(process, figures=report)
    if report.seconds is None:
        return replace(process, hangs=None, hangs_since=None)
    if process.hangs and process.hangs.ends and not report.ends:
        return process  # the log's limit is over, too
    return replace(process, hangs=report, hangs_since=now - report.seconds)


def _after(process: Process, run: int, report: TrainerReport, now: float) -> Process:
    opened_at = now if process.opened_at is None else process.opened_at
    match report:
        case Attached(pid, live, why, images):
            return replace(process, attached=True, pid=pid, live=live, live_why=why, images=images)
        case SessionOpened(opened, resumed, rescued, of):
            rescue = Rescue(opened, rescued, of) if rescued else process.rescue
            known = replace(process, attached=True, highest=max(process.highest, opened), rescue=rescue)
            return replace(known, opened_at=opened_at, commit=resumed or process.commit) if opened == run else known
        case StepDone(step, epoch):
            return replace(process, attached=True, opened_at=opened_at, step=step, epoch=epoch)
        case CommitDone() | SaveFailed() | Resulted():
            return _after_save(process, report, now)
        case Figures() | Hangs() | Watched():
            return _after_news(process, report, now)
        case Exiting():
            known = replace(process, attached=True, ending=report, exiting_at=now)
            return replace(known, opened_at=opened_at) if report.opened == run else known
        case TookOver(taken, _, _, step):
            known = replace(process, attached=True, highest=max(process.highest, taken), step=step)
            return replace(known, opened_at=opened_at, took_over=report)
        case Voting() | HandoverEnded():
            return replace(process, attached=True)
        case Imaging() | Imaged():
            return _after_image(process, report, now)
    assert_never(report)


def _begun(state: AgentState, run: int, report: TrainerReport) -> AgentState:
    """Record where a run began, by the first report of its processes."""
    if not isinstance(report, SessionOpened) or report.run != run or report.step is None:
        return state
    if any(one.run == run for one in state.begun):
        return state
    begun = (*state.begun, Beginning(run, report.step, *state.stood))[-BEGINNINGS_KEPT:]
    if (behind := report.behind) is None:
        return replace(state, begun=begun)
    why = f"commit {behind.seq} of step {behind.step}: {report.behind_why}"
    return replace(state, begun=begun, skipped_commit=SkippedCommit(run, max(0, behind.step - report.step), why))


def _after_save(process: Process, report: CommitDone | SaveFailed | Resulted, now: float) -> Process:
    match report:
        case CommitDone(commit, goal):
            saved = replace(process, commit=commit, committed_at=now, goal=goal)
            return replace(saved, unsaved=None, failing_since=None)
        case SaveFailed(failures, why):
            since = now if process.failing_since is None else process.failing_since
            return replace(process, unsaved=Unsaved(failures, why), failing_since=since)
        case Resulted(result):
            return replace(process, result=result)
    assert_never(report)


def _after_image(process: Process, report: Imaging | Imaged, now: float) -> Process:
    if isinstance(report, Imaging):
        return replace(process, image_due=now + report.size / IMAGE_BYTES_PER_SECOND)
    return replace(process, imaged=report)


def _of_images(state: AgentState, process: Process, report: TrainerReport) -> Noted:
    """Forget older images once the run has restored a commit or made a step."""
    match report:
        case SessionOpened(resumed=CommitRef()) | StepDone() if state.keeps_images:
            return replace(state, keeps_images=False, image_of=0), [ForgetImages()]
        case Imaged(step, why):
            left = f"an image of step {step}" if step is not None else f"no image: {why}"
            return state, [PrintLine(f"rank {process.rank} leaves {left}")]
        case _:
            return state, []


def _with(trainer: TrainerProcesses, process: Process) -> TrainerProcesses:
    others = (process if other.rank == process.rank else other for other in trainer.processes)
    return replace(trainer, processes=tuple(others))


def _makes_way(state: AgentState, rank: int, why_not: str) -> Noted:
    trainer = state.trainer
    if trainer is None:
        return state, []
    if why_not:
        if _leaves(state, trainer):
            return state, [PrintLine(f"waiting for the trainer's end: {why_not}")]
        waits = f"run {state.newest} waits for the end of run {trainer.run}: {why_not}"
        return state, [PrintLine(waits)] if isinstance(_newer(state, trainer), Train) else []
    found = [process for process in trainer.alive if process.rank == rank]
    for process in found:
        trainer = _with(trainer, replace(process, makes_way=True))
    return replace(state, trainer=trainer), []


def _process_ended(state: AgentState, event: ProcessEnded, now: float) -> Noted:
    trainer = state.trainer
    if trainer is None:
        return state, []
    known = next(process for process in trainer.processes if process.rank == event.rank)
    outcome = judge(trainer, known, event)
    trainer = _with(trainer, replace(known, outcome=outcome, ended_at=now))
    say = PrintLine(f"run {trainer.run} rank {event.rank} ended: {_described_outcome(outcome)}")
    if event.left_behind:
        trainer = replace(trainer, clearing=now if trainer.clearing is None else trainer.clearing)
    elif not trainer.alive:
        trainer = replace(trainer, clearing=None)
    return replace(state, trainer=trainer), [say]


def _cleared(state: AgentState) -> AgentState:
    return replace(state, trainer=replace(state.trainer, clearing=None)) if state.trainer else state


def _rescued(state: AgentState, event: Rescued) -> Noted:
    trainer = state.trainer
    if trainer is None or trainer.rescuing is None or trainer.rescued:
        return state, []
    made = f"as entry {event.commit.seq}, step {event.commit.step}" if event.commit else ""
    run = trainer.image_of or state.image_of
    words = f"is committed {made}" if made else f"is not committed: {event.why}"
    say = PrintLine(f"the image of run {run} {words}")
    return replace(state, trainer=replace(trainer, rescued=event)), [say]


def _described_outcome(outcome: Outcome) -> str:
    words = [outcome.outcome.value, f"at step {outcome.step}"]
    if outcome.commit:
        words.append(f"(last commit: step {outcome.commit.step})")
    if outcome.error:
        words.append(f"- {outcome.error.kind} {outcome.error.name}")
    return " ".join(words)


# Converging.


def _converge(state: AgentState, now: float) -> Noted:
    """Act by the stage of the trainer."""
    stage, trainer = stage_of(state), state.trainer
    if trainer is None:
        return _without_trainer(state, now)
    match stage:
        case (
            AgentStage.STARTED
            | AgentStage.ATTACHED
            | AgentStage.OPENED
            | AgentStage.STEPPED
            | AgentStage.OFFERED
            | AgentStage.VOTING
            | AgentStage.CLOSING
            | AgentStage.ASKED
            | AgentStage.COMPLETED
            | AgentStage.IMAGING
            | AgentStage.EXITING
        ):
            return _living(state, trainer, now)
        case AgentStage.KILLED | AgentStage.CLEARING:
            return _awaited(state, trainer, now)
        case AgentStage.RESCUING:
            return _waits_for_rescue(state, trainer, now)
        case AgentStage.ENDED | AgentStage.HELD:
            return _ended(state, trainer, now)
        case AgentStage.NONE | AgentStage.FINISHED:
            return state, []
    assert_never(stage)


def _without_trainer(state: AgentState, now: float) -> Noted:
    current = state.current
    if state.shutdown or isinstance(current, Leave):
        return _finish(state, without_trainer(state))
    actions: list[Action] = []
    if state.warming_until is not None and now >= state.warming_until:
        state, actions = _warmed(state)
    if current and state.warming_until is None:
        state, started = _start(state, current)
        actions = [*actions, *started]
    return state, actions


def _start(state: AgentState, train: Train) -> Noted:
    ranks = range(train.rank, train.rank + state.settings.processes)
    joins = train.handover is not None and state.trainer is None
    trainer = TrainerProcesses(
        train.run, tuple(Process(rank) for rank in ranks), state.settings.completion, joins=joins
    )
    keeps_images, stood = state.keeps_images or state.trainer is not None, _stood(state)
    image_of = (state.trainer.image_of if state.trainer else 0) or state.image_of
    train = replace(train, floor=_floor(state, train))
    state = replace(state, trainer=trainer, hold_until=None, keeps_images=keeps_images, stood=stood, image_of=image_of)
    return state, [Start(train)]


def _stood(state: AgentState) -> tuple[int, int]:
    """The last run that trained here or began to train, and its last step."""
    trainer = state.trainer
    trained = trainer and (trainer.stepped or any(one.run == trainer.run for one in state.begun))
    return (trainer.run, max(map(step_of, trainer.processes))) if trainer and trained else state.stood


def _floor(state: AgentState, train: Train) -> CommitRef | None:
    """The newest known commit: the last trainer may have reported one that is newer than the plan."""
    reported = [process.commit for process in state.trainer.processes] if state.trainer else []
    known = [commit for commit in (train.floor, *reported) if commit]
    return max(known, key=lambda commit: commit.seq, default=None)


def _living(state: AgentState, trainer: TrainerProcesses, now: float) -> Noted:
    """Pass on the newest request, then enforce the stage's limit."""
    trainer, actions = _requested(state, trainer, now)
    trainer, asked = _asked_for_save(state, trainer)
    state, actions = replace(state, trainer=trainer), [*actions, *asked]
    if newer := _follows_at_once(state, trainer):
        state, started = _start(state, newer)
        say = PrintLine(f"run {trainer.run} is over in this pod; run {newer.run} starts while its processes shut down")
        return state, [*actions, say, *started]
    if ended := _leaves_at_once(state, trainer):
        state, finished = _finish(replace(state, trainer=ended), pod_outcome(ended))
        return state, [*actions, *finished]
    limit = trainer.killed or limit_of(state, trainer, stage_of(state))
    if limit is None or now < limit.at:
        return state, actions
    if limit.outcome is ExitKind.EXIT_TIMEOUT and (request := _wants_image(state, trainer)):
        why = f"run {trainer.run} has not saved in time"
        trainer, asked = _asked_for_image(trainer, request, replace(limit, at=now + state.settings.image), why)
        return replace(state, trainer=trainer), [*actions, *asked]
    trainer = replace(trainer, killed=limit, clearing=now)
    say = PrintLine(f"run {trainer.run} killed: {limit.reason}")
    return replace(state, trainer=trainer), [*actions, say, Kill()]


def _follows_at_once(state: AgentState, trainer: TrainerProcesses) -> Train | None:
    """The next run if it need not wait for this trainer, which has saved and only has its interpreter to shut down."""
    newer = _newer(state, trainer)
    if not isinstance(newer, Train) or state.shutdown:
        return None
    ended = _all_but_ended(state, trainer, ExitKind.CHECKPOINTED)
    return newer if ended and handover.may_follow(state, ended, pod_outcome(ended), newer) else None


def _leaves_at_once(state: AgentState, trainer: TrainerProcesses) -> TrainerProcesses | None:
    """The trainer, as ended, of a leaving member that need not wait for its interpreter's shutdown.

    A drain and the next run wait for that container, and the shutdown would take CPU time from its successors.
    """
    if not _leaves(state, trainer):
        return None
    return _all_but_ended(state, trainer, ExitKind.CHECKPOINTED, ExitKind.HANDED_OVER)


def _newer(state: AgentState, trainer: TrainerProcesses) -> Train | Leave | None:
    """The assignment that is newer than the trainer's run, or None."""
    return state.current if state.newest > trainer.run else None


def _leaves(state: AgentState, trainer: TrainerProcesses) -> bool:
    """Whether this member ends with the trainer."""
    return state.shutdown is not None or isinstance(_newer(state, trainer), Leave)


def _all_but_ended(state: AgentState, trainer: TrainerProcesses, *kinds: ExitKind) -> TrainerProcesses | None:
    """The trainer as ended, if all its processes end as one of `kinds` and only shut down their interpreters."""
    if trainer.killed or stage_of(state) is not AgentStage.EXITING:
        return None
    if not all(process.makes_way for process in trainer.alive):
        return None
    for process in trainer.alive:
        trainer = _with(trainer, replace(process, outcome=judge(trainer, process, ProcessEnded(process.rank, 0))))
    return trainer if all(one.outcome and one.outcome.outcome in kinds for one in trainer.processes) else None


def _requested(state: AgentState, trainer: TrainerProcesses, now: float) -> tuple[TrainerProcesses, list[Action]]:
    """What a newer run means for the trainer: an offer or a request to end.

    A request asks it to save, shortens its deadline, only sets a limit, or for a lost run kills it at once.
    """
    newer, stage = _newer(state, trainer), stage_of(state)
    is_ending = stage in (AgentStage.COMPLETED, AgentStage.EXITING)
    if newer and stage is not AgentStage.COMPLETED and _lost(trainer, newer):
        return _to_leave_image(state, trainer, newer, now)
    actions: list[Action] = []
    if newer and not is_ending:
        newer, trainer, actions = _offered(state, newer, trainer, now)
    wanted = [(state.first_seen + newer.seconds, newer.cause or f"run {newer.run} follows")] if newer else []
    if state.shutdown and not trainer.voting:  # otherwise it is a request to the run that wins the vote
        wanted.append((state.shutdown.deadline, state.shutdown.cause))
    if not wanted:
        return trainer, actions
    deadline, cause = min(wanted)
    known = trainer.request
    if known and known.deadline <= deadline:
        return trainer, actions
    trainer = replace(trainer, request=Requested(known.at if known else now, deadline))
    if is_ending or (newer and not state.shutdown and _restarts(state, trainer, newer)):
        return trainer, actions  # it is exiting already; a request could only disturb the script
    say = PrintLine(f"run {trainer.run} asked to save: {cause}; {max(0, round(deadline - now))} s")
    sessions = {process.rank: process.pid for process in trainer.processes if process.pid}
    return trainer, [*actions, say, Ask(trainer.origin, cause, deadline, sessions, again=known is not None)]


def _offered(
    state: AgentState, newer: Train | Leave, trainer: TrainerProcesses, now: float
) -> tuple[Train | Leave | None, TrainerProcesses, list[Action]]:
    """The newer run if it is a request to end, the trainer, and the actions."""
    offer, word = handover.offered_now(state, trainer), handover.word_here(state, trainer, newer.run)
    if word is HandoverWord.ABORT:
        return None, trainer, []  # as if it had never been offered
    if word is None and offer and not trainer.request and (trainer.voting or now < handover.asked_at(state, offer)):
        return None, *handover.offer(trainer, offer)
    return newer, trainer, []


def _asked_for_save(state: AgentState, trainer: TrainerProcesses) -> tuple[TrainerProcesses, list[Action]]:
    """Ask the trainer of the newest run to save and train on; a trainer that was asked to leave saves anyway."""
    current = state.current
    if not isinstance(current, Train) or trainer.run != current.run or trainer.request or trainer.completed:
        return trainer, []
    if not current.save or (current.run, current.save) <= trainer.saves:
        return trainer, []
    words = f"run {current.run} is asked to save and train on"
    say = PrintLine(words if trainer.attached else f"{words}: it can once it has a Session, which is needed to save")
    trainer = replace(trainer, saves=(current.run, current.save))
    return trainer, [say, AskForSave(trainer.origin, f"{current.run} {current.save}")]


def _restarts(state: AgentState, trainer: TrainerProcesses, newer: Train | Leave) -> bool:
    """Whether it ends by itself, so that the newer run begins in place."""
    return handover.word_here(state, trainer, newer.run) is HandoverWord.RESTART


def _lost(trainer: TrainerProcesses, newer: Train | Leave) -> bool:
    """Whether the trainer's run is lost. A voting trainer is of one of two runs, so both have to be lost."""
    of = {trainer.run, trainer.voting.run, trainer.voting.next} if trainer.voting else {trainer.run}
    return of <= set(newer.lost)


def _to_leave_image(
    state: AgentState, trainer: TrainerProcesses, newer: Train | Leave, now: float
) -> tuple[TrainerProcesses, list[Action]]:
    """A lost run cannot save: a trainer beyond its last commit leaves an image and is then killed."""
    stands = trainer.stepped or trainer.voting  # a voting newcomer holds the whole state of the older run
    if _is_suspect(newer) or not stands or not any(process.owes_image for process in trainer.alive):
        return _to_be_killed(trainer, now, LOST), []
    if trainer.imaging:
        return trainer, []
    limit = KillTime(now + state.settings.image, ExitKind.STOPPED, LOST)
    return _asked_for_image(trainer, newer, limit, f"run {trainer.run} is lost")


def _wants_image(state: AgentState, trainer: TrainerProcesses) -> Train | Leave | None:
    """The request for which this trainer leaves an image, if its time to save is over and its pod has more.

    The trainer may be healthy: one slow peer, or one with little grace, is enough for a save to fail. The next run in
    this pod begins from the image; a pod that leaves commits it first.
    """
    newer, stage = _newer(state, trainer), stage_of(state)
    if newer is None or _is_suspect(newer) or state.shutdown or stage is not AgentStage.ASKED or not trainer.stepped:
        return None
    return newer if any(process.owes_image for process in trainer.alive) else None


def _asked_for_image(
    trainer: TrainerProcesses, newer: Train | Leave, limit: KillTime, why: str
) -> tuple[TrainerProcesses, list[Action]]:
    """Ask for an image; once it is left, or at the limit, the trainer is killed."""
    say = PrintLine(f"{why}: its trainer is asked for an image of its state")
    sessions = {process.rank: process.pid for process in trainer.processes if process.pid}
    cause = newer.cause or f"run {newer.run} follows"
    return replace(trainer, imaging=limit), [say, Ask(trainer.origin, cause, limit.at, sessions, image=True)]


def _is_suspect(newer: Train | Leave | None) -> bool:
    return isinstance(newer, Leave) and newer.suspect


def _to_be_killed(trainer: TrainerProcesses, now: float, reason: str) -> TrainerProcesses:
    return replace(trainer, killed=KillTime(now, ExitKind.STOPPED, reason))


def _awaited(state: AgentState, trainer: TrainerProcesses, now: float) -> Noted:
    """Wait for killed processes, and give up after a while: the next run in this pod would collide with them."""
    give_up = given_up_at(state, trainer)
    if give_up is None or now < give_up:
        return state, []
    for process in trainer.alive:
        end = ProcessEnded(process.rank, -signal.SIGKILL)
        trainer = _with(trainer, replace(process, outcome=judge(trainer, process, end)))
    say = PrintLine(f"run {trainer.run}: killed processes do not end: the agent no longer waits for them")
    state, actions = _finish(replace(state, trainer=trainer), pod_outcome(trainer))
    return state, [say, *actions]


def _ended(state: AgentState, trainer: TrainerProcesses, now: float) -> Noted:
    """Act on the end of the trainer: the first case that applies."""
    outcome = pod_outcome(trainer)
    if outcome.outcome is ExitKind.COMPLETED:
        return _finish(state, outcome)
    newer = _newer(state, trainer)
    if state.shutdown or (isinstance(newer, Leave) and not handover.keeps_the_state(state, trainer, outcome)):
        return _goes(state, trainer, outcome, now)
    if isinstance(newer, Train) and handover.may_follow(state, trainer, outcome, newer):
        return _start(state, newer)
    if outcome.outcome not in HOLDS_SEAT:
        return _goes(state, trainer, outcome, now)
    if state.hold_until is None:
        linger = state.settings.linger
        say = PrintLine(f"run {trainer.run} is over here: holding the seat {linger:g} s for a newer assignment")
        return replace(state, hold_until=now + linger), [say]
    return _goes(state, trainer, outcome, now) if now >= state.hold_until else (state, [])


def _goes(state: AgentState, trainer: TrainerProcesses, outcome: Outcome, now: float) -> Noted:
    """End the pod, but first commit its image, which may be the only copy of the newest steps.

    That includes an image of an older run from which the trainer did not begin.
    """
    too_late = state.shutdown and now >= state.shutdown.deadline
    run = trainer.image_of or state.image_of
    if not run or trainer.rescuing is not None or too_late or _is_suspect(_newer(state, trainer)):
        return _finish(state, outcome)
    never = handover.ended_by_rescue(state, trainer) if run == trainer.image_of else 0
    trainer = replace(trainer, rescuing=now + state.settings.rescue)
    successor = handover.successor_of(state, trainer, run)
    say = PrintLine(f"run {run} has left an image, which is committed before this pod ends")
    return replace(state, trainer=trainer), [say, CommitImage(run, never, successor)]


def _waits_for_rescue(state: AgentState, trainer: TrainerProcesses, now: float) -> Noted:
    at, suspect = rescued_by(state, trainer), _is_suspect(_newer(state, trainer))
    if not suspect and (at is None or now < at):
        return state, []
    state, said = _rescued(state, Rescued(why="it is suspect" if suspect else "that takes too long"))
    state, actions = _finish(state, pod_outcome(trainer))
    return state, [*said, Kill(), *actions]


def _finish(state: AgentState, outcome: Outcome) -> Noted:
    processes = state.trainer.processes if state.trainer else ()
    why = next((process.live_why for process in processes if process.live_why), "")
    live = False if why else (state.trainer is not None and state.trainer.live) or None
    outcome = replace(outcome, live=live, live_why=why, handovers=state.handovers[-HANDOVERS_KEPT:])
    outcome = replace(outcome, begun=state.begun, skipped_commit=state.skipped_commit, accounts=state.accounts)
    outcome = replace(outcome, attempt=handover.attempt_of(state, outcome.attempt))
    if state.shutdown and state.shutdown.error and outcome.error is None:
        outcome = replace(outcome, error=state.shutdown.error)
    return replace(state, finished=True), [PrintLine(f"exit: {_described_outcome(outcome)}"), Finish(outcome)]
