"""One simulated process in hand-overs: as an old rank one attempt after the other, or as a newcomer to a living run.

Modelled after perdure.live.handover, .newcomer and .membership; the attempts themselves are real: see `driving`. What
waits runs in the process's threads. `trainer` owns one of these per process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from perdure.errors import Fenced, HandoverFailed, PeerLost, PerdureError
from perdure.live.driving import GivenUp
from perdure.live.protocol import events as on
from perdure.live.protocol.machine import PartyPhase
from perdure.live.protocol.offers import read_offer
from perdure.live.protocol.parties import Attempt, Party, PartyRole, attempt_of
from perdure.live.protocol.state import lingers
from perdure.live.protocol.timing import Timetable
from perdure.log.reader import slot_of
from perdure.wire import AttemptRecord, ExitKind, HandoverWord, Leave, Train
from perdure.wire.channel import HandoverEnded, Request, TookOver
from perdure.wire.settings import Settings
from tests.simulation.bridge import Header
from tests.simulation.checkpoints import Checkpoints, Membership, TapedWriter, make_writer
from tests.simulation.driving import Driver, Effects, Ground
from tests.simulation.images import Image
from tests.simulation.threads import ProcessThreads

if TYPE_CHECKING:
    from tests.simulation.trainer import Process

LOOK_SECONDS: Final = 0.05
SCRIPT_SECONDS: Final = (0.01, 0.4)
"""The work of a newcomer's script between its `restore` and its first batch."""


class LiveHandover:
    """All attempts of one process."""

    def __init__(self, process: Process) -> None:
        self.exit_wanted = False
        """Whether an attempt that came to nothing leaves no other way than to save and leave."""
        self.known: AttemptRecord | None = None
        """What it did and read in its newest attempt."""
        self.opened = 0
        """The newest run that it has read to have opened."""
        self._process = process
        self._threads = ProcessThreads(process.host.monotonic)
        self._acknowledged = 0
        self._offer: Train | Leave | None = None
        self._drivers: list[Driver] = []
        """The newest last; links of earlier ones end with the process."""
        self._driver: Driver | None = None
        self._tried = 0
        self._upcoming: Settings | None = None
        self._own_writer: TapedWriter | None = None
        """The newer run's writer, if this process will be its rank 0."""

    # the agent's actions

    def offer(self, assignment: Train | Leave) -> None:
        """The file is there: it is looked at when the ranks check."""
        self._offer = assignment

    def acknowledged(self, run: int) -> None:
        """The agent knows of the vote for this run."""
        self._acknowledged = run

    def requested(self, request: Request) -> None:
        """This process is asked to leave."""
        if self._driver:
            if self._driver.party.part is PartyRole.LEAVER:
                self._driver.shorten(request.deadline)
            self._threads.start("request", self._driver.feed, on.Sigterm())

    def freeze(self, seconds: float) -> None:
        """The process is stopped for a while."""
        self._stand(True)
        asyncio.get_running_loop().call_later(seconds, self._stand, False)

    def _stand(self, still: bool) -> None:
        for driver in self._drivers:
            driver.effects.link.still = still
        if still:
            self._threads.stop()
        else:
            self._threads.go_on()

    def vanish(self) -> None:
        """The process has ended."""
        for driver in self._drivers:
            driver.vanish()
        self._threads.end()

    # as an old rank

    def look(self) -> int:
        """Which run this rank is ready to become at the next hand-out; 0: none."""
        offer, self._offer = self._offer, None
        if offer and offer.handover:
            self._read(offer)
        return self._driver.named if self._driver else 0

    async def hand_over(self, due: str) -> bool:
        """All old ranks stand here, ready: returns as a rank of either run. True if the ranks have to save and
        leave."""
        if self._driver is None:
            raise RuntimeError("the ranks stand still for a hand-over that this one does not know")
        return await self._threads.run("main", self._stop, self._driver, due)

    def _stop(self, driver: Driver, due: str) -> bool:
        process = self._process
        began = process.host.monotonic()
        driver.feed(on.Stopped())
        while True:
            match driver.next_act():
                case on.MoveState() if driver.phase is PartyPhase.MOVING:
                    _move(driver, lambda: driver.effects.give(self._describe(due)))
                case on.Install():
                    self._install(driver, process.host.monotonic() - began)
                    return False
                case on.TrainOn() if driver.phase is PartyPhase.ABORTED:
                    return False
                case on.SaveAndExit():
                    return True
                case on.ExitProcess(ExitKind.HANDED_OVER):
                    process.hand_over()
                case on.ExitProcess(kind, why):
                    _fail(kind, why)

    def leaving(self) -> None:
        """The ranks have agreed to save and leave."""
        if self._driver:
            self._driver.feed(on.ExitAgreed())

    def goal_reached(self) -> None:
        """The training is done."""
        if self._driver:
            self._driver.feed(on.TrainingDone())

    async def saved(self) -> None:
        """The older run has ended in the log: a decider stays until no party needs its store."""
        driver, self._driver = self._driver, None
        if driver:
            await self._threads.run("main", self._linger, driver)

    def _linger(self, driver: Driver) -> None:
        driver.feed(on.OlderRunEnded())
        for party in range(driver.attempt.world):
            driver.feed(on.SeenBy(party))
        begun = self._process.host.monotonic()
        while lingers(driver.state, self._process.host.monotonic() - begun, driver.effects.missing):
            self._threads.sleep(LOOK_SECONDS)

    def _read(self, offer: Train | Leave) -> None:
        process, settings = self._process, self._process.settings
        attempted = self._driver.attempt.next if self._driver else 0
        read = read_offer(offer, run=settings.run or 0, tried=self._tried, attempted=attempted)
        if read is None:
            return
        if self._driver:
            self._driver.feed(on.Newer(read.block.run))
        if read.later:
            self._offer = offer
        if not read.begins:
            return
        self._tried, block = offer.run, read.block
        try:
            attempt = attempt_of(block, offer.run, settings.pod)
        except PerdureError as error:
            process.tell(HandoverEnded(offer.run, HandoverWord.ABORT, str(error)))
            return
        now, save = process.host.monotonic(), process.save_seconds
        times = Timetable.of_old_rank(now, limit=block.limit, seconds=offer.seconds, save=save)
        master = offer.master if isinstance(offer, Train) else ""
        party = attempt.of_old(settings.rank)
        if self._driver:
            self._driver.finish()
        driver = Driver(Effects(self._ground(settings), attempt, party, block), times)
        self._begin(driver, _settings(settings, attempt, party, master))

    def _describe(self, due: str) -> Header | None:
        process = self._process
        membership = process.membership
        if membership is None or membership.seat.rank != 0:
            return None
        checkpoints = membership.checkpoints
        track = replace(membership.gang.track)
        return Header(track, checkpoints.commit, checkpoints.goal_before, checkpoints.place, due, process.schedule.age)

    # as a newcomer

    async def join(self) -> str | None:
        """Why a checkpoint is due once this process is a rank of the newer run; None if that begins in place.

        HandoverFailed if the attempt fails.
        """
        process = self._process
        settings, block, now = process.settings, process.settings.handover, process.host.monotonic()
        if block is None:
            return None
        attempt = attempt_of(block, settings.run or 0, settings.pod)
        times = Timetable.of_newcomer(now, limit=block.limit)
        effects = Effects(self._ground(settings), attempt, attempt.of_new(settings.rank), block)
        driver = Driver(effects, times)
        self._begin(driver, replace(settings, handover=None, wait=0.0))
        return await self._threads.run("main", self._join, driver)

    def _join(self, driver: Driver) -> str | None:
        while not driver.effects.received:
            match driver.next_act():
                case on.MoveState():
                    _move(driver, driver.effects.take)
                case on.JoinInPlace():
                    driver.finish()
                    self._driver = None
                    return None
                case on.ExitProcess(kind, why):
                    _fail(kind, driver.why or why)
        self._threads.sleep(self._process.host.rng.uniform(*SCRIPT_SECONDS))
        driver.feed(on.FirstBatch())
        while True:
            match driver.next_act():
                case on.Install():
                    self._install(driver, 0.0)
                    return driver.effects.header.due
                case on.JoinInPlace():
                    raise HandoverFailed("the newer run begins in place")
                case on.ExitProcess(kind, why):
                    _fail(kind, driver.why or why)

    def image(self) -> Image | None:
        """A newcomer that has its state holds that of the older run."""
        driver, settings = self._driver, self._process.settings
        if driver is None or driver.party.new is None or not driver.effects.received:
            return None
        attempt, header = driver.attempt, driver.effects.header
        ahead = header.track.step > (header.commit.step if header.commit else 0)
        if not ahead:
            return None
        return Image(settings.uid, attempt.run, driver.party.new, attempt.new_world, replace(header.track))

    # both

    def _begin(self, driver: Driver, upcoming: Settings) -> None:
        process, party = self._process, driver.party
        self._driver, self._upcoming, self._own_writer = driver, upcoming, None
        self._drivers.append(driver)
        link = driver.effects.link
        if party.new is not None:
            link.seat = process.seat(party.new)
        if party.new == 0:
            self._own_writer = make_writer(process.host, upcoming)
            link.told, link.mark = process.told(upcoming), self._own_writer.writer.id
        driver.take_part()

    def _install(self, driver: Driver, pause: float) -> None:
        process, settings, effects, word = self._process, self._upcoming, driver.effects, driver.word
        header, gang, seat, effects.link.seat = effects.header, effects.gang, effects.link.seat, None
        if settings is None or gang is None or seat is None or word is None:
            raise RuntimeError("nobody has said go")
        if gang.track.step < header.track.step:
            gang.track = replace(header.track)
        checkpoints = Checkpoints(process.host, settings, gang, seat, self._own_writer)
        checkpoints.take_over(slot_of(word.seq, word.entry.encode()), header.commit, header.goal)
        self._driver, self.exit_wanted = None, False
        process.become(Membership(settings, gang, seat, checkpoints), driver.attempt.run, header.age, pause)
        parts = {"pause": pause} if driver.party.old is not None else {}
        process.tell(TookOver(driver.attempt.next, settings.rank, settings.world, header.track.step, parts))
        driver.finish()

    def _ground(self, settings: Settings) -> Ground:
        process = self._process
        return Ground(
            host=process.host,
            pid=process.pid,
            settings=settings,
            threads=self._threads,
            tell=process.tell,
            record=self._record,
            opened=self._has_opened,
            ask_exit=self._want_exit,
            acknowledged=lambda run: self._acknowledged == run,
            abort=process.abort,
            old=process.place,
            freeze=process.freeze,
            kill=process.be_killed,
        )

    def _record(self, attempt: AttemptRecord | None) -> None:
        self.known = attempt

    def _has_opened(self, run: int) -> None:
        self.opened = max(self.opened, run)

    def _want_exit(self) -> None:
        self.exit_wanted = True


def _settings(settings: Settings, attempt: Attempt, party: Party, master: str) -> Settings:
    """This process's place in the newer run."""
    if party.new is None:
        return settings
    host, _, port = master.rpartition(":")
    address = (host, int(port)) if attempt.new_world > 1 else None
    return replace(
        settings, run=attempt.next, rank=party.new, world=attempt.new_world, master=address, handover=None, wait=0.0
    )


def _move(driver: Driver, move: Callable[[], None]) -> None:
    try:
        move()
    except GivenUp:
        return
    except PerdureError as error:
        driver.feed(on.Unable(str(error)))
    else:
        driver.feed(on.Moved())


def _fail(kind: ExitKind, why: str) -> NoReturn:
    match kind:
        case ExitKind.FENCED:
            raise Fenced(why)
        case ExitKind.PEER_LOST:
            raise PeerLost(why)
    raise HandoverFailed(why)
