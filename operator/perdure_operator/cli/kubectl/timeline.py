"""`kubectl perdure timeline` and `explain`: what happened to a job in the order of time, and what it means. Pure.

Status keeps the newest 20 runs; events are the operator's, which the API server keeps for an hour by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
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


class EntryKind(StrEnum):
    """What a line of a timeline is about."""

    START = "start"
    RUN = "run"
    SAVE = "save"
    MEMBER = "member"
    """A member has ended."""
    EVENT = "event"
    END = "end"


class TimelineEntry(Model):
    """One line of a job's timeline."""

    time: datetime
    kind: EntryKind
    what: str
    """`run 2`, the name of a member, `start`, `saved`, `end`, or the reason of an event."""
    details: str
    step: int | None = None
    """The step of a commit that was saved."""
    warning: bool = False


class RunSpan(Model):
    """From when a run became the current one until it was no longer."""

    run: int
    how: Takeover
    """How it took over from the run before it."""
    size: int
    """How many members it has."""
    cause: str = ""
    """Why the run before it ended."""
    began: datetime
    ended: datetime | None = None
    """When the next run became the current one, or the job ended; null while the run is `on`, or if status does not
    say, as before a suspension."""
    on: bool = False
    """Whether it is the current run."""
    pause: float | None = None
    """Seconds for which training stood still before its first batch; null if no member reported it."""
    steps_lost: int = 0
    steps_in_doubt: int = 0


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
    runs: tuple[RunSpan, ...] = ()
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
    runs = tuple(_spans(seen.status))
    return Timeline(namespace=namespace, name=name, entries=tuple(in_order), runs=runs, totals=totals(seen.status))


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
        yield TimelineEntry(time=status.start_time, kind=EntryKind.START, what="start", details="members were wanted")
    for one in status.history:
        if one.time:
            lost = one.steps_lost > 0
            yield TimelineEntry(
                time=one.time, kind=EntryKind.RUN, what=f"run {one.run}", details=_run(one), warning=lost
            )
    for outcome in _outcomes(status):
        if outcome.time:
            yield TimelineEntry(time=outcome.time, kind=EntryKind.MEMBER, what=outcome.name, details=_ended(outcome))
    for step, time in _saves(status).items():
        details = f"by then at the latest: the checkpoint of step {step}"
        yield TimelineEntry(time=time, kind=EntryKind.SAVE, what="saved", details=details, step=step)
    if ended := status.finished_at:
        completed = status.holds(ConditionType.COMPLETED)
        last = status.find(ConditionType.COMPLETED if completed else ConditionType.FAILED)
        words = last.message if last else ""
        yield TimelineEntry(time=ended, kind=EntryKind.END, what="end", details=words, warning=not completed)


def _outcomes(status: TrainingJobStatus) -> tuple[MemberOutcome, ...]:
    left = status.previous.outcomes if status.previous else ()
    return (*(status.current.outcomes if status.current else ()), *left)


def _saves(status: TrainingJobStatus) -> dict[int, datetime]:
    """The commits that status names, by their steps, with the earliest time at which each was known."""
    known = [(one.kept, one.time) for one in status.history]
    known += [(one.commit_step, one.time) for one in _outcomes(status)]
    known += [(status.last_save.step, status.last_save.time)] if status.last_save else []
    found = dict[int, datetime]()
    for step, time in known:
        if step and time:
            found[step] = min(time, found.get(step, time))
    return found


def _spans(status: TrainingJobStatus) -> Iterator[RunSpan]:
    """The runs that history lists, each until the next one."""
    listed = [(one, one.time) for one in status.history if one.time]
    followed = [*listed[1:], None]
    current, over = status.current.run if status.current else None, status.finished_at
    for (one, began), following in zip(listed, followed, strict=True):
        if following is None:
            ended, on = over, over is None and current == one.run
        else:
            entry, time = following
            ended, on = (None if entry.how is Takeover.START else time), False
        yield RunSpan(
            run=one.run,
            how=one.how,
            size=one.size,
            cause=one.cause,
            began=began,
            ended=ended,
            on=on,
            pause=one.pause,
            steps_lost=one.steps_lost,
            steps_in_doubt=one.steps_in_doubt,
        )


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
            warning = raw.get("type") == "Warning"
            yield TimelineEntry(time=time, kind=EntryKind.EVENT, what=what, details=note, warning=warning)


def page(found: Timeline, now: datetime) -> Page:
    """The timeline for people."""
    rows = tuple((clock(one.time, now), "!" if one.warning else "", one.what, one.details) for one in found.entries)
    head = f"{found.namespace}/{found.name}"
    if not rows:
        return (f"{head}: nothing has happened yet, as far as status and events tell.",)
    return Table(("TIME", "", "WHAT", "DETAILS"), rows, title=head), in_words(found.totals), EVENTS_END


def in_words(totals: Totals) -> str:
    """What the runs cost in all, in two sentences."""
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
