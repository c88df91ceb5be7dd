"""Decides when a process hangs: when it has made no progress for longer than its phase allows. Pure.

`perdure.loop.hang_watch` looks every few seconds, so the step time is learned from the looks, and a step pays nothing.
A process that was stopped, or whose machine was, looks late: then it gets its time again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from perdure.wire.phase_limits import longest_standstill
from perdure.wire.report import TrainerPhase

LOOK_SECONDS: Final = 5.0
"""The time between two looks."""
LOOKS_IN_LIMIT: Final = 20
"""Looks during a limit that is given, if that makes them more frequent."""
LEAST_LOOK_SECONDS: Final = 0.05
LATE_LOOKS: Final = 4
"""A look that comes after the time of so many is late."""
AGAIN_SECONDS: Final = 60.0
"""A process that still hangs is looked at again after so long: it may stand elsewhere by then."""


@dataclass(frozen=True)
class HowFar:
    """How far a process is. Any change is progress."""

    phase: TrainerPhase
    step: int
    """Optimizer steps done."""
    others: int = 0
    """Batches, polls and epochs: whatever else a script does with its session."""
    run: int = 0
    """The run; a live hand-over changes it, and a new rank may have to compile its first step."""


@dataclass(frozen=True)
class Hang:
    """A process hangs, or still does."""

    seconds: float
    """How long it has made no progress."""
    allowed: float
    """How long it may."""
    mark: HowFar


@dataclass(frozen=True)
class HangOver:
    """It makes progress again."""

    seconds: float
    """How long it had made none."""


class HangDetector:
    """Of one process. The caller passes the time, of a clock that stands still while the machine is suspended."""

    def __init__(self, given: float | None = None, training: float | None = None, again: float = inf) -> None:
        """`given` replaces the seconds of all phases, as PERDURE_HANG_SECONDS does; `training` those for training, as
        `failure.progressTimeoutSeconds` does. A hang is news again after each `again` seconds."""
        self._given, self._training, self._again = given, training, again
        self._mark: HowFar | None = None
        self._since = self._looked = 0.0
        self._training_since: float | None = None
        """When the newest step was seen, if the process has trained ever since."""
        self._step_seconds: float | None = None
        self._hangs = False
        self._told = 0.0
        """When that was news the last time."""

    @property
    def interval(self) -> float:
        """Seconds until the next look."""
        least = min((one for one in (self._given, self._training) if one is not None), default=None)
        if least is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(LEAST_LOOK_SECONDS, least / LOOKS_IN_LIMIT))

    @property
    def allowed(self) -> float:
        """Seconds without progress that mean nothing now."""
        phase = self._mark.phase if self._mark else None
        return longest_standstill(phase, self._step_seconds, self._given, self._training)

    def look(self, mark: HowFar, now: float) -> Hang | HangOver | None:
        """The news at this look."""
        late = now - self._looked > LATE_LOOKS * self.interval
        self._looked = now
        if mark != self._mark:
            over = HangOver(now - self._since) if self._hangs else None
            self._learn(mark, now)
            self._mark, self._since, self._hangs = mark, now, False
            return over
        if self._hangs and now - self._told < self._again:
            return None
        if late and not self._hangs:
            self._since = now
        if now - self._since < self.allowed:
            return None
        self._hangs, self._told = True, now
        return Hang(now - self._since, self.allowed, mark)

    def _learn(self, mark: HowFar, now: float) -> None:
        """What a step takes without saves and evaluations."""
        before = self._mark
        if before is not None and before.run != mark.run:
            self._step_seconds = self._training_since = None
        if mark.phase is not TrainerPhase.TRAINING:
            self._training_since = None
        elif before is None or before.step != mark.step:
            if before is not None and self._training_since is not None:
                self._step_seconds = (now - self._training_since) / max(1, mark.step - before.step)
            self._training_since = now
