"""A new process's side of a live hand-over: it gets the state in `restore()` and its rank with the first batch.

Between the two it has no group: no other rank runs that part of the script, and a collective would pair with the old
ranks' gradients. It votes when its script asks for the batch at which the old ranks stopped. Until it knows GO it is no
rank, and its end costs the run nothing.

Called by perdure.session.resuming and perdure.session.boundary.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from perdure.checkpoint.codec import decode
from perdure.checkpoint.state import RankState
from perdure.console import say
from perdure.errors import Fenced, HandoverFailed, PeerLost, PerdureError, StorageError
from perdure.live.driving import LOG_SECONDS, Driver, GivenUp
from perdure.live.effects import Effects
from perdure.live.header import Header
from perdure.live.protocol import events as ev
from perdure.live.protocol.parties import attempt_of
from perdure.live.protocol.timing import Timetable
from perdure.live.trial import failure
from perdure.log.verdict import Verdict
from perdure.loop.run import Run
from perdure.wire import ErrorKind, ExitKind, Failure


def gets_placeholder(run: Run) -> bool:
    """Wait until the old ranks can hand over, and return whether this process gets a placeholder of its ranks, over
    which it shards its model, or in which a framework finds its ranks.

    False if there is no live hand-over: `Newcomer` then finds out how the newer run begins.
    """
    effects, looked = _effects(run), [time.monotonic()]

    def give_up() -> None:
        run.requests.look()
        if run.requests.seen or effects.early_word():
            raise GivenUp
        if time.monotonic() - looked[0] < LOG_SECONDS:
            return
        looked[0] = time.monotonic()
        with suppress(StorageError):
            if effects.read_log() is not Verdict.OPEN:
                raise GivenUp

    try:
        effects.find_store(give_up)
        return effects.await_placeholder()
    except (GivenUp, PerdureError):
        return False
    finally:
        effects.let_go()


def _effects(run: Run) -> Effects:
    settings, block = run.settings, run.settings.handover
    if block is None or settings.run is None:
        raise RuntimeError("this process was not started for a hand-over")
    attempt = attempt_of(block, settings.run, settings.pod)
    host, port = settings.master or ("", 0)
    return Effects(run, attempt, attempt.of_new(settings.rank), block, f"{host}:{port}")


class Newcomer:
    """A process that joins a living run."""

    def __init__(self, run: Run) -> None:
        effects, now = _effects(run), time.monotonic()
        self._run = run
        timetable = Timetable.of_newcomer(now, limit=effects.block.limit)
        self._driver = Driver(effects, timetable, ask_exit=lambda: None)
        self._driver.abandoned = self._end_at_once
        self._listener = run.requests.on_request(lambda: self._driver.feed(ev.Sigterm()))
        """Gets requests to leave once this process is a rank."""

    @property
    def header(self) -> Header:
        """The header from old rank 0; RuntimeError before it was received."""
        header = self._driver.effects.header
        if header is None:
            raise RuntimeError("no state was received")
        return header

    @property
    def old_world(self) -> int:
        """The number of ranks of the living run."""
        return self._driver.effects.attempt.world

    def receive(self, why_not: str = "") -> RankState | None:
        """Wait until the old ranks stop for this process, and receive their state.

        Returns None if the newer run begins in place instead. Raises HandoverFailed, Fenced or PeerLost. `why_not` is
        a reason why this process cannot join a living run: with one it returns None or raises.
        """
        if self._run.registry.sharded:
            why_not = why_not or failure()
            self._run.registry.warm_up()
        self._driver.begin(self._run.registry.kind(), why_not)
        while True:
            match self._driver.next_act():
                case ev.MoveState():
                    state = self._take()
                    if state:
                        return state
                case ev.JoinInPlace():
                    self._end_attempt()
                    self._run.requests.on_request(self._listener)
                    return None
                case ev.ExitProcess(kind, why):
                    self._fail(kind, why)

    def first_batch(self, source: str) -> bool:
        """Join when the script asks `source` for a batch. Returns False if the old ranks stopped at another source.

        After True this process is a rank of the newer run. Raises HandoverFailed, Fenced or PeerLost if it does not
        become one.
        """
        if source != self.header.source:
            return False
        driver = self._driver
        if names := self._run.registry.not_registered_yet:
            late = ", ".join(names)
            driver.feed(ev.Unable(f"at its first batch it has not registered {late}, as the others have meanwhile"))
        elif self._run.measures_alone:
            driver.feed(
                ev.Unable("of this process and the ranks that train one is to measure its training and one not")
            )
        else:
            driver.effects.lap("script")
            self._hold_rescue_copy()
            driver.feed(ev.FirstBatch())
        while True:
            match driver.next_act():
                case ev.Install():
                    self._install()
                    return True
                case ev.JoinInPlace():
                    self._fail(ExitKind.HANDOVER_FAILED, "the newer run begins in place")
                case ev.ExitProcess(kind, why):
                    self._fail(kind, why)

    def _end_attempt(self) -> None:
        """Give up all of the attempt, and the port of the newer run's store with it: the ranks meet there in place."""
        driver = self._driver
        driver.finish()
        driver.abandoned = None  # breaks a reference cycle
        driver.effects.end()
        driver.effects.free_preallocated()
        driver.effects.let_go()

    def _hold_rescue_copy(self) -> None:
        """Hold the state as a survivor's snapshot, in case the others are lost before the outcome is known."""
        run, attempt = self._run, self._driver.effects.attempt
        run.progress.saved = self.header.saved
        rank = attempt.predecessor_of(run.rank)
        if rank is not None:
            run.images.stand_in(attempt.run, rank, self.header.alike, self.header.ranks)
        elif self.header.alone is not None:  # otherwise it holds no rank's own state, and others do
            run.images.stand_in(attempt.run, 0, (), own=decode(self.header.alone))

    def _take(self) -> RankState | None:
        try:
            state = self._driver.effects.take()
        except GivenUp:
            return None
        except PerdureError as error:
            self._driver.feed(ev.Unable(str(error)))
            return None
        self._driver.feed(ev.Moved())
        return state

    def _install(self) -> None:
        run, driver = self._run, self._driver
        effects, word = driver.effects, driver.word
        if word is None:
            raise RuntimeError("no party has said go")
        run.old_groups.keep(effects.install(word), driver.is_needed)
        run.requests.on_request(self._listener)
        driver.abandoned = None  # breaks a reference cycle
        run.joining = False
        run.images.join(self.header.alike, all_able=self.header.all_able, mirrors=self.header.mirrors)
        run.schedule.take_over(run.rank, self.header.age)
        run.tell(effects.took_over())
        effects.end()

    def _fail(self, kind: ExitKind, why: str) -> NoReturn:
        self._driver.finish()
        self._driver.effects.end()
        text = self._described(why)
        match kind:
            case ExitKind.FENCED:
                raise Fenced(text)
            case ExitKind.PEER_LOST:
                raise PeerLost(text)
        raise HandoverFailed(text)

    def _end_at_once(self, action: ev.ExitProcess) -> None:
        """End the process after a failed attempt while the main thread runs the script. From another thread."""
        run, text = self._run, self._described(action.why)
        say(f"this process does not join the living run: {text}")
        if action.kind is ExitKind.PEER_LOST:
            self._hold_rescue_copy()
            run.images.leave()
        ending = run.ending(action.kind)
        if action.kind is ExitKind.HANDOVER_FAILED:
            ending = replace(ending, error=Failure(ErrorKind.EXCEPTION, HandoverFailed.__name__, text))
        run.tell(ending)
        sys.stdout.flush()
        os._exit(1)

    def _described(self, why: str) -> str:
        attempt = self._driver.effects.attempt
        return f"run {attempt.next} does not take over run {attempt.run}: {self._driver.why or why}"
