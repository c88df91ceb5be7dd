"""One simulated process in hand-overs: as an old rank one attempt after the other, or as a newcomer to a living run.

Modelled after perdure.live.handover, .newcomer and .membership. `trainer` owns one of these per process.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from perdure.errors import Fenced, HandoverFailed, PeerLost, PerdureError
from perdure.live.protocol import events as on
from perdure.live.protocol.machine import PartyPhase
from perdure.live.protocol.parties import Attempt, Party, PartyRole, attempt_of
from perdure.live.protocol.state import known
from perdure.live.protocol.timing import QUIET_SECONDS, Timetable
from perdure.wire import AttemptRecord, ExitKind, HandoverWord, Leave, Train
from perdure.wire.channel import HandoverEnded, Request, TookOver
from perdure.wire.settings import Settings
from tests.simulation.bridge import Header
from tests.simulation.checkpoints import Checkpoints, Membership, TapedWriter, make_writer
from tests.simulation.driving import Driver, Ground
from tests.simulation.images import Image

if TYPE_CHECKING:
    from tests.simulation.trainer import Process

LOOK_SECONDS: Final = 0.05
MISSING_SECONDS: Final = 3.0
"""How long a decider stays for newcomers that have not come at all."""


class LiveHandover:
    """All attempts of one process."""

    def __init__(self, process: Process) -> None:
        self.exit_wanted = False
        """Whether an attempt that came to nothing leaves no other way than to save and leave."""
        self._process = process
        self._offer: Train | Leave | None = None
        self._drivers: list[Driver] = []
        """The newest last; links of earlier ones end with the process."""
        self._driver: Driver | None = None
        self._tried = 0
        self._upcoming: Settings | None = None
        self._own_writer: TapedWriter | None = None
        """The newer run's writer, if this process will be its rank 0."""

    @property
    def known(self) -> AttemptRecord | None:
        """What it did and read in its newest attempt."""
        return known(self._drivers[-1].state) if self._drivers else None

    @property
    def opened(self) -> int:
        """The newest run that it has read to have taken over."""
        return max((driver.attempt.next for driver in self._drivers if driver.entry), default=0)

    # the agent's actions

    def offer(self, assignment: Train | Leave) -> None:
        """The file is there: it is looked at when the ranks check."""
        self._offer = assignment

    def acknowledged(self, run: int) -> None:
        """The agent knows of the vote."""
        if self._driver and self._driver.attempt.next == run:
            self._driver.feed(on.Acknowledged())

    def requested(self, request: Request) -> None:
        """This process is asked to leave."""
        if self._driver:
            if self._driver.party.part is PartyRole.LEAVER:
                self._driver.shorten(request.deadline)
            self._driver.feed(on.Sigterm())

    def freeze(self, seconds: float) -> None:
        """The process is stopped for a while."""
        if self._driver:
            self._driver.freeze(seconds)

    def vanish(self) -> None:
        """The process has ended."""
        for driver in self._drivers:
            driver.vanish()

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
        driver, process = self._driver, self._process
        if driver is None:
            raise RuntimeError("the ranks stand still for a hand-over that this one does not know")
        began = process.host.monotonic()
        driver.describe = lambda: self._describe(due)
        driver.feed(on.Stopped())
        while True:
            match await driver.acts.get():
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
        if driver is None:
            return
        driver.feed(on.OlderRunEnded())
        for party in range(driver.attempt.world):
            driver.feed(on.SeenBy(party))
        begun = self._process.host.monotonic()
        while driver.phase is PartyPhase.LINGERING:
            here = set(driver.state.needed) - driver.bridge.missing()
            if self._process.host.monotonic() - begun > (QUIET_SECONDS if here else MISSING_SECONDS):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _read(self, offer: Train | Leave) -> None:
        settings = self._process.settings
        run = settings.run or 0
        if offer.handover is None or offer.run <= max(self._tried, run):
            return
        if self._driver:
            self._driver.feed(on.Newer(offer.handover.run))
            if offer.handover.run == self._driver.attempt.next:
                self._offer = offer  # it is for this process, should the attempt that is on come to go
        if offer.handover.run != run:
            return
        self._tried = offer.run
        try:
            attempt = attempt_of(offer.handover, offer.run, settings.pod)
        except PerdureError as error:
            self._process.tell(HandoverEnded(offer.run, HandoverWord.ABORT, str(error)))
            return
        block, now, save = offer.handover, self._process.host.monotonic(), self._process.save_seconds
        times = Timetable(now + block.limit, now + max(offer.seconds, block.limit) + QUIET_SECONDS, save)
        master = offer.master if isinstance(offer, Train) else ""
        party = attempt.of_old(settings.rank)
        if self._driver:
            self._driver.finish()
        driver = Driver(self._ground(settings), attempt, party, block, times)
        self._begin(driver, _settings(settings, attempt, party, master))

    def _describe(self, due: str) -> Header | None:
        process = self._process
        membership = process.membership
        if membership is None or membership.seat.rank != 0:
            return None
        checkpoints = membership.checkpoints
        track = replace(membership.gang.track)
        return Header(track, checkpoints.commit, checkpoints.goal_before, checkpoints.place, due, process.saved_at)

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
        times = Timetable(now + block.limit, now + block.limit + 3 * QUIET_SECONDS)
        driver = Driver(self._ground(settings), attempt, attempt.of_new(settings.rank), block, times)
        self._begin(driver, replace(settings, handover=None, wait=0.0))
        while True:
            match await driver.acts.get():
                case on.Install():
                    self._install(driver, 0.0)
                    return driver.header.due
                case on.JoinInPlace() if driver.received:
                    raise HandoverFailed("the newer run begins in place")
                case on.JoinInPlace():
                    driver.finish()
                    self._driver = None
                    return None
                case on.ExitProcess(kind, why):
                    _fail(kind, driver.why or why)

    def image(self) -> Image | None:
        """A newcomer that has its state holds that of the older run."""
        driver, settings = self._driver, self._process.settings
        if driver is None or driver.party.new is None or not driver.received:
            return None
        attempt, header = driver.attempt, driver.header
        ahead = header.track.step > (header.commit.step if header.commit else 0)
        if not ahead:
            return None
        return Image(settings.uid, attempt.run, driver.party.new, attempt.new_world, replace(header.track))

    # both

    def _begin(self, driver: Driver, upcoming: Settings) -> None:
        process, party = self._process, driver.party
        self._driver, self._upcoming, self._own_writer = driver, upcoming, None
        self._drivers.append(driver)
        if party.new is not None:
            driver.link.seat = process.seat(party.new)
        if party.new == 0:
            self._own_writer = make_writer(process.host, upcoming)
            driver.link.told, driver.link.mark = process.told(upcoming), self._own_writer.writer.id
        driver.begin()

    def _install(self, driver: Driver, pause: float) -> None:
        process, settings, header = self._process, self._upcoming, driver.header
        gang, seat, entry, driver.link.seat = driver.gang, driver.link.seat, driver.entry, None
        if settings is None or gang is None or seat is None or entry is None:
            raise RuntimeError("nobody has said go")
        if gang.track.step < header.track.step:
            gang.track = replace(header.track)
        checkpoints = Checkpoints(process.host, settings, gang, seat, self._own_writer)
        checkpoints.take_over(entry, header.commit, header.goal)
        driver.finish()
        self._driver, self.exit_wanted = None, False
        process.become(Membership(settings, gang, seat, checkpoints), driver.attempt.run, header.saved_at, pause)
        parts = {"pause": pause} if driver.party.old is not None else {}
        process.tell(TookOver(driver.attempt.next, settings.rank, settings.world, header.track.step, parts))

    def _ground(self, settings: Settings) -> Ground:
        process = self._process
        return Ground(
            process.host,
            process.pid,
            settings,
            process.tell,
            self._want_exit,
            process.abort,
            process.place,
            process.freeze,
            process.be_killed,
        )

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


def _fail(kind: ExitKind, why: str) -> NoReturn:
    match kind:
        case ExitKind.FENCED:
            raise Fenced(why)
        case ExitKind.PEER_LOST:
            raise PeerLost(why)
    raise HandoverFailed(why)
