"""One move of a job: the real machines and the real log; everything between the parties is simulated here.

Links, votes, rounds and agents are drawn from the job's seed; the parties' decisions and writes are not. Checked as it
goes: which ranks train, how long any stands still, and in the end that all of them agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from perdure.errors import StorageError
from perdure.live.protocol import events as on
from perdure.live.protocol.events import Alarm, Choice
from perdure.live.protocol.machine import PartyPhase, PartyState, begin, named, step
from perdure.live.protocol.parties import Attempt
from perdure.live.protocol.state import STANDING
from perdure.live.protocol.timing import Timetable
from perdure.log.reader import Log
from perdure.log.takeover import TakeoverLog
from perdure.log.verdict import Verdict
from perdure.log.writer import Writer
from tests.unit.runtime.checkpoint.world import UID
from tests.unit.runtime.live.job import Broken, Job

STEP_SECONDS: Final = 0.2
LIMIT_SECONDS: Final = 30.0
DEADLINE_SECONDS: Final = 60.0
TRAINING = (PartyPhase.PREPARING, PartyPhase.ABORTED)


@dataclass
class Process:
    """One party of one attempt."""

    state: PartyState
    takeover: TakeoverLog
    times: Timetable
    alive: bool = True
    frozen: bool = False
    cut: bool = False
    installed: bool = False
    stood: float | None = None
    """Since when it has stood still."""
    late: list[on.Event] = field(default_factory=list)
    """What came while it was frozen."""


class Move:
    """One attempt, until every party knows."""

    def __init__(self, job: Job, attempt: Attempt) -> None:
        self.job = job
        self.attempt = attempt
        self.random = job.random
        self.writer = Writer(Log(job.store), uid=UID, run=attempt.next)
        self.parties: list[Process] = []
        self.connected: set[int] = set()
        self.votes: set[int] = set()
        self.rounds: dict[int, Choice] = {}
        self.saving: set[int] = set()
        self.exits: set[int] = set()
        self.over = False
        place = job.writer.place
        for party in attempt.parties:
            seen = self.random.uniform(0, 1)
            times = Timetable(job.now + seen + LIMIT_SECONDS, job.now + seen + DEADLINE_SECONDS, save=2.0)
            pen = TakeoverLog(Log(job.store), uid=UID, run=attempt.run, next_run=attempt.next, place=place)
            self.parties.append(Process(begin(attempt, party.number)[0], pen, times))

    @property
    def old(self) -> list[Process]:
        return self.parties[: self.attempt.world]

    def play(self) -> None:
        """Until no party waits for anything."""
        job = self.job
        for number in range(len(self.parties)):
            job.at(self.random.uniform(0, 3), partial(self.warm, number))
        job.at(STEP_SECONDS, self.train)
        job.at(1.0, self.tick)
        self.troubles()
        while not self.over:
            if not job.queue:
                raise Broken(f"nothing happens any more: {[p.state.phase for p in self.parties]}")
            job.now, _, act = heapq.heappop(job.queue)
            act()
            self.watch()
        # Messages still in flight find no receiver; PUTs do arrive.
        self.parties = [replace(process, alive=False) for process in self.parties]

    def troubles(self) -> None:
        """What goes wrong in this attempt, if anything does."""
        number, decider = self.random.randrange(len(self.parties)), self.attempt.decider
        kinds: list[Callable[[], None]] = [partial(self.tell, number, on.Unable("it is broken"))]
        kinds += [partial(self.tell, number, on.Sigterm()), self.plan_again]
        if number != decider:
            kinds.append(partial(self.cut, number))
        if self.job.unreliable:
            kinds += [self.outage, self.outage]
        if self.job.deadly:
            kinds += [partial(self.kill, number), partial(self.freeze, decider, self.random.choice([1.0, 20.0, 45.0]))]
        if self.random.random() < 0.8:
            self.job.at(self.random.uniform(3.0, 6.0), self.random.choice(kinds))

    def plan_again(self) -> None:
        """The operator plans another run; each pod learns of it in its own time."""
        newer = on.Newer(self.random.choice([None, self.attempt.run, self.attempt.next]))
        for number in range(len(self.parties)):
            self.later(number, newer, 0.0, 1.0)

    # What happens to parties.

    def warm(self, number: int) -> None:
        self.tell(number, on.StoreSeen(True))
        self.tell(number, on.AllWarm())
        self.job.at(3.0 + self.random.uniform(0, 0.3), lambda: self.tell(number, on.Connected()))

    def tell(self, number: int, event: on.Event) -> None:
        process = self.parties[number]
        if self.over or not process.alive:
            return
        if process.frozen:
            process.late.append(event)
            return
        before = process.state
        process.state, actions = step(before, event)
        if before.phase is not process.state.phase:
            self.job.tells(f"{number}: {event} -> {process.state.phase}")
        for action in actions:
            self.do(number, process, action)

    def later(self, number: int, event: on.Event, least: float = 0.001, most: float = 0.05) -> None:
        self.job.at(self.random.uniform(least, most), lambda: self.tell(number, event))

    def do(self, number: int, process: Process, action: on.Action) -> None:
        match action:
            case on.MoveState() if not process.state.joins:
                self.later(number, on.Moved(), 0.1, 0.5)
            case on.TellVoting():
                process.times = replace(process.times, informed=self.job.now)
                self.later(number, on.Acknowledged())
            case on.SayToAll(word, why):
                self.say(number, on.Heard(word, why))
            case on.SetSeen():
                self.later(self.attempt.decider, on.SeenBy(number))
            case on.Install():
                process.installed = True
            case on.ExitProcess():
                self.gone(number)
            case on.AppendOpened() | on.AppendRefused() | on.ReadLog():
                self.ask(number, process.takeover, action)
            case _:
                self.collect(number, action)

    def collect(self, number: int, action: on.Action) -> None:
        """What the parties do together, once all of them have come to it."""
        match action:
            case on.SetConnected():
                self.connected.add(number)
                if len(self.connected) == len(self.parties):
                    for rank in range(self.attempt.world):
                        self.later(rank, on.AllConnected(), most=0.2)
            case on.Vote():
                self.votes.add(number)
            case on.BeginRound(choice):
                self.rounds[number] = choice
            case on.SaveAndExit():
                self.saving.add(number)
            case on.AskExit():
                self.exits.add(number)

    def say(self, number: int, heard: on.Heard) -> None:
        for other, process in enumerate(self.parties):
            if other != number and not process.cut and not self.parties[number].cut:
                self.later(other, heard)

    def ask(self, number: int, pen: TakeoverLog, action: on.AppendOpened | on.AppendRefused | on.ReadLog) -> None:
        match action:
            case on.AppendOpened(again):
                self.asks(number, lambda: pen.open(self.attempt.new_world, self.job.step, self.writer.id), again=again)
            case on.AppendRefused():
                self.asks(number, pen.refuse)
            case on.ReadLog(again):
                self.asks(number, pen.look, again=again)

    def asks(self, number: int, ask: Callable[[], Verdict], *, again: bool = False) -> None:
        """A call to the store: made now, answered a little later; a frozen process makes none."""

        def call() -> None:
            process = self.parties[number]
            if not process.alive or self.over:
                return
            if process.frozen:
                self.job.at(0.5, call)
                return
            verdict: Verdict | None = None
            with suppress(StorageError):
                verdict = ask()
            self.later(number, on.LogAnswered(verdict), 0.003, 0.2)

        self.job.at(0.5 if again else self.random.uniform(0.001, 0.05), call)

    def gone(self, number: int) -> None:
        self.later(self.attempt.decider, on.PartyGone(number))
        if number == self.attempt.decider:
            for other in range(len(self.parties)):
                if other != number:
                    self.later(other, on.LinkClosed())

    def kill(self, number: int) -> None:
        if self.over or not self.parties[number].alive or self.parties[number].state.phase is PartyPhase.ENDED:
            return
        self.job.tells(f"{number} is killed")
        self.job.harmed = True
        self.parties[number].alive = False
        self.gone(number)

    def freeze(self, number: int, seconds: float) -> None:
        self.job.tells(f"{number} freezes for {seconds} s")
        self.job.harmed = True
        self.parties[number].frozen = True
        self.job.at(seconds, lambda: self.thaw(number))

    def thaw(self, number: int) -> None:
        process = self.parties[number]
        process.frozen = False
        late, process.late = process.late, []
        for event in late:
            self.tell(number, event)

    def cut(self, number: int) -> None:
        self.job.tells(f"{number} has no link to the decider any more")
        self.parties[number].cut = True
        self.later(number, on.LinkClosed())
        self.later(self.attempt.decider, on.PartyGone(number))

    def outage(self) -> None:
        self.job.store.down_until = self.job.now + self.random.choice([0.5, 10.0, 40.0])
        self.job.tells(f"the store is down until {self.job.store.down_until:.2f}")

    # What the ranks do together.

    def train(self) -> None:
        """A step of the older run, if its ranks train; the vector, whose newest value decides at the hand-out."""
        if self.over:
            return
        self.job.at(STEP_SECONDS, self.train)
        ready = all(p.alive and not p.frozen and p.state.phase in TRAINING for p in self.old)
        if not ready:
            return
        states = [process.state for process in self.old]
        if self.exits or any(
            s.exits if s.phase is PartyPhase.ABORTED else s.exit_requested and not s.leaves for s in states
        ):
            self.together(on.ExitAgreed())
        elif all(named(state) == self.attempt.next for state in states):
            self.together(on.Stopped())
        else:
            self.job.trains(self.attempt.run)

    def together(self, event: on.Event) -> None:
        for number, process in enumerate(self.old):
            process.times = replace(process.times, stopped=self.job.now)
            self.tell(number, event)

    def tick(self) -> None:
        """Alarms, and operations that are complete by now."""
        if self.over:
            return
        self.job.at(0.1, self.tick)
        for number, process in enumerate(self.parties):
            for alarm in process.times.due(self.job.now):
                self.tell(number, on.Passed(alarm))
        self.vote()
        self.agree()

    def vote(self) -> None:
        left = [
            n
            for n, p in enumerate(self.parties)
            if not p.alive or p.state.phase in (PartyPhase.ENDED, PartyPhase.ROUND)
        ]
        sent = all(p.state.phase in (PartyPhase.TELLING, PartyPhase.VOTED, PartyPhase.DECIDING) for p in self.old)
        for number, process in enumerate(self.parties):
            if process.state.phase is PartyPhase.MOVING and process.state.joins and sent:
                self.tell(number, on.Moved())
                self.later(number, on.FirstBatch(), 0.0, 1.0)
            if process.state.phase is PartyPhase.VOTED:
                if len(self.votes) == len(self.parties):
                    self.later(number, on.VoteReduced(True))
                elif left:
                    self.later(number, on.VoteReduced(False))

    def agree(self) -> None:
        lost = [p for p in self.old if not p.alive or (p.state.phase is PartyPhase.ENDED)]
        for number, process in enumerate(self.old):
            if process.state.phase is PartyPhase.ROUND and not process.frozen:
                if len(self.rounds) == self.attempt.world:
                    self.tell(number, on.RoundDone(max(self.rounds.values())))
                elif lost:
                    self.tell(number, on.RoundDone(None))

    # Invariants, and how it ends.

    def watch(self) -> None:
        """Laws; and whether every party knows by now."""
        for number, process in enumerate(self.parties):
            stands = process.alive and not process.frozen and process.state.phase in STANDING
            process.stood = (process.stood or self.job.now) if stands else None
            if process.stood is not None and self.job.now > self.patience(process):
                raise Broken(f"party {number} still stands in {process.state.phase}")
        self.finish()

    def patience(self, process: Process) -> float:
        """Up to when a party may stand still: where all is well but a word or a link, until the log is settled."""
        if self.job.harmed or self.job.unreliable:
            return process.times.deadline + 1.0
        return (process.times.at(Alarm.QUIET) or 0.0) + 3.0

    def finish(self) -> None:
        """The job after this attempt, once it is known what that is."""
        if any(process.frozen for process in self.parties):
            return
        phases = [process.state.phase if process.alive else PartyPhase.ENDED for process in self.parties]
        if any(phase in STANDING or phase is PartyPhase.LINGERING for phase in phases):
            return
        old = phases[: self.attempt.world]
        newcomers = phases[self.attempt.world :]
        if PartyPhase.PREPARING in old and all(process.alive for process in self.old):
            return
        if PartyPhase.PREPARING in newcomers:
            return
        self.over = True
        self.judge(old)

    def judge(self, old: list[PartyPhase]) -> None:
        job, attempt = self.job, self.attempt
        dead = [n for n, p in enumerate(self.parties) if not p.alive]
        if any(process.installed for process in self.parties):
            members = [party.number for party in attempt.parties if party.new is not None]
            if job.last_opened() != attempt.next:
                raise Broken("somebody went, and the log does not say so")
            if all(self.parties[number].installed and self.parties[number].alive for number in members):
                first = self.parties[attempt.of_new(0).number]
                self.takes_up(first)
                job.went(attempt.next, attempt.new_world, self.writer)
                return
            job.broke(attempt.run, attempt.next)
        elif all(phase is PartyPhase.ABORTED for phase in old) and not set(dead) & set(range(attempt.world)):
            if job.last_opened() != attempt.run:
                raise Broken("the older run trains on although it was taken over")
            job.aborted(attempt.next)
        elif all(phase in (PartyPhase.SAVING, PartyPhase.ENDED) for phase in old) and len(self.saving) == attempt.world:
            job.ended(attempt.next)
        else:
            job.broke(attempt.run, attempt.next)

    def takes_up(self, first: Process) -> None:
        self.job.store.down_until = 0.0
        while first.takeover.entry is None:
            try:
                first.takeover.look()
            except StorageError:
                continue
        self.writer.take_up(first.takeover.entry)
