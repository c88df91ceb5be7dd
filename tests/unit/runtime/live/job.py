"""A job whose membership is moved again and again: its log, its steps, its clock, and a store that misbehaves.

Time is virtual, and all delays are drawn from a seed. What happens within one move is in .move.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from perdure.errors import StorageError
from perdure.live.protocol.machine import PartyPhase
from perdure.live.protocol.parties import Attempt
from perdure.log.entry import Opened
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import MANIFEST, UID, position

STEP_SECONDS: Final = 0.2
LIMIT_SECONDS: Final = 30.0
DEADLINE_SECONDS: Final = 60.0
TRAINING = (PartyPhase.PREPARING, PartyPhase.ABORTED)


class Broken(AssertionError):
    """A law did not hold in a job."""


class SlowStore(MemoryStore):
    """Loses answers, loses requests, and delivers some when they are no longer awaited."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self.down_until = 0.0

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        job = self._job
        self._answer(key)
        draw = job.random.random() if job.unreliable else 1.0
        if draw < 0.1:
            job.at(job.random.choice([0.5, 5, 50]), lambda: self._late(key, bytes(data)))
            raise StorageError(f"no answer to {key}")
        if draw < 0.15:
            raise StorageError(f"{key} was lost")
        super().put(key, data, if_absent=if_absent)
        if draw < 0.25:
            raise StorageError(f"the answer to {key} was lost")

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self._answer(key)
        return super().get(key, start=start, length=length)

    def _late(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            super().put(key, data, if_absent=True)
            self._job.tells(f"a late PUT of {key} arrives")

    def _answer(self, key: str) -> None:
        if self._job.now < self.down_until:
            raise StorageError(f"no answer to {key}: the store is down")


class Job:
    """A job's life, from one seed."""

    def __init__(self, seed: int, *, unreliable: bool = True, deadly: bool = True) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.unreliable = unreliable
        self.deadly = deadly
        self.now = 0.0
        self.told: list[str] = []
        self.store = SlowStore(self)
        self.steps: dict[int, int] = {}
        """The run that trained each step, in the lineage that counts."""
        self.words: list[str] = []
        """How each attempt ended."""
        self.lost = 0
        """Steps trained in vain."""
        self.harmed = False
        """Whether a process was killed or frozen in the attempt that is on."""
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.step = 0
        """The newest that was trained."""
        self._run = 0
        self._world = self.random.choice([1, 2, 2, 3])
        self._writer = self._open(1)

    def at(self, after: float, act: Callable[[], None]) -> None:
        """Something happens later."""
        heapq.heappush(self.queue, (self.now + after, next(self._numbers), act))

    def tells(self, what: str) -> None:
        """To read a history that went wrong."""
        self.told.append(f"{self.now:8.2f}  {what}")

    # What a move does with the job.

    @property
    def run(self) -> int:
        """The run that trains."""
        return self._run

    @property
    def writer(self) -> Writer:
        """Of the run that trains."""
        return self._writer

    def trains(self, run: int) -> None:
        """A step of all ranks of `run`, and at times a commit."""
        if run != self._run:
            raise Broken(f"run {run} trains, and run {self._run} is the one that may")
        self.step += 1
        if self.step in self.steps:
            raise Broken(f"step {self.step} is trained twice")
        self.steps[self.step] = run
        if self.random.random() < 0.1:
            self._commits(final=False)

    def went(self, run: int, world: int, writer: Writer) -> None:
        """The newer run goes on in the living processes."""
        self.words.append("go")
        self._run, self._world, self._writer = run, world, writer

    def aborted(self, run: int) -> None:
        """The older run trains on."""
        self.words.append("abort")
        self._writer.never_opens(run)

    def ended(self, next_run: int) -> None:
        """The older run saves and ends; a run after the attempt's begins from its commit."""
        self.words.append("restart")
        self.store.down_until = 0.0
        while not self._commits(final=True):
            pass
        self._begins_anew(next_run + 1, ())

    def broke(self, run: int, next_run: int) -> None:
        """A member is lost: the operator names both runs, and the next one begins from the newest commit."""
        if not self.harmed:
            raise Broken("a run was lost although nobody was killed or frozen")
        self.words.append("lost")
        self.store.down_until = 0.0
        self._begins_anew(next_run + 1, (run, next_run))

    def last_opened(self) -> int:
        """The run that opened last."""
        self.store.down_until = 0.0
        head = Log(self.store).head()
        entry = head.entry if head else None
        slot = Log(self.store).slot(entry.newest_opened) if entry and entry.newest_opened else None
        return slot.entry.run if slot and slot.entry else 0

    def _commits(self, *, final: bool) -> bool:
        try:
            self._writer.commit(position(self.step), MANIFEST, final=final, reason="test")
        except StorageError:
            with suppress(StorageError):
                return self._writer.landed(self.step, final=final) is not None
            return False
        return True

    def _begins_anew(self, run: int, lost: tuple[int, ...]) -> None:
        self._writer = self._open(run, lost)
        committed = 0
        for slot in self._writer.commits():
            event = slot.entry.event if slot.entry else None
            committed = getattr(event, "step", 0)
            break
        self.lost += self.step - committed
        if self.step > committed and not self.harmed:
            raise Broken(f"steps {committed + 1} to {self.step} are lost")
        self.steps = {done: by for done, by in self.steps.items() if done <= committed}
        self.step = committed

    def _open(self, run: int, lost: tuple[int, ...] = ()) -> Writer:
        writer = Writer(Log(self.store), uid=UID, run=run, lost=lost)
        while True:
            try:
                answer = writer.try_open(self._world, wait_over=False)
            except StorageError:
                continue
            if not isinstance(answer, Resume):
                raise Broken(f"run {run} may not open: {answer.reason}")
            self._run = run
            return writer

    def drawn(self, number: int) -> Attempt:
        """The next move: who leaves, who comes."""
        ranks = range(self._world)
        stay = self.random.randint(0, self._world)
        leavers = tuple(sorted(self.random.sample(ranks, self._world - stay)))
        size = self.random.choice([self._world, self._world, max(1, self._world - 1), min(4, self._world + 1)])
        joins = max(size - stay, 0 if 0 < stay < self._world else 1)
        if stay + joins == self._world:
            return Attempt(self._run, number, self._world, leavers, leavers)
        return Attempt(self._run, number, self._world, tuple(range(stay, stay + joins)), leavers)

    def check_log(self) -> None:
        """Runs take over one another in order, and none writes behind a later one's Opened."""
        self.store.down_until = 0.0
        head = Log(self.store).head()
        slots = reversed(list(Log(self.store).entries(head.seq if head else 0)))
        owner = 0
        for slot in slots:
            entry = slot.entry
            if entry is None:
                raise Broken(slot.problem)
            if isinstance(entry.event, Opened):
                taken = entry.event.takes_over
                if taken not in (None, owner) or entry.run <= owner:
                    raise Broken(f"run {entry.run} takes over {taken}, and {owner} was the last")
                owner = entry.run
            elif entry.run != owner:
                raise Broken(f"run {entry.run} writes entry {slot.seq} after run {owner} has opened")
