"""The value that the policies hand to one another: the snapshot, the next status so far, and the work found so far.

A policy takes a Draft and returns one; it never reads a clock and never changes a value. Only `decide` starts drafts,
names the policy that is at work, and turns the last draft into a Decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from perdure.wire.truncation import shortened
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import Condition, CurrentRun, Intent, NextRun, RunPlan, Spares, TrainingJobStatus
from perdure_operator.state.decision import Action, Decision, JobEvent
from perdure_operator.state.snapshot import Snapshot

MESSAGE_LENGTH: Final = 4000
"""The longest message of a condition, in characters: kubectl shows it in full. A longer one loses its middle."""

WAITING: Final = "waiting: "
"""The beginning of a sentence for `explain` that only repeats the condition Running."""

PAUSE_AT_MOST_SECONDS: Final = 300

_ORDER: Final = {kind.value: place for place, kind in enumerate(ConditionType)}
_FOREVER: Final = 10**9
_SOONEST: Final = 0.05
_MOST_DOUBLINGS: Final = 20
"""A counter may have grown for months: without a bound its power of two would have thousands of digits."""


def later(moment: datetime, seconds: float) -> datetime:
    """`moment` + `seconds`, for any number a user may have written."""
    return moment + timedelta(seconds=max(-_FOREVER, min(seconds, _FOREVER)))


def doubled(since: datetime, times: int) -> datetime:
    """The end of a pause that is 1 s the first time, then twice as long each time, at most PAUSE_AT_MOST_SECONDS."""
    return later(since, doubled_seconds(times, 1, PAUSE_AT_MOST_SECONDS))


def doubled_seconds(times: int, first: int, most: int) -> int:
    """The pause after `times` failed tries (at least one): `first`, then twice as long each time, at most `most`."""
    pause: int = first * 2 ** min(times - 1, _MOST_DOUBLINGS)
    return min(pause, most)


def clock(moment: datetime) -> str:
    """A time as messages show it: seconds, UTC."""
    return moment.astimezone(UTC).strftime("%H:%M:%SZ")


@dataclass(frozen=True)
class Waiting:
    """Why the job does not train now, for people."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Draft:
    """One decision being made."""

    snapshot: Snapshot
    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    wakes: tuple[datetime, ...] = ()
    reasons: tuple[str, ...] = ()
    waiting: Waiting | None = None
    standbys_wait: Waiting | None = None
    """Why the standbys of the next run do not take over now, or are not started, while the job trains."""
    blocked: bool = False
    """True if no member may be created and no run planned in this round."""
    policy: str = ""
    """The policy at work."""

    @property
    def now(self) -> datetime:
        """The snapshot's time: the only clock."""
        return self.snapshot.now

    @property
    def current(self) -> CurrentRun | None:
        """The run that is on."""
        return self.status.current

    @property
    def intent(self) -> Intent | None:
        """Why the run that is on has to end."""
        return self.status.current.intent if self.status.current else None

    @property
    def next_members(self) -> tuple[str, ...]:
        """The names allocated for the next run."""
        return self.status.next.members if self.status.next else ()

    @property
    def spares(self) -> tuple[str, ...]:
        """The names of the standbys beside the run."""
        return self.status.spares.names if self.status.spares else ()

    @property
    def newest_plan(self) -> RunPlan | None:
        """The newest plan that members have."""
        if self.status.next and self.status.next.plan:
            return self.status.next.plan
        return self.status.current.plan if self.status.current else None

    def by(self, policy: str) -> Draft:
        """Set the policy that later writes are attributed to."""
        return self.but(policy=policy)

    def but(self, **fields: Any) -> Draft:
        """A copy with these fields changed.

        dataclasses.replace calls the constructor, which took a quarter of a round.
        """
        new = object.__new__(Draft)
        new.__dict__.update(self.__dict__, **fields)
        return new

    def update(self, **fields: Any) -> Draft:
        """With these fields of the status changed."""
        known = self.status.__dict__
        for name, value in fields.items():
            if known[name] is not value and known[name] != value:
                return self.but(status=self.status.model_copy(update=fields))
        return self

    def update_current(self, **fields: Any) -> Draft:
        """With these fields of the run that is on changed."""
        return self.update(current=self.current.model_copy(update=fields)) if self.current else self

    def allot(self, members: tuple[str, ...]) -> Draft:
        """With these names for the next run."""
        upcoming = self.status.next or NextRun(run=next_run(self.status))
        times = {} if members else {"enough": None, "in_vain_since": None}  # they are about members
        return self.update(next=upcoming.model_copy(update={"members": members, **times}))

    def set_aside(self, names: tuple[str, ...]) -> Draft:
        """Set the names of the spare standbys."""
        row = self.status.spares.replacements if self.status.spares else None
        return self.update(spares=Spares(names=names, replacements=row) if names or row else None)

    def act(self, why: str, *actions: Action) -> Draft:
        """With these writes added, and why."""
        marked = tuple(action.model_copy(update={"policy": self.policy, "why": why}) for action in actions)
        return self.but(actions=(*self.actions, *marked))

    def tell(self, reason: Reason, message: str, *, warning: bool = False) -> Draft:
        """With an event, which is also a reason of the decision."""
        event = JobEvent(type="Warning" if warning else "Normal", reason=reason, message=message)
        return self.but(events=(*self.events, event)).because(message)

    def warn_once(self, kind: ConditionType, reason: Reason, message: str) -> Draft:
        """With a warning if the condition, which has not been changed yet, had another reason."""
        old = self.status.find(kind)
        return self if old and old.reason == reason else self.tell(reason, message, warning=True)

    def because(self, text: str) -> Draft:
        """With one more sentence for `explain`."""
        return self.but(reasons=(*self.reasons, text))

    def wake(self, at: datetime) -> Draft:
        """Schedule another round at that time, unless it has passed."""
        return self.but(wakes=(*self.wakes, at)) if at > self.now else self

    def wait(self, reason: Reason, message: str, until: datetime | None = None) -> Draft:
        """With a reason for not training; the first one given stays."""
        draft = self.wake(until) if until else self
        if draft.waiting:
            return draft
        return draft.but(waiting=Waiting(reason, message)).because(f"{WAITING}{reason}: {message}")

    def block(self, reason: Reason, message: str, until: datetime | None = None) -> Draft:
        """Like `wait`, and nothing is created or planned in this round."""
        return self.wait(reason, message, until).but(blocked=True)

    def condition(self, kind: ConditionType, holds: bool | None, reason: Reason, message: str) -> Draft:
        """With this condition, Unknown for None; its transition time changes only with its status."""
        old = self.status.find(kind)
        value, text = {True: "True", False: "False", None: "Unknown"}[holds], shortened(message, MESSAGE_LENGTH)
        said = (value, reason, text, self.snapshot.generation)
        if old and (old.status, old.reason, old.message, old.observed_generation) == said:
            return self
        new = Condition(
            type=kind,
            status=value,
            reason=reason,
            message=text,
            last_transition_time=old.last_transition_time if old and old.status == value else self.now,
            observed_generation=self.snapshot.generation,
        )
        others = [condition for condition in self.status.conditions if condition.type != kind]
        return self.update(conditions=tuple(sorted([*others, new], key=_weight)))

    def without(self, kind: ConditionType) -> Draft:
        """Without this condition: it does not apply any more."""
        left = tuple(one for one in self.status.conditions if one.type != kind)
        return self if left == self.status.conditions else self.update(conditions=left)

    def finish(self, kind: ConditionType, reason: Reason, message: str) -> Draft:
        """With the job Completed or Failed for good: no run is current and none follows."""
        draft = self.update(current=None, previous=None, next=None, spares=None).condition(kind, True, reason, message)
        return draft.tell(reason, message, warning=kind is ConditionType.FAILED)

    def decision(self) -> Decision:
        """The decision that this draft has become."""
        seconds = [(at - self.now).total_seconds() for at in self.wakes]
        return Decision(
            status=self.status if self.status != self.snapshot.status else None,
            actions=self.actions,
            events=self.events,
            requeue_after=max(min(seconds), _SOONEST) if seconds else None,
            reasons=self.reasons,
        )


def _weight(condition: Condition) -> tuple[int, str]:
    """A sort key in the order of ConditionType: what people look for comes first."""
    return _ORDER.get(condition.type, len(_ORDER)), condition.type


def next_run(status: TrainingJobStatus) -> int:
    """A run number above all that were used or seen in the log."""
    return max(status.run, status.opened) + 1
