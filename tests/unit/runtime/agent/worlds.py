"""Everything that can happen to one agent, in every order: a small world explored to its end.

A state is kept with its times relative to now, so that what differs only in when it happened is one state. Time passes
only up to the next moment at which the agent has to do something: in between it does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, TypeVar

from perdure.agent.machine import react
from perdure.agent.stage import AgentStage, due, stage_of
from perdure.agent.state import (
    Action,
    AgentSettings,
    AgentState,
    AssignmentRead,
    Cleared,
    Event,
    MakesWay,
    Process,
    ProcessEnded,
    ReportReceived,
    Requested,
    Rescued,
    SigtermReceived,
    Tick,
    TrainerProcesses,
    Warmed,
)
from perdure.wire import Assignment, CommitRef, ExitKind, Handover, HandoverWord, Leave, Train
from perdure.wire.channel import (
    Attached,
    Exiting,
    HandoverEnded,
    Imaged,
    Imaging,
    SessionOpened,
    StepDone,
    TookOver,
    TrainerReport,
    Voting,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")

MASTER = "10.0.0.1:29500"
RUN = 4
"""The first run of the world; then come RUN + 1 and RUN + 2."""


def train(run: int, seconds: int = 600, lost: tuple[int, ...] = ()) -> Train:
    return Train(run, 0, 4, MASTER, cause=f"cause of {run}", seconds=seconds, lost=lost)


def leave(run: int) -> Leave:
    return Leave(run, cause=f"cause of {run}", seconds=600)


def taking_over(assignment: Train | Leave, run: int) -> Train | Leave:
    """The same, offered to the living `run`."""
    return replace(assignment, handover=Handover(run, 4, (3,), (3,), MASTER, limit=60, token="secret"))


ASSIGNMENTS: tuple[Assignment, ...] = (
    train(RUN),
    train(RUN + 1, lost=(RUN - 1,)),
    train(RUN + 1, seconds=60, lost=(RUN - 1,)),
    leave(RUN + 1),
    train(RUN + 2, lost=(RUN, RUN + 1)),
)
ENDINGS = (ExitKind.COMPLETED, ExitKind.CHECKPOINTED, ExitKind.FAILED)
"""One that fails has not opened its run."""


class _NoSeconds(dict[str, float]):
    """An outcome's durations, hashable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0


_NO_SECONDS = _NoSeconds()


@dataclass(frozen=True)
class Step:
    """One event, the states around it, and what the agent did."""

    before: AgentState
    event: Event
    seconds: float
    """How long after the state before."""
    after: AgentState
    """Its times are relative to the event's."""
    actions: tuple[Action, ...]
    stages: tuple[AgentStage, AgentStage]
    """Of the states before and after."""


@dataclass(frozen=True)
class World:
    """Which events there are."""

    settings: AgentSettings
    assignments: Sequence[Assignment] = ASSIGNMENTS
    endings: Sequence[ExitKind] = ENDINGS
    statuses: Sequence[int] = (0, 1)
    others: Sequence[Event] = (SigtermReceived(),)
    opens: bool = True
    """Whether a trainer tells that its run is open before it tells a step."""
    live: bool = False
    """Whether its trainers look for offers of a hand-over."""
    images: bool = False
    """Whether its trainers can be asked for an image."""
    makes_way: bool = False
    """Whether its trainers tell that they have only their interpreters to take down."""
    warming: bool = False
    """Whether its launcher begins with something to prepare."""

    def explored(self) -> Iterator[Step]:
        """Each step out of each state that can be reached."""
        first = AgentState(self.settings, warming_until=self.settings.warm_up if self.warming else None)
        known = {first: (first, stage_of(first))}  # hundreds of thousands of steps lead to tens of thousands of states
        waiting = [first]
        while waiting:
            before, stage = known[waiting.pop()]
            for event, seconds in self._events(before):
                reached, actions = react(before, event, seconds)
                new = relative(reached, seconds)
                found = (before, stage) if new is before else known.get(new)
                if found is None:
                    found = known[new] = new, stage_of(new)
                    if not new.finished:
                        waiting.append(new)
                after, next_stage = found
                yield Step(before, event, seconds, after, actions, (stage, next_stage))

    def _events(self, state: AgentState) -> Iterator[tuple[Event, float]]:
        at = due(state)
        if at is not None:
            yield Tick(), max(0.0, at)
        for assignment in self.assignments:
            yield AssignmentRead(assignment), 0.0
        for other in self.others:
            yield other, 0.0
        if state.warming_until is not None:
            yield Warmed(), 0.0
        if state.trainer:
            for process in state.trainer.alive:
                for event in self._of_process(state, state.trainer, process):
                    yield event, 0.0
            if state.trainer.clearing is not None and not state.trainer.alive:
                yield Cleared(), 0.0
            if stage_of(state) is AgentStage.RESCUING:
                yield Rescued(CommitRef(3, 7)), 0.0
                yield Rescued(why="run 5 has begun"), 0.0

    def _of_process(self, state: AgentState, trainer: TrainerProcesses, process: Process) -> Iterator[Event]:
        """A report may be lost: each may come first. A process ends once, and tells its ending once, also killed."""
        rank = process.rank
        if process.ending is None:
            for report in () if trainer.killed else self._reports(state, trainer):
                yield ReportReceived(rank, report)
            for ending in self.endings:
                opened = 0 if ending is ExitKind.FAILED else trainer.run
                yield ReportReceived(rank, Exiting(ending, 7, opened=opened, seconds=_NO_SECONDS))
        elif self.makes_way and not process.makes_way:
            yield MakesWay(rank)
        last = len(trainer.alive) == 1
        for status in self.statuses:
            yield ProcessEnded(rank, status)
        if last:
            yield ProcessEnded(rank, 0, left_behind=True)

    def _reports(self, state: AgentState, trainer: TrainerProcesses) -> Iterator[TrainerReport]:
        yield Attached(41, self.live, images=self.images)
        if self.opens:
            yield SessionOpened(trainer.run)
        yield StepDone(7)
        if self.images:
            yield Imaging(2_000_000_000)
            yield Imaged(7)
        if self.live:
            yield from self._of_attempts(state, trainer)

    def _of_attempts(self, state: AgentState, trainer: TrainerProcesses) -> Iterator[TrainerReport]:
        """A vote comes before its word; without one a newcomer or a trainer that was offered a run gives up."""
        newest = trainer.offered[-1].run if trainer.offered else trainer.run
        if any(record.run == newest for record in state.handovers):
            return
        if trainer.voting:
            run = trainer.voting.next
            yield TookOver(run, 0, 4, 7, _NO_SECONDS)
            yield HandoverEnded(run, HandoverWord.RESTART)
            yield HandoverEnded(run, HandoverWord.ABORT)
        elif trainer.offered and newest > trainer.run:
            yield Voting(trainer.run, newest)
            yield HandoverEnded(newest, HandoverWord.RESTART)
            yield HandoverEnded(newest, HandoverWord.ABORT)
        elif not trainer.offered:
            yield Voting(trainer.run - 1, trainer.run)


def relative(state: AgentState, now: float) -> AgentState:
    """The same state, its times counted from now; those noted before a kill or an end count for nothing any more."""
    trainer, shutdown = state.trainer, state.shutdown
    if trainer:
        over = trainer.killed is not None or not trainer.alive
        imaging = trainer.imaging
        trainer = _but(
            trainer,
            processes=_each(trainer.processes, [_process(process, now, over=over) for process in trainer.processes]),
            request=trainer.request and _requested(trainer.request, now, over=over),
            imaging=imaging and _but(imaging, at=0.0 if over else imaging.at - now),
            killed=trainer.killed and _but(trainer.killed, at=0.0, reason=""),
            clearing=_shifted(trainer.clearing, now),
            rescuing=_shifted(trainer.rescuing, now),
        )
    return _but(
        state,
        trainer=trainer,
        warming_until=_shifted(state.warming_until, now),
        first_seen=state.first_seen - now if trainer and trainer.alive and not trainer.killed else 0.0,
        shutdown=shutdown and _but(shutdown, deadline=shutdown.deadline - now),
        hold_until=_shifted(state.hold_until, now),
        handovers=_each(state.handovers, [_but(record, parts=_NO_SECONDS) for record in state.handovers]),
    )


def _but(value: D, **fields: object) -> D:
    """`replace`, which is slow, only of what differs: most events leave most of a state as it is."""
    own = vars(value)
    changed = {
        name: new
        for name, new in fields.items()
        if own[name] is not new and not (type(new) is type(own[name]) is float and own[name] == new)
    }
    if not changed:
        return value
    new = object.__new__(type(value))
    vars(new).update(own, **changed)  # frozen dataclasses set their fields one by one, through the class
    return new


def _each(values: tuple[T, ...], new: list[T]) -> tuple[T, ...]:
    return values if all(map(is_, values, new)) else tuple(new)


def _requested(request: Requested, now: float, *, over: bool) -> Requested:
    return _but(request, at=0.0 if over else request.at - now, deadline=0.0 if over else request.deadline - now)


def _process(process: Process, now: float, *, over: bool) -> Process:
    outcome = process.outcome
    return _but(
        process,
        opened_at=None if over else _shifted(process.opened_at, now),
        exiting_at=process.exiting_at - now if process.ending and not over else 0.0,
        ended_at=process.ended_at - now if outcome and not over else 0.0,
        outcome=outcome and _but(outcome, seconds=_NO_SECONDS),
        image_due=None if over else _shifted(process.image_due, now),
    )


def _shifted(at: float | None, now: float) -> float | None:
    return None if at is None else at - now
