"""The stage of a pod's trainer, derived from the state, and its time limit.

`perdure.agent.machine` defines the actions of each stage; docs/agent.md draws the transitions. Stages are not stored: a
stored stage could miss an event, a derived one cannot. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Final

from perdure.agent.handover import asked_at, offered_now, word_of
from perdure.agent.state import ENDS_SIBLINGS, AgentSettings, AgentState, KillTime, Process, TrainerProcesses
from perdure.wire import ErrorKind, ErrorName, ExitKind, Failure
from perdure.wire.report import Standing

SILENT: Final = 1.5
"""Of the time that it may make no progress, before a process that says nothing is killed."""
WAITS: Final = 3
"""The same, of one that waits for other ranks."""


class AgentStage(StrEnum):
    """The stage of the pod's newest trainer."""

    NONE = "none"  # no trainer was started
    STARTED = "started"  # it runs without a report: it imports, or it has no Session
    ATTACHED = "attached"  # it has a Session; its run is not open
    OPENED = "opened"  # its run is open; no step is done
    STEPPED = "stepped"  # it trains
    OFFERED = "offered"  # it trains and has the offer of a live hand-over
    VOTING = "voting"  # it may have handed over already: only the log knows
    CLOSING = "closing"  # exit requested before the first step; rank 0 closes the run if it opened it
    ASKED = "asked"  # asked to save
    COMPLETED = "completed"  # the goal is in the log; the script may still do other work
    IMAGING = "imaging"  # it can save no more: it may leave an image of its state
    EXITING = "exiting"  # each living process has reported its ending
    KILLED = "killed"
    CLEARING = "clearing"  # each process has ended; descendants of them are left
    ENDED = "ended"  # no process is left; the next stage follows at once
    RESCUING = "rescuing"  # only its image is left, which is committed before this pod goes
    HELD = "held"  # no process is left, and the pod waits for a newer assignment
    FINISHED = "finished"  # the outcome is written


LIVING = frozenset(
    {
        AgentStage.STARTED,
        AgentStage.ATTACHED,
        AgentStage.OPENED,
        AgentStage.STEPPED,
        AgentStage.OFFERED,
        AgentStage.VOTING,
        AgentStage.CLOSING,
        AgentStage.ASKED,
        AgentStage.COMPLETED,
        AgentStage.IMAGING,
        AgentStage.EXITING,
    }
)
"""Stages in which the trainer may be asked to save, or killed."""


def stage_of(state: AgentState) -> AgentStage:
    """The trainer's stage."""
    trainer = state.trainer
    if state.finished:
        return AgentStage.FINISHED
    if trainer is None:
        return AgentStage.NONE
    if trainer.alive:
        return _living(state, trainer)
    if trainer.clearing is not None:
        return AgentStage.CLEARING
    if trainer.rescuing is not None and trainer.rescued is None:
        return AgentStage.RESCUING
    return AgentStage.ENDED if state.hold_until is None else AgentStage.HELD


def _living(state: AgentState, trainer: TrainerProcesses) -> AgentStage:
    if trainer.killed:
        return AgentStage.KILLED
    if trainer.completed:
        return AgentStage.COMPLETED
    if all(process.ending for process in trainer.alive):
        return AgentStage.EXITING
    if trainer.imaging:
        return AgentStage.IMAGING
    if trainer.voting:
        return AgentStage.VOTING
    if trainer.request:
        return AgentStage.CLOSING if _without_step(trainer) else AgentStage.ASKED
    newer = offered_now(state, trainer)
    if newer and newer in trainer.offered and word_of(state, newer.run) is None:
        return AgentStage.OFFERED
    if trainer.stepped:
        return AgentStage.STEPPED
    if _without_step(trainer):
        return AgentStage.ATTACHED if trainer.opened_at is None else AgentStage.OPENED
    return AgentStage.STARTED


def _without_step(trainer: TrainerProcesses) -> bool:
    """Whether its Session has nothing to save. Its entry that opens the run may be in flight before its report."""
    return trainer.attached and not trainer.stepped and not trainer.bound


def due(state: AgentState) -> float | None:
    """When the agent has to act even without an event; None if the stage has no limit."""
    stage, trainer = stage_of(state), state.trainer
    if trainer is None:
        return None if state.finished else state.warming_until
    if stage in LIVING:
        limit = limit_of(state, trainer, stage)
        due_at = [limit.at] if limit else []
        if stage is AgentStage.OFFERED and state.current:
            due_at.append(asked_at(state, state.current))
        return min(due_at, default=None)
    if stage in (AgentStage.KILLED, AgentStage.CLEARING):
        return given_up_at(state, trainer)
    if stage is AgentStage.RESCUING:
        return rescued_by(state, trainer)
    return state.hold_until if stage is AgentStage.HELD else None


def limit_of(state: AgentState, trainer: TrainerProcesses, stage: AgentStage) -> KillTime | None:
    """When the trainer is killed and why, by the nearest limit; None if there is none."""
    return min(_limits(state, trainer, stage), key=lambda limit: limit.at, default=None)


def _limits(state: AgentState, trainer: TrainerProcesses, stage: AgentStage) -> Iterator[KillTime]:
    request, settings = trainer.request, state.settings
    if stage is AgentStage.IMAGING and trainer.imaging and any(process.owes_image for process in trainer.alive):
        at = max([trainer.imaging.at, *(process.image_due for process in trainer.alive if process.image_due)])
        yield replace(trainer.imaging, at=min(at, state.shutdown.deadline) if state.shutdown else at)
    elif stage is AgentStage.VOTING:
        if state.shutdown:  # only the pod's own end limits a vote: other parties rely on it
            yield KillTime(state.shutdown.deadline, ExitKind.EXIT_TIMEOUT, "its pod ends, and no word has come")
    elif request:
        yield KillTime(request.deadline, ExitKind.EXIT_TIMEOUT, "it did not save in time")
    elif settings.ends_hangs and stage is not AgentStage.COMPLETED and not state.shutdown:
        yield from _of_hangs(trainer, settings)
    if request and stage is AgentStage.CLOSING:
        since = max(request.at, trainer.opened_at or 0.0)
        reason = "it has not opened its run" if trainer.opened_at is None else "it has finished no step"
        yield KillTime(since + settings.no_step, ExitKind.STOPPED, reason)
    for process in trainer.processes:
        if process.ending:
            # A script may go on after its last epoch; after any other ending it should exit.
            seconds = settings.after_completion if process.completed else settings.teardown
            at = process.exiting_at + seconds
            yield KillTime(at, ExitKind.PEER_LOST, f"rank {process.rank} reported its ending, but does not exit")
        if process.outcome and process.outcome.outcome in ENDS_SIBLINGS:
            at = process.ended_at + settings.siblings
            yield KillTime(at, ExitKind.PEER_LOST, f"rank {process.rank} has ended, but the others have not")


def _of_hangs(trainer: TrainerProcesses, settings: AgentSettings) -> Iterator[KillTime]:
    """When a process is killed that says that it hangs for longer than the job allows, or says nothing any more.

    As soon as it has written its stacks, if it waits for no other rank: these then lose a peer, and leave images. One
    that says nothing, because it is stopped or an extension holds its interpreter, gets half as much time again; one
    that waits gets three times as much, so that whom it waits for is ended first.
    """
    for process in trainer.alive:
        if not process.ending and (hang := _hang_of(process)):
            at, words, stacks = hang
            error = Failure(ErrorKind.EXIT, ErrorName.NO_PROGRESS, f"{words}: {stacks}")
            yield KillTime(at + settings.stacks, ExitKind.FAILED, words, error)


def _hang_of(process: Process) -> tuple[float, str, str] | None:
    """Until when a process may hang, how it is known that it does, and what its log has of it; None if it does not."""
    hangs = process.hangs
    if hangs and hangs.ends and hangs.seconds is not None and process.hangs_since is not None:
        at = process.hangs_since + hangs.seconds * (WAITS if hangs.place is Standing.WAITS_FOR_RANKS else 1)
        words = f"rank {process.rank} made no progress for longer than failure.progressTimeoutSeconds allows"
        return at, words, "its log has the stacks of its threads, if it could write them"
    if process.watched_at is None or process.allowed is None:
        return None
    silent = SILENT * process.allowed
    words = f"rank {process.rank} said nothing for {silent:g} s"
    return process.watched_at + silent, words, "its interpreter was held, or it was stopped; its log may have no stacks"


def rescued_by(state: AgentState, trainer: TrainerProcesses) -> float | None:
    """When the agent stops waiting for the commit of an image; None if there is no such commit."""
    if trainer.rescuing is None or state.shutdown is None:
        return trainer.rescuing
    return min(trainer.rescuing, state.shutdown.deadline)


def given_up_at(state: AgentState, trainer: TrainerProcesses) -> float | None:
    """When the agent stops waiting for processes that survive SIGKILL."""
    if trainer.clearing is None:
        return None
    at = trainer.clearing + state.settings.teardown
    if state.shutdown is None:
        return at
    return min(at, max(trainer.clearing, state.shutdown.deadline) + state.shutdown.margin / 2)
