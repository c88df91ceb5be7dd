"""Less common session calls, as functions of the package: `perdure.gather(session, value)`.

A plain script needs none of them. docs/how-to/index.md lists them all; `perdure` loads each name when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.errors import UserError
from perdure.loop.position.accumulating import Accumulator
from perdure.loop.position.stopping import StopCondition
from perdure.session import exchanging
from perdure.session.core import Core
from perdure.session.description import Description
from perdure.session.session import Session, core_of


@dataclass(frozen=True)
class Progress:
    """Where the training stood at the time of the call."""

    run: int
    """The run's number. It grows with each change of the members, also within one process."""
    epoch: int | None
    """The epoch being trained, counted within its loop; None outside."""
    epoch_resumed: bool
    """Whether an earlier run began the present epoch. Any number of its batches may be left, or none."""
    finished_epochs: int
    """Epochs that are done, of all loops and runs together."""
    remaining: int | None
    """Epochs left of this loop, including the current one; None if their number is not known."""
    batch_index: int
    """Batches of this epoch that an earlier run has handed out, from the loader whose pass is resumed."""
    exhausted: bool
    """Whether some rank has called `step(exhausted=True)`: for scripts with their own samples."""
    save_failures: int
    """How many periodic checkpoints failed in a row; 0 after one that succeeds."""
    samples: float | None
    """Samples that were trained, of all runs together, each counted by what it won in its batch: 1 in a batch of the
    adapting loader's `batch_size`, less in a larger one. A step that a GradScaler has skipped does not count. None
    without a loader with `adapt`."""


def progress(session: Session) -> Progress:
    """The position of the training, and how many saves have failed."""
    core = core_of(session)
    done, goal, checkpointer = core.run.progress, core.loops.goal, core.run.opened_checkpointer
    return Progress(
        run=core.run.settings.run or 0,
        epoch=None if done.epoch is None else done.loop_epochs,
        epoch_resumed=done.epoch_resumed,
        finished_epochs=done.epochs_done,
        remaining=None if goal is None or goal.epochs is None else goal.epochs - done.loop_epochs,
        batch_index=done.batch_index,
        exhausted=core.boundary.exhausted,
        save_failures=checkpointer.failures if checkpointer else 0,
        samples=done.won.samples if done.won.counts else None,
    )


def restore(session: Session) -> None:
    """Restores everything registered from the newest checkpoint, now. Otherwise `epochs()` does it."""
    core_of(session).restore()


def describe(session: Session) -> Description:
    """What the session is about to do: start, end, hooks, loaders, registered objects with sizes, findings.

    A frozen value: print it, or take `.plain()` as JSON. The call is not collective, trains nothing and writes
    nothing. Before `epochs()` it reads the log.

    Raises:
        StorageError: If the store cannot be read.
        UserError: For what opening the run would refuse.
    """
    return core_of(session).describe()


def poll(session: Session) -> None:
    """A place where a long evaluation may be interrupted. All ranks call it equally often.

    After an epoch's last batch, and before its first one, the run leaves here if it was asked to; a resumed run repeats
    that part. Between two steps it leaves only when the time is nearly over.
    """
    core_of(session).boundary.poll()


def should_stop(session: Session) -> bool:
    """Whether to leave the batch loop. Call it last in the loop's body, after `step()`, on all ranks.

    When it returns True everything is saved, it stays True, and the script gets no further batch. The script may use
    the rest of the time to exit. Without this call the next batch raises an exception that ends the script. It is False
    between the batches of one step, and where this process hands its place over to another one.

    Raises:
        UserError: Before `epochs()`.
    """
    return core_of(session).boundary.should_stop()


def exit_requested(session: Session) -> bool:
    """Whether this rank has seen a request to leave. It is a hint: all ranks stop together, at a batch or a `poll`."""
    core = core_of(session)
    core.run.requests.look()
    seen = core.run.requests.seen
    core.boundary.exit_seen = core.boundary.exit_seen or seen
    return seen


def stop_when(session: Session, name: str, condition: StopCondition) -> None:
    """Ends every loop of the script with the epoch after which `condition()` is true on any rank."""
    core_of(session).run.stopping.when(name, condition)


def gather(session: Session, value: Any) -> list[Any]:
    """Each rank's `value`, by rank, on all ranks: numbers, strings, None, lists, mappings; at most 1 MiB as JSON.

    Values go through JSON: tuples come back as lists. Collective: all ranks call it equally often, at the same step.

    Raises:
        UserError: On all ranks, if one of them gives what JSON cannot hold, or they call it at different places.
    """
    core = core_of(session)
    return exchanging.gather(value, _place(core, "gather"), core.run.peers)


def all_reduce(session: Session, value: Any, how: str = "sum") -> Any:
    """Reduces the ranks' values to one, on all ranks: their "sum", "mean", "min" or "max".

    `value` is a number, or a list, mapping or tensor of numbers, of one form on all ranks and at most 1 MiB as JSON.
    The result has that form; a tensor keeps its shape, dtype and device (the mean of integers has torch's default
    dtype). Sums are rounded once. Collective, with the errors of `gather`.
    """
    core = core_of(session)
    return exchanging.all_reduce(value, how, _place(core, "all_reduce"), core.run.peers)


def accumulator(session: Session, name: str = "sums") -> Accumulator:
    """Sums over all ranks and all runs of this training; no sample is lost or counted twice.

    `scores.add(loss=2.5, n=16)` adds on this rank. `scores.sum()` returns the sums by name and starts again at 0. The
    same name gives the same accumulator.

    Raises:
        UserError: For a name that is empty or no string.
    """
    if not isinstance(name, str) or not name:
        raise UserError(f"accumulator({name!r}): give a name")
    core = core_of(session)

    def gathered(value: Any, call: str) -> list[Any]:
        if not (core.preview and core.preview.start):
            core.run.checkpointer  # noqa: B018 - raises if nothing is restored
        return exchanging.gather(value, _place(core, call), core.run.peers)

    return Accumulator(name, core.run.progress.sums, gathered)


def report(session: Session, **values: Any) -> None:
    """Reports values of the training: numbers, strings, None, tensors of one element. Not collective.

    Rank 0's are logged in a line; each rank's go to its trace and its `reported` hooks.

    Raises:
        UserError: For any other value.
    """
    core_of(session).run.report(values)


def report_every(session: Session, seconds: float, fn: Callable[[], Mapping[str, Any] | None]) -> None:
    """Calls `fn` every `seconds` seconds, at the next `step()` or `poll`, and reports what it returns.

    It is called once more when this process has done its part: complete, leaving, or failed. Each rank has its own
    clock, so `fn` must not be collective. Random numbers that it draws do not count, and an error is only reported.
    """
    core_of(session).run.reports.add(seconds, fn)


def _place(core: Core, call: str) -> str:
    if core.run.joining:
        raise UserError(f"{call}(): this process joins a living run, and is no rank of it before its first batch")
    return f"{call}() after step {core.run.progress.step}"
