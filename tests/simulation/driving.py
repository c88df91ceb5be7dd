"""One party in one attempt: the real driver and its machine, and what a driver can do, in virtual time.

Real: perdure.live.driving and .protocol, the takeover's log with the log's rules. Modelled after perdure.live.effects:
connections, the move of the state, votes (see `bridge`). Each thread of the driver is one of `threads`, so a stopped
process hears nothing and does nothing until it goes on; a request that it has sent to the store arrives all the same.
Used by `handing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import PeerLost, PerdureError
from perdure.live import driving
from perdure.live.protocol.machine import PartyPhase
from perdure.live.protocol.parties import Attempt, Party
from perdure.live.protocol.timing import Timetable
from perdure.live.word import Word
from perdure.log import takeover as takeovers
from perdure.log.entry import Opened, write_entry
from perdure.log.reader import Log, Slot, slot_of
from perdure.log.takeover import TakeoverLog
from perdure.log.verdict import Verdict
from perdure.wire import AttemptRecord, Handover, HandoverWord
from perdure.wire.channel import Attached, TrainerReport, Voting
from perdure.wire.settings import Settings
from tests.simulation.bridge import LOOK_AGAIN_SECONDS, Bridge, Bridges, Header, Link
from tests.simulation.gang import Fabric, Gang, Seat
from tests.simulation.interface import Json, MemberHost, Network
from tests.simulation.parts import repeatable
from tests.simulation.store import Access, Changes, Tape
from tests.simulation.threads import ProcessThreads

CONNECT_SECONDS: Final = (0.005, 0.1)
STATE_SECONDS: Final = (0.02, 0.6)
VOTE_SECONDS: Final = (0.001, 0.02)
BALKS: Final = "a DeviceMesh of the script's own"
SAME_SCRIPT: Final = "model, optimizer"
"""What all parties hold."""
WARM: Final = "warm"
ARRIVED: Final = "arrived"
CAN_HAND_OVER: Final = "can-hand-over"
CONNECTED: Final = "connected"
SEEN: Final = "seen"
STOPPED: Final = "stopped"


@dataclass(frozen=True)
class Ground:
    """The process that takes part."""

    host: MemberHost
    pid: int
    settings: Settings
    """Of the older run; a newcomer's are those of the newer one."""
    threads: ProcessThreads
    tell: Callable[[TrainerReport], None]
    record: Callable[[AttemptRecord | None], None]
    """For this process's outcome."""
    opened: Callable[[int], None]
    """It has read in the log that this run has opened."""
    ask_exit: Callable[[], None]
    acknowledged: Callable[[int], bool]
    """Whether the agent has acknowledged the vote for this run."""
    abort: Callable[[int], None]
    """The older run's later entries say that this one never opens."""
    old: Callable[[], tuple[Gang, Seat]]
    """An old rank's place in the older run."""
    freeze: Callable[[float], None]
    """Stop the process for so many seconds."""
    kill: Callable[[], None]
    """End it at once; its agent lives on, and tells."""


class Effects:
    """See perdure.live.driving.PartyEffects."""

    def __init__(self, ground: Ground, attempt: Attempt, party: Party, block: Handover) -> None:
        self.attempt, self.party, self.block, self.ground = attempt, party, block, ground
        self.link = Link(party, ground.host.ip, ground.host.rng)
        self.stopped = False
        self.size_obstacle = ""
        self.received = False
        """Whether a newcomer has its state."""
        self.gang: Gang | None = None
        """Of the newer run, once it is connected."""
        self.on_step: Callable[[], None] = lambda: None
        """Called at each step of the machine, before its actions."""
        self._give_up: Callable[[], None] = lambda: None
        self._limit = self._now + block.limit
        self._bridge: Bridge | None = None
        host = ground.host
        self._access = Access(host.bucket, ground.settings.root, host.network, host.ip, host.rng)
        self._taped_log: tuple[Tape, TakeoverLog] | None = None
        self._asking = asyncio.Lock()

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

    @property
    def connected(self) -> bool:
        return self.link.connected

    @property
    def peers(self) -> Ranks:
        return Ranks(*self.ground.old(), self.ground.threads)

    # while training goes on

    def find_store(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        network, here = self.ground.host.network, self.link
        fabric, bridges = Fabric.of(network), Bridges.of(network)
        if self.party.decides:
            name = f"{self.ground.settings.uid}/{self.attempt.next}/{self.attempt.new_world}"
            self._bridge = Bridge(self.attempt, name, network, self.ground.host.behaviour)
            self._bridge.enter(here)
            bridges.listen(here.ip, self.block, self._bridge, fabric)
            return
        while self._bridge is None:
            give_up()
            bridge = bridges.find(self.block)
            decider = bridge.links.get(self.attempt.decider) if bridge else None
            if bridge and decider and not decider.gone and network.reachable(here.ip, decider.ip):
                self._bridge = bridge
            elif self._now >= self._limit:
                raise PeerLost("the decider was not found")
            else:
                self._wait(fabric.changed)
        self._bridge.enter(here)
        if self.party.old is None:
            self._bridge.set(ARRIVED, here)

    def obstacle(self) -> str:
        return BALKS if self.ground.host.behaviour.balks else ""

    def await_newcomers(self) -> None:
        self._await(ARRIVED, self.bridge.newcomers, "no newcomer has come")

    def can_hand_over(self) -> bool:
        return self.bridge.have_set(CAN_HAND_OVER, self.attempt.parties[:1], self.link)

    def get_warm(self, warm: str) -> None:  # noqa: ARG002  (all hold the same)
        if self.party.number == 0:
            self.bridge.set(CAN_HAND_OVER, self.link)
        elif self.party.old is None:
            self._await(WARM, self.attempt.parties[:1], "rank 0 of the living run has not come")
        self.bridge.set(WARM, self.link)
        self._await(WARM, self.attempt.parties, "not all parties are warm")

    def connect(self) -> None:
        if not self.ground.threads.until(self.bridge.together(self.link, "connect", CONNECT_SECONDS)):
            raise PeerLost("not all parties could be connected")
        self.gang = self.bridge.connect(self.link)

    def connect_ranks(self) -> None:
        pass  # `connect` does both

    def publish_connected(self) -> None:
        self.bridge.set(CONNECTED, self.link)

    def await_connected(self) -> None:
        self._await(CONNECTED, self.attempt.parties, "not all parties are connected")

    def second_connection(self) -> Effects:
        return self

    def send_heartbeat(self) -> dict[int, int]:
        """Waits for as long as the decider does not answer, as a socket does."""
        bridge, own = self.bridge, self.party.number
        while not (self.party.decides or bridge.hears(self.link, self.attempt.decider)):
            self._check_link()
            self._wait(bridge.changed)
        bridge.heartbeats[own] += 1
        return dict(bridge.heartbeats) if self.party.decides else {own: bridge.heartbeats[own]}

    def store_answers(self) -> bool:
        tape = Tape(self._access)
        try:
            self.ground.threads.until(tape.run(Log(tape).head))
        except PerdureError:
            return False
        return True

    def _await(self, key: str, parties: Iterable[Party], missing: str) -> None:
        self._until(lambda: self.bridge.have_set(key, parties, self.link), missing)

    def _until(self, come: Callable[[], bool], missing: str) -> None:
        while not come():
            self._give_up()
            self._check_link()
            if self._now >= self._limit:
                raise PeerLost(missing)
            self._wait(self.bridge.changed)

    def _check_link(self) -> None:
        if self.bridge.is_closed_to(self.link):
            raise PeerLost("the decider is gone")

    def _wait(self, changes: Changes) -> None:
        self.ground.threads.until(changes.wait(LOOK_AGAIN_SECONDS))

    @property
    def _now(self) -> float:
        return self.ground.host.monotonic()

    # words

    def say(self, word: Word) -> None:
        if self.connected:
            self.bridge.say(self.link, word)
        elif self._bridge and self._bridge.reaches_decider(self.link):
            self._bridge.say_early(word)

    def hear(self, party: int) -> Word | None:
        said: Word | PeerLost | None = self.link.inboxes[party].get()
        if isinstance(said, PeerLost):
            raise said
        return said

    def early_word(self) -> Word | None:
        if self._bridge is None:
            return None
        self._check_link()
        return self._bridge.early if self._bridge.reaches_decider(self.link) else None

    def seen(self) -> None:
        if self.party.decides:
            return
        if self.connected:
            self.bridge.say(self.link, None)
        elif self._bridge and self._bridge.reaches_decider(self.link):
            self._bridge.set(SEEN, self.link)

    def seen_by(self, parties: Iterable[int]) -> list[int]:
        return [party for party in parties if self._bridge and party in self._bridge.keys[SEEN]]

    def missing(self) -> set[int]:
        """On the decider: the parties that never came."""
        every = {party.number for party in self.attempt.parties}
        return every - self._bridge.keys[WARM] if self._bridge else set()

    def let_go(self) -> None:
        pass

    # in the stop

    def give(self, header: Header | None) -> None:
        """On an old rank; `header` is old rank 0's."""
        self.bridge.set(STOPPED, self.link)
        self.bridge.header = header or self.bridge.header
        self._move()

    def take(self) -> None:
        """On a newcomer."""
        bridge = self.bridge
        stood = lambda: bool(bridge.keys[STOPPED]) and bridge.reaches_decider(self.link)  # noqa: E731
        self._until(stood, "the old ranks have not stopped for the hand-over")
        self.stopped = True
        self._move()
        self.received = True

    def _move(self) -> None:
        if not self.ground.threads.until(self.bridge.together(self.link, "state", STATE_SECONDS)):
            raise PeerLost("state could not be moved")

    def vote(self) -> None:
        if not self.ground.threads.until(self.bridge.together(self.link, "vote", VOTE_SECONDS)):
            raise PeerLost("the votes were not counted")

    # the agent

    def record(self, attempt: AttemptRecord | None) -> None:
        self.ground.record(attempt)
        self.on_step()

    def tell(self, report: TrainerReport) -> None:
        self.ground.tell(report)

    def tell_attached(self, why: str) -> None:
        self.ground.tell(Attached(self.ground.pid, not why, why, images=True))

    def tell_voting(self) -> None:
        self.ground.tell(Voting(self.attempt.run, self.attempt.next))

    def acknowledged(self) -> bool:
        return self.ground.acknowledged(self.attempt.next)

    # the log

    def abort(self) -> None:
        if self.party.old is not None:
            self.ground.abort(self.attempt.next)

    def append_opened(self) -> Verdict:
        world, step, mark = self.attempt.new_world, self.header.track.step, self.bridge.mark
        return self._ask(lambda log: log.open(world, step, mark))

    def append_refused(self) -> Verdict:
        return self._ask(TakeoverLog.refuse)

    def read_log(self) -> Verdict:
        return self._ask(TakeoverLog.look)

    def word(self) -> Word:
        slot = self._takeover()[1].entry
        if slot is None or slot.entry is None:
            raise RuntimeError("the log has not decided")
        return Word(HandoverWord.GO, seq=slot.seq, entry=write_entry(slot.entry).decode())

    def learn(self, word: Word) -> None:
        self._learn(slot_of(word.seq, word.entry.encode()))

    def _ask(self, ask: Callable[[TakeoverLog], Verdict]) -> Verdict:
        tape, log = self._takeover()

        def act() -> Verdict:
            with repeatable(takeovers, tape, self.ground.host):
                return ask(log)

        async def asked() -> Verdict:
            async with self._asking:
                found: Verdict = await tape.run(act, log)
            return found

        found = self.ground.threads.until(asked())
        self._learn(log.entry)
        return found

    def _learn(self, slot: Slot | None) -> None:
        if slot and slot.entry and isinstance(slot.entry.event, Opened):
            self.ground.opened(slot.entry.run)

    def _takeover(self) -> tuple[Tape, TakeoverLog]:
        if self._taped_log is None:
            tape, header = Tape(self._access), self._bridge.header if self._bridge else None
            uid, place = self.ground.settings.uid, header.place if header else None
            with repeatable(takeovers, tape, self.ground.host):
                log = TakeoverLog(Log(tape), uid=uid, run=self.attempt.run, next_run=self.attempt.next, place=place)
            self._taped_log = tape, log
        return self._taped_log


class Ranks:
    """See perdure.group.peers.Peers: those of the older run."""

    def __init__(self, gang: Gang, seat: Seat, threads: ProcessThreads) -> None:
        self.rank, self.world = seat.rank, gang.world
        self._gang, self._seat, self._threads = gang, seat, threads

    def gather(self, doing: str, value: Any) -> list[Any]:  # noqa: ARG002
        return self._threads.until(self._gang.gather(self._seat, value))

    def broadcast(self, doing: str, value: Any) -> Any:  # noqa: ARG002
        return self._threads.until(self._gang.broadcast(self._seat, value))


class Driver(driving.Driver[Effects]):
    """The real one. It tells of its phases, for the trace and the checks."""

    def __init__(self, effects: Effects, times: Timetable) -> None:
        ground = effects.ground
        super().__init__(effects, times, ask_exit=ground.ask_exit, threads=ground.threads)
        self.party, self.attempt, self.ground, self.block = effects.party, effects.attempt, ground, effects.block
        self._told: PartyPhase | None = None
        effects.on_step = self._tell_phase

    @property
    def pod(self) -> Json:
        """Where it runs."""
        return self.ground.host.pod

    def take_part(self) -> None:
        """From now on."""
        drivers(self.ground.host.network).append(self)
        self._tell_phase()
        self.begin(SAME_SCRIPT)

    def tear(self) -> None:
        """One of its links is reset in the middle of the next collective, and no party dies."""
        if self.effects._bridge:
            self.effects._bridge.torn.add(self.party.number)

    def finish(self) -> None:
        if self in drivers(self.ground.host.network):
            drivers(self.ground.host.network).remove(self)
        super().finish()

    def vanish(self) -> None:
        """The process has ended."""
        self.finish()
        if self.effects._bridge:
            self.effects._bridge.leave(self.effects.link)

    def _tell_phase(self) -> None:
        if self.phase is self._told:
            return
        self._told, attempt, party = self.phase, self.attempt, self.party
        facts = {"run": attempt.run, "next": attempt.next, "number": party.number, "part": party.part.value}
        facts |= {"phase": self.phase.value, "parties": len(attempt.parties), "old": attempt.world}
        deadline = round(self._timetable.deadline, 3)
        uid = self.ground.settings.uid
        self.ground.host.tell("party", **facts, decides=party.decides, uid=uid, until=deadline)


def drivers(network: Network) -> list[Driver]:
    """Those that take part in any attempt of a history now, in the order in which they began."""
    found: list[Driver] = network.shared.setdefault("drivers", [])
    return found
