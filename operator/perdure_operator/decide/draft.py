"""The value that the policies hand to one another: the snapshot, the next status so far, and the work found so far.

A policy takes a Draft and returns one; it never reads a clock and never changes a value. Only `decide` starts and
finishes drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import Condition, TrainingJobStatus
from perdure_operator.state.decision import Action, Decision, Event
from perdure_operator.state.snapshot import Snapshot

MESSAGE_LENGTH: Final = 4000
"""A condition's message is shown whole by kubectl; what is longer loses its beginning."""

_FOREVER: Final = 10**9
_SOONEST: Final = 0.05


def later(moment: datetime, seconds: float) -> datetime:
    """`moment` + `seconds`, for any number a user may have written."""
    return moment + timedelta(seconds=min(seconds, _FOREVER))


def clock(moment: datetime) -> str:
    """A time as messages show it: seconds, UTC."""
    return moment.strftime("%H:%M:%SZ")


@dataclass(frozen=True)
class Waiting:
    """Why the job does not train now."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Draft:
    """One decision being made."""

    snapshot: Snapshot
    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    wakes: tuple[datetime, ...] = ()
    reasons: tuple[str, ...] = ()
    waiting: Waiting | None = None
    over: bool = False
    """True where no later policy applies."""

    @property
    def now(self) -> datetime:
        """The snapshot's time: the only clock."""
        return self.snapshot.now

    def update(self, **fields: Any) -> Draft:
        """With these fields of the status changed."""
        return replace(self, status=self.status.model_copy(update=fields))

    def act(self, *actions: Action) -> Draft:
        """With these writes added."""
        return replace(self, actions=(*self.actions, *actions))

    def tell(self, reason: Reason, message: str, *, warning: bool = False) -> Draft:
        """With an event, which is also a reason of the plan."""
        event = Event(type="Warning" if warning else "Normal", reason=reason, message=message)
        return replace(self, events=(*self.events, event)).because(message)

    def because(self, text: str) -> Draft:
        """With one more sentence for `explain`."""
        return replace(self, reasons=(*self.reasons, text))

    def wake(self, at: datetime) -> Draft:
        """To be looked at again at that time, unless it is over."""
        return replace(self, wakes=(*self.wakes, at)) if at > self.now else self

    def wait(self, reason: Reason, message: str, until: datetime | None = None) -> Draft:
        """With a reason for not training; the first one given stays."""
        draft = self.wake(until) if until else self
        if draft.waiting:
            return draft
        return replace(draft, waiting=Waiting(reason, message)).because(f"waiting: {reason}: {message}")

    def stop(self) -> Draft:
        """No later policy applies."""
        return replace(self, over=True)

    def condition(self, kind: ConditionType, holds: bool, reason: Reason, message: str) -> Draft:
        """With this condition; its transition time changes only with its status."""
        old = find(self.status, kind)
        value = "True" if holds else "False"
        new = Condition(
            type=kind,
            status=value,
            reason=reason,
            message=message[-MESSAGE_LENGTH:],
            last_transition_time=old.last_transition_time if old and old.status == value else self.now,
            observed_generation=self.snapshot.generation,
        )
        others = [condition for condition in self.status.conditions if condition.type != kind]
        return self.update(conditions=tuple(sorted([*others, new], key=lambda condition: condition.type)))

    def decision(self) -> Decision:
        """What this draft has come to."""
        seconds = [(at - self.now).total_seconds() for at in self.wakes]
        return Decision(
            status=self.status if self.status != self.snapshot.status else None,
            actions=self.actions,
            events=self.events,
            requeue_after=max(min(seconds), _SOONEST) if seconds else None,
            reasons=self.reasons,
        )


def find(status: TrainingJobStatus, kind: ConditionType) -> Condition | None:
    """The condition of this type, if status has it."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def holds(status: TrainingJobStatus, kind: ConditionType) -> bool:
    """Whether the condition is there and True."""
    condition = find(status, kind)
    return condition is not None and condition.status == "True"


def finished_at(status: TrainingJobStatus) -> datetime | None:
    """When the job came to its end; None while it has not."""
    for kind in (ConditionType.COMPLETED, ConditionType.FAILED):
        condition = find(status, kind)
        if condition and condition.status == "True":
            return condition.last_transition_time
    return None
