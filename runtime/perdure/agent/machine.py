"""What the agent does: (state, event, now) -> (state, actions).

An event is first noted in the state (`_note`), then the state converges (`_converge`): what has to happen follows
from what is known, never from the order in which it was learned. So a missed or repeated event does no harm.

Pure: no clock, no files, no processes. `perdure.agent.shell` calls `react` and, when `due` says so, sends a Tick.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import assert_never

from perdure.agent.state import (
    ENDS_SIBLINGS,
    HOLDS_SEAT,
    Action,
    Ask,
    AssignmentRead,
    Cleared,
    Event,
    Finish,
    Kill,
    Limit,
    MarkWarm,
    Process,
    ProcessEnded,
    Reported,
    Say,
    Shutdown,
    SigtermReceived,
    Start,
    State,
    Tick,
    Trainer,
    Unreadable,
)
from perdure.agent.verdict import judge, pod_outcome, without_trainer
from perdure.channel import Attached, Committed, Exiting, Opened, Report, Stepped
from perdure.contract import ErrorKind, ErrorName, ExitKind, Failure, Leave, Outcome, Standby, Train

Noted = tuple[State, list[Action]]


def react(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """The next state, and what to do now, in this order."""
    if state.finished:
        return state, ()
    state, noted = _note(state, event, now)
    state, actions = _converge(state, now)
    return state, (*noted, *actions)


def due(state: State) -> float | None:
    """When something has to happen even if no event comes."""
    if state.finished:
        return None
    trainer = state.trainer
    limit = trainer.limit.at if trainer and trainer.alive and trainer.limit and not trainer.killed else None
    give_up = _give_up(state, trainer) if trainer else None
    return min((at for at in (limit, give_up, state.hold_until) if at is not None), default=None)


# Noting events.


def _note(state: State, event: Event, now: float) -> Noted:
    match event:
        case Tick():
            return state, []
        case AssignmentRead(assignment):
            return _standby(state) if isinstance(assignment, Standby) else _assigned(state, assignment, now)
        case Unreadable(message, unsupported):
            return _unreadable(state, message, unsupported, now)
        case Reported(rank, report):
            return _reported(state, rank, report, now), []
        case ProcessEnded():
            return _process_ended(state, event, now)
        case Cleared():
            return _cleared(state), []
        case SigtermReceived(at):
            return _terminated(state, now if at is None else at)
    assert_never(event)


def _standby(state: State) -> Noted:
    if state.current:
        return state, [Say(f"assignment ignored: standby, but run {state.newest} is in hand")]
    if state.ready:
        return state, []
    return replace(state, ready=True), [MarkWarm(), Say("waiting as a standby")]


def _assigned(state: State, assignment: Train | Leave, now: float) -> Noted:
    if state.shutdown:
        return state, []  # leaving for good
    processes = state.settings.processes
    if isinstance(assignment, Train) and assignment.rank + processes > assignment.world:
        first, world = assignment.rank, assignment.world
        return state, [Say(f"assignment ignored: {processes} processes from rank {first} on exceed world {world}")]
    if assignment.run < state.newest:
        return state, [Say(f"assignment ignored: run {assignment.run} is older than run {state.newest}")]
    if assignment.run == state.newest:
        return _same_run(state, assignment)
    warm: list[Action] = [] if state.ready else [MarkWarm()]
    state = replace(state, current=assignment, first_seen=now, ready=True, hold_until=None)
    return state, [Say(_described(assignment)), *warm]


def _described(assignment: Train | Leave) -> str:
    match assignment:
        case Train(run, rank, world, master):
            return f"assignment: run {run}, rank {rank} of {world}, master {master}"
        case Leave(run):
            return f"assignment: leave, run {run} goes on without this member"
    assert_never(assignment)


def _same_run(state: State, assignment: Train | Leave) -> Noted:
    """A run's plan never changes; only its deadline may come nearer."""
    if state.current is None or assignment == state.current:
        return state, []
    if assignment.seconds < state.current.seconds:
        nearer = replace(state.current, seconds=assignment.seconds)
        return replace(state, current=nearer), [Say(f"run {nearer.run}: now {nearer.seconds} s to save")]
    return state, [Say(f"assignment ignored: run {assignment.run} is known, and a run's assignment never changes")]


def _unreadable(state: State, message: str, unsupported: bool, now: float) -> Noted:
    if not unsupported:
        return state, [Say(f"assignment ignored: {message}")]
    error = Failure(ErrorKind.EXIT, ErrorName.UNSUPPORTED_VERSION, message)
    return _farewell(state, f"unreadable assignment: {message}", error, now)


def _terminated(state: State, began: float) -> Noted:
    return _farewell(state, "the pod is being deleted", None, began)


def _farewell(state: State, cause: str, error: Failure | None, now: float) -> Noted:
    if state.shutdown:
        return state, []
    settings = state.settings
    margin = min(settings.grace_margin, settings.grace / 4)  # a short grace is not eaten up by its margin
    deadline = now + settings.grace - margin
    return replace(state, shutdown=Shutdown(deadline, margin, cause, error)), [Say(f"leaving: {cause}")]


def _reported(state: State, rank: int, report: Report, now: float) -> State:
    trainer = state.trainer
    if trainer is None:
        return state
    for process in trainer.processes:
        if process.rank == rank:
            trainer = _with(trainer, _told(process, report, trainer.run))
    return replace(state, trainer=_relimited(state, trainer, report, now))


def _told(process: Process, report: Report, run: int) -> Process:
    match report:
        case Attached(pid):
            return replace(process, attached=True, pid=pid)
        case Opened(opened, resumed):
            known = replace(process, attached=True, highest=max(process.highest, opened))
            return replace(known, opened=True, commit=resumed or process.commit) if opened == run else known
        case Stepped(step):
            return replace(process, attached=True, opened=True, step=step)
        case Committed(commit):
            return replace(process, commit=commit)
        case Exiting():
            return replace(process, attached=True, ending=report)
    assert_never(report)


def _relimited(state: State, trainer: Trainer, report: Report, now: float) -> Trainer:
    if trainer.killed:
        return trainer
    limit = trainer.limit
    goes_on = isinstance(report, Stepped) or trainer.completed
    if goes_on and trainer.asked is not None and limit and limit.outcome is ExitKind.STOPPED:
        # The request met the first step, and its Session saves after all; or the work was done without one.
        trainer = replace(trainer, limit=_save_limit(trainer.asked))
    if isinstance(report, Exiting):
        # A script may go on after its last epoch; after any other ending it is on its way out.
        completed = report.outcome is ExitKind.COMPLETED
        seconds = state.settings.after_completion if completed else state.settings.teardown
        return _limited(trainer, Limit(now + seconds, ExitKind.PEER_LOST, "it told its ending, but does not exit"))
    return trainer


def _save_limit(deadline: float) -> Limit:
    return Limit(deadline, ExitKind.EXIT_TIMEOUT, "it did not save in time")


def _limited(trainer: Trainer, limit: Limit) -> Trainer:
    return trainer if trainer.limit and trainer.limit.at <= limit.at else replace(trainer, limit=limit)


def _with(trainer: Trainer, process: Process) -> Trainer:
    others = (process if other.rank == process.rank else other for other in trainer.processes)
    return replace(trainer, processes=tuple(others))


def _process_ended(state: State, event: ProcessEnded, now: float) -> Noted:
    trainer = state.trainer
    if trainer is None:
        return state, []
    known = next(process for process in trainer.processes if process.rank == event.rank)
    outcome = judge(trainer, known, event)
    trainer = _with(trainer, replace(known, outcome=outcome))
    say = Say(f"run {trainer.run} rank {event.rank} ended: {_told_outcome(outcome)}")
    if trainer.alive and outcome.outcome in ENDS_SIBLINGS:
        at = now + state.settings.siblings
        trainer = _limited(trainer, Limit(at, ExitKind.PEER_LOST, f"rank {event.rank} has ended, the others go on"))
    if event.left_behind:
        trainer = replace(trainer, clearing=now if trainer.clearing is None else trainer.clearing)
    elif not trainer.alive:
        trainer = replace(trainer, clearing=None)
    return replace(state, trainer=trainer), [say]


def _cleared(state: State) -> State:
    return replace(state, trainer=replace(state.trainer, clearing=None)) if state.trainer else state


def _told_outcome(outcome: Outcome) -> str:
    words = [outcome.outcome.value, f"at step {outcome.step}"]
    if outcome.commit:
        words.append(f"(last commit: step {outcome.commit.step})")
    if outcome.error:
        words.append(f"- {outcome.error.kind} {outcome.error.name}")
    return " ".join(words)


# Converging.


def _converge(state: State, now: float) -> Noted:
    trainer = state.trainer
    if trainer is None:
        return _without_trainer(state)
    if trainer.over:
        return _ended(state, trainer, now)
    give_up = _give_up(state, trainer)
    if give_up is not None and now >= give_up:
        return _given_up(state, trainer)
    return _alive(state, trainer, now) if trainer.alive else (state, [])


def _give_up(state: State, trainer: Trainer) -> float | None:
    """When the agent stops waiting for what SIGKILL does not end."""
    if trainer.clearing is None:
        return None
    at = trainer.clearing + state.settings.teardown
    if state.shutdown is None:
        return at
    return min(at, max(trainer.clearing, state.shutdown.deadline) + state.shutdown.margin / 2)


def _given_up(state: State, trainer: Trainer) -> Noted:
    """Exits in any case: a next run in this pod would meet what the last one has left."""
    for process in trainer.processes:
        if process.outcome is None:
            end = ProcessEnded(process.rank, -signal.SIGKILL)
            trainer = _with(trainer, replace(process, outcome=judge(trainer, process, end)))
    say = Say(f"run {trainer.run}: processes are left that do not end although they were killed: they are given up")
    state, actions = _finish(replace(state, trainer=trainer), pod_outcome(trainer))
    return state, [say, *actions]


def _without_trainer(state: State) -> Noted:
    if state.shutdown or isinstance(state.current, Leave):
        return _finish(state, without_trainer(state))
    return _start(state, state.current) if state.current else (state, [])


def _start(state: State, train: Train) -> Noted:
    ranks = range(train.rank, train.rank + state.settings.processes)
    trainer = Trainer(train.run, tuple(Process(rank) for rank in ranks), state.settings.completion)
    return replace(state, trainer=trainer, hold_until=None), [Start(train)]


def _finish(state: State, outcome: Outcome) -> Noted:
    if state.shutdown and state.shutdown.error and outcome.error is None:
        outcome = replace(outcome, error=state.shutdown.error)
    return replace(state, finished=True), [Say(f"exit: {_told_outcome(outcome)}"), Finish(outcome)]


def _alive(state: State, trainer: Trainer, now: float) -> Noted:
    if trainer.killed:
        return state, []
    trainer, actions = _requested(state, trainer, now)
    limit = trainer.limit
    if limit and now >= limit.at:
        trainer = replace(trainer, killed=True, clearing=now)
        actions = [*actions, Say(f"run {trainer.run} killed: {limit.reason}"), Kill()]
    return replace(state, trainer=trainer), actions


def _requested(state: State, trainer: Trainer, now: float) -> tuple[Trainer, list[Action]]:
    """The trainer as the newest request leaves it: to be killed at once, asked, or asked to be quicker."""
    newer = state.current if state.newest > trainer.run else None
    if newer is None and state.shutdown is None:
        return trainer, []
    if newer and trainer.run in newer.lost and not trainer.completed:
        return _limited(trainer, Limit(now, ExitKind.STOPPED, "its members can no longer save together")), []
    if trainer.attached and not (trainer.opened or trainer.completed):
        return _limited(trainer, Limit(now, ExitKind.STOPPED, "it has not opened its run yet")), []
    wanted = [(state.first_seen + newer.seconds, newer.cause or f"run {newer.run} follows")] if newer else []
    wanted += [(state.shutdown.deadline, state.shutdown.cause)] if state.shutdown else []
    deadline, cause = min(wanted)
    if trainer.asked is not None and trainer.asked <= deadline:
        return trainer, []
    if trainer.completed:
        # There is nothing left to save: a request could only disturb what the script does after its last epoch.
        return _limited(replace(trainer, asked=deadline), _save_limit(deadline)), []
    return _asked(state, trainer, deadline, cause, now)


def _asked(state: State, trainer: Trainer, deadline: float, cause: str, now: float) -> tuple[Trainer, list[Action]]:
    no_step = now + state.settings.no_step
    if trainer.opened and not trainer.stepped and no_step < deadline:
        limit = Limit(no_step, ExitKind.STOPPED, "it has finished no step")
    else:
        limit = _save_limit(deadline)
    again = trainer.asked is not None
    say = Say(f"run {trainer.run} asked to save: {cause}; {max(0, round(deadline - now))} s")
    sessions = {process.rank: process.pid for process in trainer.processes if process.pid}
    ask = Ask(trainer.run, cause, deadline, sessions, again)
    return _limited(replace(trainer, asked=deadline), limit), [say, ask]


def _ended(state: State, trainer: Trainer, now: float) -> Noted:
    """What the agent does when a trainer has ended: the first that applies."""
    outcome = pod_outcome(trainer)
    if outcome.outcome is ExitKind.COMPLETED or state.shutdown:
        return _finish(state, outcome)
    if state.current and state.current.run > trainer.run:
        return _start(state, state.current) if isinstance(state.current, Train) else _finish(state, outcome)
    if outcome.outcome not in HOLDS_SEAT:
        return _finish(state, outcome)
    if state.hold_until is None:
        hold = state.settings.linger
        say = Say(f"run {trainer.run} is over here: holding the seat {hold:g} s for a newer assignment")
        return replace(state, hold_until=now + hold), [say]
    return _finish(state, outcome) if now >= state.hold_until else (state, [])
