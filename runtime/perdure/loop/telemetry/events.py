"""What happens to one process's part in a run, as frozen values, and the stream that gives them to every sink.

Reporting must never harm. A sink that raises is complained about once, and the others still get the event. Only one end
is reported, the first: by the main thread, the one that watches peers, or the one that listens for requests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.console import warn
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    HandoverEnded,
    Imaged,
    Imaging,
    Resulted,
    SaveFailed,
    SessionOpened,
    TookOver,
    Voting,
)
from perdure.wire.report import TrainerPhase


@dataclass(frozen=True)
class Resumed:
    """Everything registered is restored from the newest commit, or fresh."""

    step: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each part of that took since the process was started."""


@dataclass(frozen=True)
class Stepped:
    """One more optimizer step is done."""

    step: int
    epoch: int
    """Finished epochs."""
    samples: Sequence[int] = ()
    """The ids of the samples it used, if a loader of the session has handed them out."""
    alone: bool = False
    """Whether this rank had lost another one before it, so that other ranks may not have done it."""


@dataclass(frozen=True)
class Evaluating:
    """This run has used batches of an evaluation, and made no step yet: there is something to save."""

    step: int
    epoch: int
    """Finished epochs."""


@dataclass(frozen=True)
class PhaseBegan:
    """The script now trains, waits for a save, or evaluates."""

    phase: TrainerPhase


@dataclass(frozen=True)
class SaveWaited:
    """A save is over, as far as the script waits for it."""

    seconds: float


@dataclass(frozen=True)
class HandoverStop:
    """The ranks stand for a live hand-over from here on, or no longer."""

    stands: bool


@dataclass(frozen=True)
class Reported:
    """The script has reported values: what a `reported` hook gets."""

    step: int
    """Optimizer steps done."""
    epoch: int
    """Finished epochs."""
    values: Mapping[str, bool | int | float | str | None]
    """The values, by name."""


@dataclass(frozen=True)
class RequestSeen:
    """This process has noticed a request to save and leave."""

    step: int
    cause: str
    at: float
    """time.time() when it noticed the request."""


@dataclass(frozen=True)
class Leaving:
    """All ranks have agreed to leave after this step; the save comes next."""

    step: int
    cause: str


@dataclass(frozen=True)
class GoalReached:
    """The training is done; its last commit comes next."""

    step: int


@dataclass(frozen=True)
class Measured:
    """Durations of parts, in seconds."""

    seconds: Mapping[str, float] = field(default_factory=dict)


Event = (
    Attached
    | SessionOpened
    | Resumed
    | Stepped
    | Evaluating
    | PhaseBegan
    | SaveWaited
    | HandoverStop
    | CommitDone
    | Reported
    | SaveFailed
    | Resulted
    | RequestSeen
    | Voting
    | TookOver
    | HandoverEnded
    | Leaving
    | GoalReached
    | Measured
    | Imaging
    | Imaged
    | Exiting
)


class Sink(Protocol):
    """Takes events, and ignores those that it does not need."""

    def take(self, event: Event) -> None:
        """Called in the thread in which the event happened. Must not wait."""
        ...


class Events:
    """The stream of one process."""

    def __init__(self, *sinks: Sink, complain: Callable[[str], None] = warn) -> None:
        self._sinks = sinks
        self._complain = complain
        self._failed: set[int] = set()
        self._ending = threading.Lock()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether an end was reported."""
        return self._ended

    def add(self, sink: Sink) -> None:
        """Adds a sink for all later events."""
        self._sinks = (*self._sinks, sink)

    def tell(self, event: Event) -> None:
        """Gives the event to every sink, but only the first end. Raises nothing."""
        if isinstance(event, Exiting) and not self._first_ending():
            return
        for sink in self._sinks:
            try:
                sink.take(event)
            except Exception as error:  # noqa: BLE001 - whatever it is, training matters more
                self._note_failure(sink, error)

    def _first_ending(self) -> bool:
        with self._ending:
            first, self._ended = not self._ended, True
        return first

    def _note_failure(self, sink: Sink, error: Exception) -> None:
        if id(sink) not in self._failed:
            self._failed.add(id(sink))
            with contextlib.suppress(Exception):
                self._complain(f"{type(sink).__name__} cannot pass on what happens, training goes on: {error!r}")
