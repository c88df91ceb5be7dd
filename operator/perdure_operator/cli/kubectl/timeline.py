"""`kubectl perdure timeline` and `explain`: what happened to a job in the order of time, and what it means. Pure.

Status keeps the newest 20 runs; events are the operator's, which the API server keeps for an hour by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from perdure_operator.api.model import Model
from perdure_operator.api.reasons import REASONS, ConditionType, Reason
from perdure_operator.api.status import HistoryEntry, MemberOutcome, Takeover, TrainingJobStatus
from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cli.kubectl.page import Facts, Page, Table, clock
from perdure_operator.cli.kubectl.status_page import seconds
from perdure_operator.cluster.protocol import Json
from perdure_operator.cluster.read import parse

EVENTS_END: Final = "Events of the API server end after an hour by default; status keeps the newest 20 runs."
REFERENCE: Final = (
    "In Perdure's repository, docs/reference.md has all conditions and reasons, docs/signals.md what nodes announce."
)


_HOW: Final = {
    Takeover.START: "began",
    Takeover.LIVE: "took over live",
    Takeover.IN_PLACE: "took over in place",
    Takeover.RECREATE: "took over, all its pods new,",
    Takeover.NEVER: "never took over",
}


class TimelineEntry(Model):
    """One line of a job's timeline."""

    time: datetime
    what: str
    """`run 2`, the name of a member, `start`, `end`, or the reason of an event."""
    details: str
    warning: bool = False


class Totals(Model):
    """What the runs that status knows of cost in all."""

    live: int = 0
    in_place: int = 0
    recreate: int = 0
    pauses: float | None = None
    """Seconds in all, of the moves that reported one; absent if none did."""
    steps_lost: int = 0
    steps_in_doubt: int = 0


class Timeline(Model):
    """A job's entries, oldest first."""

    namespace: str
    name: str
    entries: tuple[TimelineEntry, ...]
    totals: Totals


class Meaning(Model):
    """A condition of a job with what its reason means."""

    condition: str
    status: str
    reason: str
    message: str
    meaning: str = ""
    to_do: str = ""
    ends: str = ""
    """What ends a wait that has no time limit."""


def timeline(seen: JobSeen, events: Iterable[Json]) -> Timeline:
    """The timeline by the job's status and its events, as the API server stores them."""
    found = [*_of_status(seen.status), *_of_events(events)]
    namespace, name = seen.record.key
    in_order = sorted(found, key=lambda one: (one.time, one.what, one.details))
    return Timeline(namespace=namespace, name=name, entries=tuple(in_order), totals=totals(seen.status))


def totals(status: TrainingJobStatus) -> Totals:
    """The runs that history lists, and those before it."""
    earlier, ways = status.earlier_takeovers, [one.how for one in status.history]
    pauses = [one.pause for one in status.history if one.pause is not None]
    return Totals(
        live=earlier.live + ways.count(Takeover.LIVE),
        in_place=earlier.in_place + ways.count(Takeover.IN_PLACE),
        recreate=earlier.recreate + ways.count(Takeover.RECREATE),
        pauses=sum(pauses) if pauses else None,
        steps_lost=status.steps_lost,
        steps_in_doubt=status.steps_in_doubt,
    )


def _of_status(status: TrainingJobStatus) -> Iterator[TimelineEntry]:
    if status.start_time:
        yield TimelineEntry(time=status.start_time, what="start", details="members were wanted")
    for one in status.history:
        if one.time:
            yield TimelineEntry(time=one.time, what=f"run {one.run}", details=_run(one), warning=one.steps_lost > 0)
    outcomes = (*(status.current.outcomes if status.current else ()), *_left(status))
    for outcome in outcomes:
        if outcome.time:
            yield TimelineEntry(time=outcome.time, what=outcome.name, details=_ended(outcome))
    if ended := status.finished_at:
        completed = status.holds(ConditionType.COMPLETED)
        last = status.find(ConditionType.COMPLETED if completed else ConditionType.FAILED)
        yield TimelineEntry(time=ended, what="end", details=last.message if last else "", warning=not completed)


def _left(status: TrainingJobStatus) -> tuple[MemberOutcome, ...]:
    return status.previous.outcomes if status.previous else ()


def _run(one: HistoryEntry) -> str:
    parts = [f"{_HOW.get(one.how, 'took over')} with {one.size} members"]
    parts += [f"because {one.cause}"] if one.cause else []
    parts += [f"no better, because {one.why}"] if one.why else []
    parts += [" ".join(one.changed)] if one.changed and one.how is not Takeover.START else []
    parts += [f"training stood still for {seconds(one.pause)}"] if one.pause is not None else []
    parts += [f"began at step {one.began}"] if one.began is not None else []
    parts += [f"{one.steps_lost} steps lost"] if one.steps_lost else []
    parts += [f"at most {one.steps_in_doubt} steps in doubt"] if one.steps_in_doubt else []
    parts += [f"{one.rescued} steps saved by survivors"] if one.rescued else []
    parts += ["no member reported how far the run before it came"] if one.unreported else []
    return "; ".join(parts)


def _ended(outcome: MemberOutcome) -> str:
    parts = [f"ended: {outcome.outcome or 'no outcome'}"]
    parts += [f"at step {outcome.step} of run {outcome.run}"] if outcome.outcome else []
    parts += [f"last commit of step {outcome.commit_step}"] if outcome.commit_step is not None else []
    parts += [outcome.error_name] if outcome.error_name else []
    return ", ".join(parts)


def _of_events(events: Iterable[Json]) -> Iterator[TimelineEntry]:
    for raw in events:
        time = parse.time(raw.get("eventTime")) or parse.time(raw.get("deprecatedLastTimestamp"))
        if time is not None:
            what, note = str(raw.get("reason") or ""), str(raw.get("note") or "")
            yield TimelineEntry(time=time, what=what, details=note, warning=raw.get("type") == "Warning")


def page(found: Timeline, now: datetime) -> Page:
    """The timeline for people."""
    rows = tuple((clock(one.time, now), "!" if one.warning else "", one.what, one.details) for one in found.entries)
    head = f"{found.namespace}/{found.name}"
    if not rows:
        return (f"{head}: nothing has happened yet, as far as status and events tell.",)
    return Table(("TIME", "", "WHAT", "DETAILS"), rows, title=head), _sum(found.totals), EVENTS_END


def _sum(totals: Totals) -> str:
    ways = ((totals.live, "live"), (totals.in_place, "in place"), (totals.recreate, "recreated"))
    moves = ", ".join(f"{count} {way}" for count, way in ways if count) or "none"
    paused = f"; training stood still for {seconds(totals.pauses)} in those that reported it" if totals.pauses else ""
    doubt = f", at most {totals.steps_in_doubt} more in doubt" if totals.steps_in_doubt else ""
    return f"Moves: {moves}{paused}. Steps lost: {totals.steps_lost}{doubt}."


def explain(status: TrainingJobStatus) -> list[Meaning]:
    """Each condition of the job with what its reason means and what to do."""
    found = []
    for one in status.conditions:
        known = REASONS.get(Reason(one.reason)) if one.reason in set(Reason) else None
        details = {"meaning": known.meaning, "to_do": known.remedy, "ends": known.ends} if known else {}
        words = {"condition": one.type, "status": one.status, "reason": one.reason, "message": one.message}
        found.append(Meaning(**words, **details))
    return found


def page_of_meanings(meanings: Sequence[Meaning]) -> Page:
    """The explanation for people."""
    if not meanings:
        return "No operator has looked at this job yet: is one running?", REFERENCE
    parts = [
        Facts(
            (
                (one.condition, f"{one.status}, {one.reason}"),
                ("Message", one.message),
                ("Meaning", one.meaning or "only a newer version of kubectl perdure knows this reason"),
                ("To do", one.to_do),
                ("Ends", one.ends),
            )
        )
        for one in meanings
    ]
    return *parts, REFERENCE
