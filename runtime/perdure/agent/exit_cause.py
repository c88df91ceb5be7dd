"""How a trainer ended, as an Outcome.

A process's own ending report counts most. Without one the agent judges by what it did to the process and by the exit
status. Pure; `perdure.agent.machine` calls it.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

from perdure.agent.state import AgentState, Process, ProcessEnded, TrainerProcesses
from perdure.wire import (
    AttemptRecord,
    CommitRef,
    Completion,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    Leave,
    Outcome,
)

SHELL_SIGNALLED: Final = 128
"""A shell whose child was killed by signal n exits with this plus n."""

KILLED_STATUSES: Final = (-signal.SIGKILL, SHELL_SIGNALLED + signal.SIGKILL)

_PIPE: Final = "a pipe hides the exit status of the command before it: `set -o pipefail`, or start python directly"

_NO_SESSION: Final = (
    "the command of container 0 has exited 0 and never attached a Session, so nothing shows that it has trained: "
    f"{_PIPE}; if it trains without a Session, set completion: ExitCode"
)

_ENDED_EARLY: Final = (
    "the script ended before its Session did: let `for epoch in session.epochs()` run out; "
    f"if it did not end by itself, {_PIPE}"
)

_PRECEDENCE: Final = (
    ExitKind.COMPLETED,
    ExitKind.FAILED,
    ExitKind.ROOT_TAKEN_OVER,
    ExitKind.FENCED,
    ExitKind.HANDED_OVER,
    ExitKind.CHECKPOINTED,
    ExitKind.EXIT_TIMEOUT,
    ExitKind.PEER_LOST,
    ExitKind.HANDOVER_FAILED,
    ExitKind.STOPPED,
)
"""The pod's outcome is the first of its processes' in this order. A goal or a commit in the log stays true whatever
another process did afterwards, and a cause comes before its consequences."""


def judge(trainer: TrainerProcesses, process: Process, end: ProcessEnded) -> Outcome:
    """The outcome of one ended process."""
    ended, error = _judge(trainer, process, end)
    report = process.ending
    return Outcome(
        outcome=ended,
        run=trainer.run,
        rank=process.rank_now,
        step=step_of(process),
        commit=_newest(report.commit if report else None, process.commit),
        opened=max(report.opened if report else 0, process.highest),
        seconds=report.seconds if report else {},
        error=error,
        epoch=_highest(report.epoch if report else None, process.epoch),
        attempt=report.attempt if report else None,
        rescue=process.rescue,
        result=process.result,
        unsaved=process.unsaved,
    )


def _judge(trainer: TrainerProcesses, process: Process, end: ProcessEnded) -> tuple[ExitKind, Failure | None]:
    if process.ending:
        error = process.ending.error
        if process.ending.outcome is ExitKind.FAILED:
            error = _also_out_of_memory(error, end) if error else _failure(end)
        return process.ending.outcome, error
    if trainer.killed:
        return trainer.killed.outcome, trainer.killed.error
    if process.goal and end.status == 0:
        return ExitKind.COMPLETED, None
    failure = _failure(end)
    if trainer.request and (not process.attached or end.status == 0 or failure.name == "SIGTERM"):
        # Without a Session a save looks like a failure; the run was over for this process in any case.
        return ExitKind.STOPPED, None
    if end.status == 0 and trainer.completion is Completion.EXIT_CODE:
        return ExitKind.COMPLETED, None
    if end.status == 0 and not process.attached and not end.out_of_memory:
        return ExitKind.FAILED, Failure(ErrorKind.EXIT, ErrorName.NO_SESSION, f"{end.tail}{_NO_SESSION}")
    return ExitKind.FAILED, failure


def _failure(end: ProcessEnded) -> Failure:
    """The failure that an exit status means; a shell reports signal n as status 128 + n."""
    if end.out_of_memory:
        tail = "" if end.status in KILLED_STATUSES else end.tail
        return Failure(ErrorKind.SIGNAL, ErrorName.OUT_OF_MEMORY, f"{tail}{end.out_of_memory.words}")
    number = -end.status if end.status < 0 else end.status - SHELL_SIGNALLED
    if number in set(signal.Signals):
        return Failure(ErrorKind.SIGNAL, signal.Signals(number).name, end.tail)
    if end.status == 0:
        return Failure(ErrorKind.EXIT, "0", f"{end.tail}{_ENDED_EARLY}")
    return Failure(ErrorKind.EXIT, str(end.status), end.tail)


def _also_out_of_memory(error: Failure, end: ProcessEnded) -> Failure:
    """The error with a note on the kill: the exception may be its consequence, such as a killed loader worker."""
    return replace(error, tail=f"{error.tail.rstrip()}\n{end.out_of_memory.words}") if end.out_of_memory else error


def pod_outcome(trainer: TrainerProcesses) -> Outcome:
    """The outcome of an ended trainer, over all its processes."""
    outcomes = [process.outcome for process in sorted(trainer.processes, key=_order) if process.outcome]
    speaker = outcomes[0]
    commit = speaker.commit
    for known in (*(outcome.commit for outcome in outcomes), trainer.rescued.commit if trainer.rescued else None):
        commit = _newest(commit, known)
    return replace(
        speaker,
        commit=commit,
        step=max(outcome.step for outcome in outcomes),
        opened=max(outcome.opened for outcome in outcomes),
        epoch=_highest(*(outcome.epoch for outcome in outcomes)),
        attempt=max((one.attempt for one in outcomes if one.attempt), key=_knowledge, default=None),
        rescue=next((outcome.rescue for outcome in outcomes if outcome.rescue), None),
        unsaved=next((outcome.unsaved for outcome in outcomes if outcome.unsaved), None),
        result=next((outcome.result for outcome in outcomes if outcome.result is not None), None),
        seconds=speaker.seconds or next((outcome.seconds for outcome in outcomes if outcome.seconds), {}),
    )


def _knowledge(attempt: AttemptRecord) -> tuple[int, bool, bool]:
    """The order of knowledge: the newest attempt first, then whether its word is known."""
    return attempt.run, attempt.word is not None, attempt.voted


def _order(process: Process) -> tuple[int, bool]:
    """By precedence, code failures before infrastructure failures; then the lowest rank, as sorting is stable."""
    outcome = process.outcome
    if outcome is None or (outcome.outcome is ExitKind.COMPLETED and process.ending is None):
        return len(_PRECEDENCE), False  # an exit status of 0 proves less than another process's report
    return _PRECEDENCE.index(outcome.outcome), outcome.infrastructure


def without_trainer(state: AgentState) -> Outcome:
    """The outcome of a pod that never started a trainer."""
    error = state.shutdown.error if state.shutdown else None
    run = state.current.run if state.current else 0
    rank = 0 if state.current is None or isinstance(state.current, Leave) else state.current.rank
    return Outcome(ExitKind.FAILED if error else ExitKind.STOPPED, run, rank, error=error)


def step_of(process: Process) -> int:
    """The newest finished step, by the process's reports."""
    at_end = process.ending.step if process.ending else 0
    if process.step is not None:
        return max(at_end, process.step)
    return max(at_end, process.commit.step if process.commit else 0)


def _highest(*epochs: int | None) -> int | None:
    return max((epoch for epoch in epochs if epoch is not None), default=None)


def _newest(one: CommitRef | None, other: CommitRef | None) -> CommitRef | None:
    return max((c for c in (one, other) if c), key=lambda commit: commit.seq, default=None)
