"""Drives the real machine of one party through one attempt, in virtual time: what waits for others waits here.

Real: perdure.live.protocol's machines and timetable, the takeover's writer with the log's rules. Modelled after
perdure.live.driving and .effects: threads are tasks, and the main thread waits for acts in a queue. A process
that is stopped hears nothing, and does nothing, until it goes on; a request that it has sent to the store arrives all
the same. Used by `handing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.errors import PeerLost, PerdureError
from perdure.live.protocol import events as on
from perdure.live.protocol.hearing import Hearing
from perdure.live.protocol.machine import PartyPhase, PartyState, begin, named, step
from perdure.live.protocol.parties import Attempt, Party
from perdure.live.protocol.timing import HERE_SECONDS, Timetable
from perdure.log import takeover as takeovers
from perdure.log.reader import Log, Slot
from perdure.log.takeover import TakeoverLog
from perdure.log.verdict import Verdict
from perdure.wire import Handover
from perdure.wire.channel import Attached, HandoverEnded, TrainerReport, Voting
from perdure.wire.settings import Settings
from tests.simulation.bridge import LOOK_AGAIN_SECONDS, Bridge, Bridges, Header, Link
from tests.simulation.gang import Fabric, Gang, Seat
from tests.simulation.interface import Json, MemberHost, Network
from tests.simulation.parts import repeatable
from tests.simulation.store import Access, Changes, Tape

AGAIN_SECONDS: Final = 0.2
STORE_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = (0.005, 0.1)
STATE_SECONDS: Final = (0.02, 0.6)
VOTE_SECONDS: Final = (0.001, 0.02)
SCRIPT_SECONDS: Final = (0.01, 0.4)
"""The work of a newcomer's script between its `restore` and its first batch."""
BALKS: Final = "a DeviceMesh of the script's own"

Main = on.Install | on.TrainOn | on.SaveAndExit | on.JoinInPlace | on.ExitProcess
"""What only the script's own thread does."""


@dataclass(frozen=True)
class Ground:
    """The process that takes part."""

    host: MemberHost
    pid: int
    settings: Settings
    """Of the older run; a newcomer's are those of the newer one."""
    tell: Callable[[TrainerReport], None]
    ask_exit: Callable[[], None]
    abort: Callable[[int], None]
    """The older run's later entries say that this one never opens."""
    old: Callable[[], tuple[Gang, Seat]]
    """An old rank's place in the older run."""
    freeze: Callable[[float], None]
    """Stop the process for so many seconds."""
    kill: Callable[[], None]
    """End it at once; its agent lives on, and tells."""


class Driver:
    """One party of one attempt."""

    def __init__(self, ground: Ground, attempt: Attempt, party: Party, block: Handover, times: Timetable) -> None:
        self.attempt, self.party, self.block = attempt, party, block
        self.ground = ground
        self.acts: asyncio.Queue[Main] = asyncio.Queue()
        self.link = Link(party, ground.host.ip, ground.host.rng, self.feed)
        self.describe: Callable[[], Header | None] = lambda: None
        """What old rank 0 tells in the stop."""
        self.received = False
        """Whether a newcomer has its state."""
        self.entry: Slot | None = None
        """The log's entry that says go."""
        self.gang: Gang | None = None
        """Of the newer run, once it is connected."""
        self.why = ""
        self.times = times
        self._limit = ground.host.monotonic() + block.limit
        self._bridge: Bridge | None = None
        self._connect = asyncio.Event()
        self._frozen, self._late = False, list[on.Event]()
        self._thawed = Changes()
        self._over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._access = Access(ground.host.bucket, ground.settings.root, ground.host.network, ground.host.ip, self._rng)
        self._taped_log: tuple[Tape, TakeoverLog] | None = None
        self._asking = asyncio.Lock()
        self._state, self._first = begin(attempt, party.number)

    @property
    def pod(self) -> Json:
        """Where it runs."""
        return self.ground.host.pod

    @property
    def phase(self) -> PartyPhase:
        return self._state.phase

    @property
    def state(self) -> PartyState:
        return self._state

    @property
    def named(self) -> int:
        """The run that this rank is ready to become; 0 while it is not."""
        return 0 if self._frozen else named(self._state)

    @property
    def bridge(self) -> Bridge:
        if self._bridge is None:
            raise RuntimeError("the attempt's store is not found yet")
        return self._bridge

    @property
    def header(self) -> Header:
        if self.bridge.header is None:
            raise RuntimeError("nothing was reported in the stop")
        return self.bridge.header

    def begin(self) -> None:
        """Takes part from now on."""
        drivers(self.ground.host.network).append(self)
        self._tell_phase()
        self._set_timer()
        for action in self._first:
            self._act(action)

    def feed(self, event: on.Event) -> None:
        """Something has happened."""
        if self._over:
            return
        if self._frozen:
            self._late.append(event)
            return
        match event:
            case on.Stopped():
                self.times = replace(self.times, stopped=self._now)
                self._set_timer()
            case on.Heard(word, why):
                self.why = why or word.value
                self.entry = self.entry or (self._bridge.entry if self._bridge else None)
        before = self._state.phase
        self._state, actions = step(self._state, event)
        if self._state.phase is not before:
            self._tell_phase()
        for action in actions:
            self._act(action)

    def shorten(self, deadline: float) -> None:
        """This process ends earlier than it was to."""
        self.times = self.times.shortened(deadline)
        self._set_timer()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self._frozen = self.link.still = True
        asyncio.get_running_loop().call_later(seconds, self._thaw)

    def tear(self) -> None:
        """One of its links is reset in the middle of the next collective, and no party dies."""
        if self._bridge:
            self._bridge.torn.add(self.party.number)

    def finish(self) -> None:
        """Nothing is waited for any more."""
        self._over = True
        drivers(self.ground.host.network).remove(self)
        if self._timer:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def vanish(self) -> None:
        """The process has ended."""
        if not self._over:
            self.finish()
        if self._bridge:
            self._bridge.leave(self.link)

    # acts

    def _act(self, action: on.Action) -> None:
        match action:
            case on.Install() | on.TrainOn() | on.SaveAndExit() | on.JoinInPlace() | on.ExitProcess():
                if isinstance(action, on.TrainOn | on.SaveAndExit) and action.aborted:
                    self.ground.abort(action.aborted)
                self.acts.put_nowait(action)
            case on.SetWarm():
                self._spawn(self._prepare())
            case on.Connect():
                self._connect.set()
            case on.SetConnected():
                self._spawn(self._meet())
            case on.MoveState():
                self._spawn(self._move())
            case on.Vote():
                self._spawn(self._vote())
            case on.BeginRound(choice):
                self._spawn(self._round(choice))
            case on.AppendOpened() | on.AppendRefused() | on.ReadLog():
                self._spawn(self._ask_log(action))
            case _:
                self._say(action)

    def _say(self, action: on.Action) -> None:
        tell, number = self.ground.tell, self.attempt.next
        match action:
            case on.SayToAll(word, why):
                self.why = self.why or why
                if self._bridge:
                    self._bridge.entry = self._bridge.entry or self.entry
                    self._bridge.say(self.link, on.Heard(word, why))
            case on.SetSeen():
                if self._bridge:
                    self._bridge.seen(self.link)
            case on.TellVoting():
                self.times = replace(self.times, informed=self._now)
                self._set_timer()
                tell(Voting(self.attempt.run, number))
            case on.TellEnded(word, why):
                tell(HandoverEnded(number, word, self.why or why))
            case on.AskExit():
                self.ground.ask_exit()

    async def _prepare(self) -> None:
        if self.party.old is None:
            self._spawn(self._watch_log())
        bridge = await self._find()
        if bridge is None:
            return
        if self.party.old is None:
            bridge.arrive(self.link)
        if self.ground.host.behaviour.balks:
            await self._refuse()
            return
        bridge.enter(self.link)
        if not await self._awaits(lambda: bridge.is_warm(self.link), "not all parties are warm"):
            return
        if self.party.decides:
            self.feed(on.StoreSeen(await self._store_answers()))
        self.feed(on.AllWarm())
        await self._connect.wait()
        if not await bridge.together(self.link, "connect", CONNECT_SECONDS):
            self.feed(on.Unable("not all parties could be connected"))
            return
        self.gang = bridge.connect(self.link)
        self._spawn(self._hear())
        self.feed(on.Connected())
        while self.party.decides and self.phase is PartyPhase.PREPARING:
            await asyncio.sleep(STORE_SECONDS)
            self.feed(on.StoreSeen(await self._store_answers()))

    async def _refuse(self) -> None:
        bridge = self.bridge
        if self.party.old is None:
            await self._awaits(lambda: False, "the old ranks have not refused")
        elif self.attempt.leavers or await self._awaits(lambda: bridge.have_arrived(self.link), "no newcomer has come"):
            self.ground.tell(Attached(self.ground.pid, False, BALKS, images=True))
            self.feed(on.NotLive(BALKS))

    async def _meet(self) -> None:
        bridge = self.bridge
        bridge.report_connected(self.link)
        if self.party.old is None:
            return
        if await self._awaits(lambda: bridge.is_connected(self.link), "not all parties are connected"):
            self.feed(on.AllConnected())

    async def _hear(self) -> None:
        """Each party sends a heartbeat once a second to the decider, which answers and so shows all that it lives.

        A newcomer waits for no party, and none for it, before the old ranks stand still.
        """
        bridge, decider, own = self.bridge, self.attempt.decider, self.party.number
        others = {party.number for party in self.attempt.parties} - {own} if self.party.decides else {decider}
        hearing = Hearing(others, self._now)
        while not self._over:
            await asyncio.sleep(HERE_SECONDS)
            if self._frozen:
                continue
            for party in others:
                if bridge.hears(self.link, party):
                    hearing.heard(party)
            for silent in list(hearing.silent(self._now)):
                if self.party.old is not None or bridge.stopped:
                    self.feed(silent)

    async def _watch_log(self) -> None:
        """As a newcomer: the older run may end without having heard of this attempt."""
        while True:
            await asyncio.sleep(STORE_SECONDS)
            if self.phase is not PartyPhase.PREPARING:
                return
            await self._ask_log(on.ReadLog())

    async def _find(self) -> Bridge | None:
        """Once the decider listens; None if that is no longer awaited."""
        host, settings, fabric = self.ground.host, self.ground.settings, Fabric.of(self.ground.host.network)
        bridges = Bridges.of(host.network)
        if self.party.decides:
            name = f"{settings.uid}/{self.attempt.next}/{self.attempt.new_world}"
            self._bridge = Bridge(self.attempt, name, host.network, host.behaviour)
            self._bridge.enter(self.link)
            bridges.listen(host.ip, self.block, self._bridge, fabric)
            return self._bridge
        while self._now < self._limit:
            bridge = bridges.find(self.block)
            decider = bridge.links.get(self.attempt.decider) if bridge else None
            if bridge and decider and not decider.gone and host.network.reachable(host.ip, decider.ip):
                self._bridge = bridge
                return bridge
            await fabric.changed.wait(LOOK_AGAIN_SECONDS)
        self.feed(on.Unable("the decider was not found"))
        return None

    async def _awaits(self, come: Callable[[], bool], awaited: str) -> bool:
        """Whether it comes; otherwise the party gets the reason."""
        bridge = self.bridge
        while not come():
            if bridge.early:
                self.feed(bridge.early)
                return False
            if bridge.is_closed_to(self.link) or self._now >= self._limit:
                self.feed(on.Unable(awaited))
                return False
            await bridge.changed.wait(LOOK_AGAIN_SECONDS)
        return True

    async def _move(self) -> None:
        bridge = self.bridge
        if self.party.old is None:
            if not await self._awaits(lambda: bridge.stopped, "the old ranks have not stopped"):
                return
        else:
            bridge.stand_still()
            bridge.header = self.describe() or bridge.header
        if not await bridge.together(self.link, "state", STATE_SECONDS):
            self.feed(on.Unable("state could not be moved"))
            return
        self.received = True
        self.feed(on.Moved())
        if self.party.old is None:
            await asyncio.sleep(self._rng.uniform(*SCRIPT_SECONDS))
            self.feed(on.FirstBatch())

    async def _vote(self) -> None:
        whole = await self.bridge.together(self.link, "vote", VOTE_SECONDS)
        self.feed(on.VoteReduced(whole))

    async def _round(self, choice: on.Choice) -> None:
        gang, seat = self.ground.old()
        try:
            found = on.Choice(max(await gang.gather(seat, int(choice))))
        except PeerLost:
            self.feed(on.RoundDone(None))
        else:
            self.feed(on.RoundDone(found))

    # the log

    async def _store_answers(self) -> bool:
        tape = Tape(self._access)
        try:
            await tape.run(Log(tape).head)
        except PerdureError:
            return False
        return True

    async def _ask_log(self, action: on.AppendOpened | on.AppendRefused | on.ReadLog) -> None:
        if not isinstance(action, on.AppendRefused) and action.again:
            await asyncio.sleep(AGAIN_SECONDS)
        while self._frozen:
            await self._thawed.wait(LOOK_AGAIN_SECONDS)
        tape, log = self._takeover()

        def ask() -> Verdict:
            with repeatable(takeovers, tape, self.ground.host):
                match action:
                    case on.AppendOpened():
                        return log.open(self.attempt.new_world, self.header.track.step, self.bridge.mark)
                    case on.AppendRefused():
                        return log.refuse()
                    case on.ReadLog():
                        return log.look()

        try:
            async with self._asking:
                verdict: Verdict | None = await tape.run(ask, log)
        except PerdureError:
            verdict = None
        if verdict is Verdict.GO:
            self.entry = self.entry or log.entry
        self.feed(on.LogAnswered(verdict))

    def _takeover(self) -> tuple[Tape, TakeoverLog]:
        if self._taped_log is None:
            tape, header = Tape(self._access), self._bridge.header if self._bridge else None
            with repeatable(takeovers, tape, self.ground.host):
                log = TakeoverLog(
                    Log(tape),
                    uid=self.ground.settings.uid,
                    run=self.attempt.run,
                    next_run=self.attempt.next,
                    place=header.place if header else None,
                )
            self._taped_log = tape, log
        return self._taped_log

    # time

    @property
    def _now(self) -> float:
        return self.ground.host.monotonic()

    @property
    def _rng(self) -> Any:
        return self.ground.host.rng

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._done)
        self._tasks.append(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()):
            raise error  # a mistake of the simulation itself

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        at = None if self._over else self.times.next(self._now)
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._ring)

    def _ring(self) -> None:
        for alarm in self.times.due(self._now):
            if not self._frozen:
                self.feed(on.Passed(alarm))
        self._set_timer()

    def _thaw(self) -> None:
        if self._over:
            return
        self._frozen = self.link.still = False
        late, self._late = self._late, []
        for event in late:
            self.feed(event)
        self._ring()
        self._thawed.tell()

    def _tell_phase(self) -> None:
        """For the trace and the checks."""
        attempt, party = self.attempt, self.party
        facts = {"run": attempt.run, "next": attempt.next, "number": party.number, "part": party.part.value}
        facts |= {"phase": self.phase.value, "parties": len(attempt.parties), "old": attempt.world}
        deadline = round(self.times.deadline, 3)
        self.ground.host.tell("party", **facts, decides=party.decides, uid=self.ground.settings.uid, until=deadline)


def drivers(network: Network) -> list[Driver]:
    """Those that take part in any attempt of a history now, in the order in which they began."""
    found: list[Driver] = network.shared.setdefault("drivers", [])
    return found
