"""When an epoch loop ends: its limits, the script's conditions, and calls of `session.stop`.

All conditions are evaluated once an epoch, after its body and before its commit, on every rank and without short
circuit. What one rank finds holds for all. A loop ends with its reasons, which are recorded with the goal, so that a
finished job knows why it is finished.

Pure except for the script's conditions. The session calls it, and exchanges the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from perdure.errors import UserError

BREAK: Final = "break"
"""The reason of a loop that the script has left by `break`."""
REASONS: Final = 8
REASON_CHARACTERS: Final = 100
"""How much a log entry has room for."""

StopCondition = Callable[[], Any]


@dataclass(frozen=True)
class Limit:
    """A condition that is a number, `perdure.max_steps(n)` or `perdure.max_seconds(s)`. It is part of the goal."""

    name: str
    value: float


@dataclass(frozen=True)
class Goal:
    """How far a loop goes: the limit that is reached first ends it. None: no such limit."""

    epochs: int | None = None
    max_steps: int | None = None
    """Optimizer steps, of all loops and runs together."""
    max_seconds: float | None = None
    """Seconds of training, in all loops and runs together."""
    max_progress: float | None = None
    """Samples of the script's own batch that all loops and runs together have won."""

    def limits(self) -> dict[str, float]:
        """The limits that are set, by name, as they are recorded."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def reached(self, *, steps: int, seconds: float, progress: float) -> list[str]:
        """The limits that are reached, except epochs, which the loop counts."""
        found = []
        if self.max_steps is not None and steps >= self.max_steps:
            found.append("max_steps")
        if self.max_seconds is not None and seconds >= self.max_seconds:
            found.append("max_seconds")
        if self.max_progress is not None and progress >= self.max_progress:
            found.append("max_progress")
        return found

    def within_epochs(self, done: int) -> bool:
        """Whether this number of epochs reaches the goal."""
        return self.epochs is not None and self.epochs <= done

    def beyond(self, done: int) -> Goal:
        """The rest of it after this number of epochs."""
        return self if self.epochs is None else replace(self, epochs=self.epochs - done)

    def within(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a job that ended with the goal `recorded` has nothing left to do: no limit was raised or removed."""
        now = self.limits()
        before = {name: recorded[name] for name in vars(self) if recorded.get(name) is not None}
        return all(name in now and now[name] <= value for name, value in before.items())


def read_goal(epochs: int | None, stop: Sequence[StopCondition | Limit], **limits: float | None) -> Goal:
    """The goal of `session.epochs(...)`. If a limit is given twice, the lower one counts. UserError for a number below
    1."""
    if callable(stop) or not isinstance(stop, Sequence):
        raise UserError(f"epochs: stop is {stop!r}: give a list of conditions, stop=[condition]")
    found = [(name, value) for name, value in [("epochs", epochs), *limits.items()] if value is not None]
    found += [(condition.name, condition.value) for condition in stop if isinstance(condition, Limit)]
    least: dict[str, float] = {}
    for name, value in found:
        least[name] = min(_positive(name, value), least.get(name, value))
    whole = {name: _whole(least.get(name)) for name in ("epochs", "max_steps")}
    return Goal(**whole, max_seconds=least.get("max_seconds"), max_progress=least.get("max_progress"))


def max_steps(count: int) -> Limit:
    """Ends a loop at this number of steps, of all runs and loops. UserError for a number below 1."""
    return Limit("max_steps", _positive("max_steps", count))


def max_seconds(seconds: float) -> Limit:
    """Ends a loop after this much training. UserError for a number that is not above 0."""
    return Limit("max_seconds", _positive("max_seconds", seconds))


def _positive(name: str, value: float) -> float:
    unit = {"max_seconds": "seconds", "max_progress": "samples"}.get(name)
    whole = unit is None
    fits = isinstance(value, int) and value >= 1 if whole else isinstance(value, int | float) and value > 0
    if not fits or isinstance(value, bool):
        kind = "a whole number of 1 or more" if whole else f"{unit}, more than 0"
        raise UserError(f"epochs: {name} is {value!r}: give {kind}")
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


class TrainingClock:
    """Seconds spent in epoch loops, in this run and the earlier ones. It pauses outside."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._before = 0.0
        self._begun: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + (0.0 if self._begun is None else self._now() - self._begun)

    def resume(self, seconds: float) -> None:
        """Continues from what earlier runs have spent."""
        self._before = seconds

    def start(self) -> None:
        """A loop begins."""
        self._begun = self._now()

    def stop(self) -> None:
        """The loop is over."""
        self._before, self._begun = self.seconds, None


class NamedCondition(NamedTuple):
    """A condition, and its name as a reason."""

    name: str
    condition: StopCondition


class Stopping:
    """The conditions of one session: for all loops, and for the current loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._always: list[NamedCondition] = []
        self._loop: list[NamedCondition] = []
        self._requested: list[str] = []
        self._goal = Goal()
        self.clock = TrainingClock(now)

    def when(self, name: str, condition: StopCondition) -> None:
        """Ends every loop after the epoch in which `condition()` is true. UserError if it cannot be called or the name
        is taken."""
        if not callable(condition):
            raise UserError(f"stop_when({name!r}): {condition!r} cannot be called: give a function without arguments")
        if name in {named.name for named in self._always}:
            raise UserError(f"stop_when({name!r}): there is a condition of this name already: give each its own")
        self._always.append(NamedCondition(_reason(name), condition))

    def ask(self, reason: str) -> None:
        """Ends the current loop with the current epoch."""
        wanted = _reason(reason)
        if wanted not in self._requested:
            self._requested.append(wanted)

    @property
    def names(self) -> list[str]:
        """Names of the conditions that may end the loop."""
        return [named.name for named in (*self._always, *self._loop)]

    @property
    def requested(self) -> list[str]:
        """Why this rank's script has called `stop`."""
        return list(self._requested)

    def begin(self, goal: Goal, stop: Sequence[StopCondition | Limit]) -> None:
        """A loop begins. UserError if nothing could ever end it."""
        self._loop = list(_named(stop))
        self._goal = goal
        if not (goal.limits() or self._loop or self._always):
            raise UserError(
                "epochs(): nothing would ever end this loop: give a number of epochs, max_steps, max_seconds, "
                "max_progress, stop=[condition], or a condition by perdure.stop_when(session, name, condition)"
            )

    def end(self) -> None:
        """The loop has ended: drops the script's requests."""
        self._requested.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: the script may have called `stop` in an epoch that is resumed."""
        return {"seconds": self.clock.seconds, "asked": self.requested}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores it."""
        self.clock.resume(float(saved["seconds"]))
        self.resume_requested(saved["asked"])

    def resume_requested(self, reasons: Sequence[str]) -> None:
        """Restores this rank's own requests. The checkpoint's may be another rank's."""
        self._requested = list(reasons)

    @property
    def depends_on_others(self) -> bool:
        """Whether another rank may find a reason to end the loop that this one does not."""
        return bool(self._always or self._loop) or self._goal.max_seconds is not None

    def limits_reached(self, steps: int, progress: float = 0.0) -> list[str]:
        """The limits that are reached."""
        return self._goal.reached(steps=steps, seconds=self.clock.seconds, progress=progress)

    def reasons(self, steps: int, progress: float = 0.0) -> list[str]:
        """Why this rank would end the loop now. Evaluates every condition."""
        fired = [named.name for named in (*self._always, *self._loop) if named.condition()]
        return [*self.limits_reached(steps, progress), *fired, *self._requested]


def agreed(reasons: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """What all ranks have found, each reason once; empty: the loop continues."""
    return tuple(dict.fromkeys(reason for found in reasons for reason in found))[:REASONS]


def _named(stop: Sequence[StopCondition | Limit]) -> Iterable[NamedCondition]:
    for number, condition in enumerate(stop, start=1):
        if isinstance(condition, Limit):
            continue
        if not callable(condition):
            raise UserError(
                f"epochs: stop=[...] holds {condition!r}, which cannot be called: give functions without arguments, "
                f"perdure.max_steps(n) or perdure.max_seconds(s)"
            )
        name = getattr(condition, "__name__", type(condition).__name__)
        yield NamedCondition(f"condition {number}" if name == "<lambda>" else _reason(name), condition)


def _reason(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"a reason to stop is {text!r}: give a word or two")
    return text[:REASON_CHARACTERS]
