"""When an epoch loop ends: its limits, the conditions a script has given, and its own word.

Everything is asked once an epoch, after the epoch's body and before its commit, on every rank and without a short
circuit; what one rank finds holds for all. A loop ends with its reasons, and they are recorded with the goal, so that
a finished job knows why it is finished.

Pure but for the script's own conditions, which it calls; the session asks, and shares the answers out.
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
"""What a log entry has room for."""

Condition = Callable[[], Any]


@dataclass(frozen=True)
class Limit:
    """A condition that is a number: `perdure.max_steps(n)`, `perdure.max_seconds(s)`. A part of the goal."""

    name: str
    value: float


@dataclass(frozen=True)
class Goal:
    """How far a loop is to go; the least of what is given ends it. None: no such limit."""

    epochs: int | None = None
    max_steps: int | None = None
    """Optimizer steps, those of all loops and runs together."""
    max_seconds: float | None = None
    """Of training, in all loops and runs together."""

    def limits(self) -> dict[str, float]:
        """The limits that are set, by name; as it is recorded."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def reached(self, *, steps: int, seconds: float) -> list[str]:
        """The limits that are reached, but for the epochs: those are the loop's own business."""
        found = []
        if self.max_steps is not None and steps >= self.max_steps:
            found.append("max_steps")
        if self.max_seconds is not None and seconds >= self.max_seconds:
            found.append("max_seconds")
        return found

    def within_epochs(self, done: int) -> bool:
        """Whether so many epochs are as many as there are to be."""
        return self.epochs is not None and self.epochs <= done

    def beyond(self, done: int) -> Goal:
        """What is left of it behind so many epochs."""
        return self if self.epochs is None else replace(self, epochs=self.epochs - done)

    def within(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a job that has ended with the goal `recorded` has nothing left to do: no limit is raised or gone."""
        now = self.limits()
        before = {name: recorded[name] for name in vars(self) if recorded.get(name) is not None}
        return all(name in now and now[name] <= value for name, value in before.items())


def read_goal(epochs: int | None, stop: Sequence[Condition | Limit], **limits: float | None) -> Goal:
    """The goal of `session.epochs(...)`; of limits given twice the lower counts. UserError for a number below 1."""
    if callable(stop) or not isinstance(stop, Sequence):
        raise UserError(f"epochs: stop is {stop!r}: give a list of conditions, stop=[condition]")
    found = [(name, value) for name, value in [("epochs", epochs), *limits.items()] if value is not None]
    found += [(condition.name, condition.value) for condition in stop if isinstance(condition, Limit)]
    least: dict[str, float] = {}
    for name, value in found:
        least[name] = min(_positive(name, value), least.get(name, value))
    return Goal(_whole(least.get("epochs")), _whole(least.get("max_steps")), least.get("max_seconds"))


def max_steps(count: int) -> Limit:
    """UserError for a number below 1."""
    return Limit("max_steps", _positive("max_steps", count))


def max_seconds(seconds: float) -> Limit:
    """UserError for a number that is not above 0."""
    return Limit("max_seconds", _positive("max_seconds", seconds))


def _positive(name: str, value: float) -> float:
    whole = name != "max_seconds"
    fits = isinstance(value, int) and value >= 1 if whole else isinstance(value, int | float) and value > 0
    if not fits or isinstance(value, bool):
        kind = "a whole number of 1 or more" if whole else "seconds, more than 0"
        raise UserError(f"epochs: {name} is {value!r}: give {kind}")
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


class TrainingClock:
    """Seconds spent in epoch loops, in this run and those before it. Pauses outside."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._before = 0.0
        self._begun: float | None = None

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before + (0.0 if self._begun is None else self._now() - self._begun)

    def resume(self, seconds: float) -> None:
        """Goes on from what earlier runs have spent."""
        self._before = seconds

    def start(self) -> None:
        """A loop begins."""
        self._begun = self._now()

    def stop(self) -> None:
        """The loop is over."""
        self._before, self._begun = self.seconds, None


class Named(NamedTuple):
    """A condition and what it is called when it ends the training."""

    name: str
    condition: Condition


class Stopping:
    """The conditions of one session: some for all its loops, some for the loop that is on."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._always: list[Named] = []
        self._loop: list[Named] = []
        self._requested: list[str] = []
        self._goal = Goal()
        self.clock = TrainingClock(now)

    def when(self, name: str, condition: Condition) -> None:
        """Every loop ends where `condition()` is true. UserError if it cannot be called or the name is taken."""
        if not callable(condition):
            raise UserError(f"stop_when({name!r}): {condition!r} cannot be called: give a function without arguments")
        if name in {named.name for named in self._always}:
            raise UserError(f"stop_when({name!r}): there is a condition of this name already: give each its own")
        self._always.append(Named(_reason(name), condition))

    def ask(self, reason: str) -> None:
        """The loop that is on ends with the epoch that is on."""
        wanted = _reason(reason)
        if wanted not in self._requested:
            self._requested.append(wanted)

    @property
    def names(self) -> list[str]:
        """Of the conditions that may end the loop."""
        return [named.name for named in (*self._always, *self._loop)]

    @property
    def requested(self) -> list[str]:
        """Why this rank's script has asked to stop."""
        return list(self._requested)

    def begin(self, goal: Goal, stop: Sequence[Condition | Limit]) -> None:
        """A loop begins. UserError if nothing could ever end it."""
        self._loop = list(_named(stop))
        self._goal = goal
        if not (goal.limits() or self._loop or self._always):
            raise UserError(
                "epochs(): nothing would ever end this loop: give a number of epochs, max_steps, max_seconds, "
                "stop=[condition], or a condition by perdure.stop_when(session, name, condition)"
            )

    def end(self) -> None:
        """The loop has ended with what was asked for."""
        self._requested.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: an epoch may be resumed in which the script has asked to stop."""
        return {"seconds": self.clock.seconds, "asked": self.requested}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Goes on from there."""
        self.clock.resume(float(saved["seconds"]))
        self.resume_requested(saved["asked"])

    def resume_requested(self, reasons: Sequence[str]) -> None:
        """What this rank itself had asked for: another one's may be in the checkpoint."""
        self._requested = list(reasons)

    @property
    def depends_on_others(self) -> bool:
        """Whether another rank may find a reason to end the loop that this one does not."""
        return bool(self._always or self._loop) or self._goal.max_seconds is not None

    def limits_reached(self, steps: int) -> list[str]:
        """The limits that are reached."""
        return self._goal.reached(steps=steps, seconds=self.clock.seconds)

    def reasons(self, steps: int) -> list[str]:
        """Why this rank would end the loop now; every condition is asked."""
        fired = [named.name for named in (*self._always, *self._loop) if named.condition()]
        return [*self.limits_reached(steps), *fired, *self._requested]


def agreed(reasons: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """What all ranks have found, each reason once; empty: the loop goes on."""
    return tuple(dict.fromkeys(reason for found in reasons for reason in found))[:REASONS]


def _named(stop: Sequence[Condition | Limit]) -> Iterable[Named]:
    for number, condition in enumerate(stop, start=1):
        if isinstance(condition, Limit):
            continue
        if not callable(condition):
            raise UserError(
                f"epochs: stop=[...] holds {condition!r}, which cannot be called: give functions without arguments, "
                f"perdure.max_steps(n) or perdure.max_seconds(s)"
            )
        name = getattr(condition, "__name__", type(condition).__name__)
        yield Named(f"condition {number}" if name == "<lambda>" else _reason(name), condition)


def _reason(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"a reason to stop is {text!r}: give a word or two")
    return text[:REASON_CHARACTERS]
