"""The actions of one process in a hand-over: connect, move the state, vote, write the log, change ranks.

The machines of perdure.live.protocol decide when and whether, driven by perdure.live.driving. Actions that wait for
another party raise PeerLost, those on the log StorageError. Only `install` changes the training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from torch import Tensor

from perdure.checkpoint.boxes import meshes_stay
from perdure.checkpoint.codec import decode
from perdure.checkpoint.manifest import Item, read_item
from perdure.checkpoint.state import RankState
from perdure.errors import PeerLost, StorageError
from perdure.group.peers import Peers
from perdure.group.rendezvous import Deadline, connect_ranks
from perdure.layout.elastic import ElasticMesh
from perdure.live.bridge import Bridge, connect_bridge, settings_of
from perdure.live.collector import CollectorPause
from perdure.live.header import Header, Stop
from perdure.live.keys import StoreKeys, open_keys
from perdure.live.liveness import has_placeholders, hidden_obstacle, obstacle, tell_attached
from perdure.live.membership import BEGAN_ANEW, change_ranks, make_writer, take_over_log
from perdure.live.own_states import Gathered, OwnStates
from perdure.live.protocol.parties import Attempt, Party, PartyRole
from perdure.live.protocol.timing import QUIET_SECONDS
from perdure.live.resharding import Resharding
from perdure.live.summing import Summing
from perdure.live.transfer import (
    Key,
    Parcel,
    describe,
    exchange,
    parcels,
    preallocate,
    receive,
    send,
)
from perdure.live.word import Word
from perdure.log.entry import ObjectRef, Opened, write_entry
from perdure.log.members import put_members
from perdure.log.reader import Log, Slot, slot_of
from perdure.log.takeover import TakeoverLog
from perdure.log.verdict import Verdict
from perdure.log.writer import Writer
from perdure.loop.run import Run
from perdure.wire import AttemptRecord, Handover, HandoverWord
from perdure.wire.channel import HandoverEnded, TookOver, Voting, vote_acknowledged


class Effects:
    """The actions of one party."""

    def __init__(self, run: Run, attempt: Attempt, party: Party, block: Handover, master: str) -> None:
        self.run = run
        self.attempt = attempt
        self.party = party
        self.block = block
        self.settings = settings_of(attempt, party, run.settings, master)
        """Settings in the newer run; a leaver's are those of the older run."""
        self.stop_seconds: dict[str, float] = {}
        """Seconds by part of the stop."""
        self.header: Header | None = None
        self.preallocations: tuple[Item, ...] = ()
        """On old rank 0: the tensors that a newcomer's script does not create itself."""
        self._preallocated: Mapping[Key, Tensor] | None = {}
        """On a newcomer: memory for them; None if it is no longer wanted."""
        self._keys: StoreKeys | None = None
        self._bridge: Bridge | None = None
        self._deadline = Deadline(block.limit, lambda: None)
        self._writer: Writer | None = None
        self._takeover: TakeoverLog | None = None
        self._log = threading.Lock()
        """Held while this party reads the log or appends to it."""
        self._members: ObjectRef | None = None
        """On the decider: the pods and nodes of the newer run's ranks, as stored."""
        self._kept: RankState | None = None
        """On a stayer that becomes rank 0: the state that it received from the old rank 0."""
        self._held = 0
        """On an old rank: the checksum of what the newcomers receive."""
        self.own_states = OwnStates(run, attempt, party)
        self.resharding = Resharding(run, attempt, party)
        self.stopped = False
        """On a newcomer: whether the old ranks have stopped for it."""
        self._collector = CollectorPause()
        self._mark = time.monotonic()

    @property
    def keys(self) -> StoreKeys:
        """The attempt's key-value store; RuntimeError before `find_store`."""
        if self._keys is None:
            raise RuntimeError("the attempt's store is not found yet")
        return self._keys

    @property
    def bridge(self) -> Bridge:
        """The connected parties; RuntimeError before `connect`."""
        if self._bridge is None:
            raise RuntimeError("the bridge is not connected")
        return self._bridge

    @property
    def peers(self) -> Peers:
        """The ranks of this process's run."""
        return self.run.peers

    @property
    def size_obstacle(self) -> str:
        """Why the newer run cannot have its size; "" if it can."""
        return self.resharding.obstacle

    # While training goes on.

    def obstacle(self) -> str:
        """Why this process cannot change its ranks while it trains; "" if it can. From any thread."""
        return obstacle(self.run) or hidden_obstacle(self.run)

    def find_store(self, give_up: Callable[[], None]) -> None:
        """Wait until the decider listens, and connect to its store. `give_up` raises to end the wait."""
        self._deadline = Deadline(self.block.limit, give_up)
        if self.party.new == 0:
            self._writer = make_writer(self.run, self.settings)
        self._keys = open_keys(self.block, self.attempt, self.party, give_up)
        if self.party.part is PartyRole.NEWCOMER:
            self._keys.publish_arrival()

    def await_newcomers(self) -> None:
        """On an old rank: wait until each newcomer has found the decider."""
        self.keys.await_newcomers(self._deadline)

    def get_warm(self, warm: str) -> None:
        """Wait until all parties are warm and hold the same modules and optimizers as this one."""
        if self.party.number == 0:
            self.keys.publish_placeholder(wanted=has_placeholders(self.run))
            self.keys.publish_memory_needed([asdict(item) for item in self.preallocations])
        elif self.party.part is PartyRole.NEWCOMER:
            self._preallocate([read_item(item) for item in self.keys.await_memory_needed(self._deadline)])
        mark = self._writer.id if self._writer else ""
        self.resharding.foresee()
        if mesh := self.resharding.mesh():
            warm = f"{warm}\na mesh of shape {list(mesh.shape)} in the newer run"
        self.keys.await_warm(warm, mark, self._deadline, self.run.settings.member)
        self.resharding.take_memory()
        if self.party.decides:
            with suppress(StorageError):  # the next call asks whether the store answers
                self._members = put_members(self.run.store, self.attempt.next, self.keys.members())

    def await_placeholder(self) -> bool:
        """On a newcomer: wait until old rank 0 can hand over, and return whether this process gets a placeholder."""
        return self.keys.await_placeholder(self._deadline)

    def can_hand_over(self) -> bool:
        """On a newcomer: whether old rank 0 has found no obstacle to this hand-over."""
        return self.keys.can_hand_over()

    def free_preallocated(self) -> None:
        """On a newcomer that receives no state: free the tensor memory."""
        self._preallocated = None

    def _preallocate(self, items: Sequence[Item]) -> None:
        memory = preallocate(items, self.run.registry.owners_of(items))
        if self._preallocated is not None:  # not given up meanwhile
            self._preallocated = memory

    def connect(self) -> None:
        """Connect all parties: from now on each hears the words, and learns of the death, of any other."""
        begun = time.monotonic()
        seconds = self.block.limit + 3 * QUIET_SECONDS
        self._bridge = connect_bridge(self.keys, self.attempt, self.party, seconds=seconds)
        self.stop_seconds["connect"] = time.monotonic() - begun

    def connect_ranks(self) -> None:
        """Connect the newer run's groups, if this party is a rank of it."""
        if self.party.new is None:
            return
        begun, bridge, mesh = time.monotonic(), self.bridge, self.resharding.mesh()
        timeout = timedelta(seconds=self.run.timeout)
        groups = tuple(mesh.groups_beside_world(self.party.new)) if mesh else ()
        bridge.groups = connect_ranks(self.settings, timeout=timeout, deadline=self._deadline, mesh=groups)
        self.stop_seconds["connect"] += time.monotonic() - begun

    def publish_connected(self) -> None:
        """Tell the old ranks that this party is connected."""
        self.keys.publish_connected()

    def await_connected(self) -> None:
        """On an old rank: wait until all parties are connected."""
        self.keys.await_connected(self._deadline)

    def store_answers(self) -> bool:
        """Whether the object store answers."""
        try:
            Log(self.run.store).head()
        except StorageError:
            return False
        return True

    def abort(self) -> None:
        """Free what was taken for the newer run, and record that it never opens, in later log entries of the older
        one."""
        self.resharding.free_memory()
        checkpointer = self.run.opened_checkpointer
        if checkpointer and checkpointer.writer and self.party.old is not None:
            checkpointer.writer.never_opens(self.attempt.next)

    # Words.

    def say(self, word: Word) -> None:
        """Send a word to all reachable parties."""
        with suppress(PeerLost):
            if self._bridge:
                self._bridge.say(word)
            elif self._keys:
                self._keys.say(word)

    def hear(self, party: int) -> Word | None:
        """Wait for a party's word; None if it sends no more. Raises PeerLost if its process ends."""
        return self.bridge.hear(party)

    def missing(self) -> list[int]:
        """On the decider: the parties that never arrived."""
        with suppress(PeerLost):
            return self._keys.missing() if self._keys else []
        return []

    @property
    def connected(self) -> bool:
        """Whether the bridge is connected."""
        return self._bridge is not None

    def early_word(self) -> Word | None:
        """The word that was said before the bridge was connected."""
        return self._keys.word() if self._keys else None

    def seen(self) -> None:
        """Report that this party no longer needs the decider's store."""
        with suppress(PeerLost):
            if self.party.decides:
                return
            if self._bridge:
                self._bridge.say(None)
            elif self._keys:
                self._keys.publish_seen()

    def seen_by(self, parties: Iterable[int]) -> list[int]:
        """On the decider: the parties among these that have no bridge and no longer need its store."""
        with suppress(PeerLost):
            return self._keys.seen_by(parties) if self._keys else []
        return []

    def let_go(self) -> None:
        """Drop all connections, once no other party needs this one."""
        self._bridge = self._keys = None
        self._deadline = Deadline(0.0, lambda: None)  # the old one refers to the driver

    def second_connection(self) -> StoreKeys:
        """A second connection to the decider's store. Raises PeerLost if the decider is gone."""
        return self.keys.second_connection()

    # During the stop.

    def begin(self) -> None:
        """The stop begins: start the clock of its parts."""
        self._collector.begin()
        self._mark = time.monotonic()

    def end(self) -> None:
        """The stop is over, however it ended."""
        self._collector.end()
        self.resharding.forget_new_shards()

    def lap(self, part: str) -> None:
        """End a part of the stop and record its seconds."""
        now = time.monotonic()
        self.stop_seconds[part], self._mark = self.stop_seconds.get(part, 0.0) + now - self._mark, now

    @meshes_stay()
    def give(self, stop: Stop) -> None:
        """On an old rank: send what a commit made here would hold. This rank's state does not change."""
        bridge = self.bridge
        self.resharding.check_moment()
        self.keys.announce_stop()
        gathered = self.own_states.gather()
        state = gathered.state
        header = Header.read(bridge.peers.announce(self._describe(stop, gathered)))
        self.header = header
        if self.attempt.world == self.attempt.new_world:
            self.run.images.know(header.ranks)
        self.lap("header")
        given = self._parcels(header)
        if state:
            self.resharding.allocate_new_shards(header, state)
        if state:
            alike = {name: tensor for name, tensor in state.shared.items() if name not in header.shards}
            with Summing(alike if self.attempt.world > 1 else {}) as summing:
                found = self._exchange(given, state)
            self._held = summing.sum
        if self.party.number in self.attempt.tensor_receivers:
            self._kept = header.received(found, state)
        if self.party.part is PartyRole.STAYER:
            self.own_states.merge(header)
        self.lap("state")

    def _parcels(self, header: Header) -> list[Parcel]:
        change = self.resharding.change(ElasticMesh(header.mesh)) if header.mesh else None
        return parcels(self.attempt, header.items, self.party.number, header.shards, change)

    def _exchange(self, given: Sequence[Parcel], state: RankState) -> dict[Key, Tensor]:
        """Send this rank's part, and receive what it needs itself."""
        group, me = self.bridge.group, self.party.number
        if places := self.resharding.places:
            return exchange(group, me, given, state, places)
        send(group, [parcel for parcel in given if parcel.sender == me], state)
        return receive(group, [parcel for parcel in given if parcel.receiver == me], {})

    def take(self) -> RankState:
        """On a newcomer: wait until the old ranks stop, and receive the state into this script's own tensors."""
        self.keys.await_stop(self._deadline)
        self.stopped = True
        self.begin()
        return self._take()

    @meshes_stay()
    def _take(self) -> RankState:
        bridge, registry = self.bridge, self.run.registry
        header = Header.read(bridge.peers.announce(None))
        self.header = header
        self.lap("header")
        given = self._parcels(header)
        targets = registry.targets(decode(header.objects), header.items, self._preallocated or {})
        self._preallocated = None
        self.resharding.check_shards(header, targets)
        found = receive(bridge.group, given, targets)
        self.lap("state")
        return header.state(found, self.own_states.of_newcomer(header))

    # The agent, if there is one.

    def record(self, attempt: AttemptRecord | None) -> None:
        """Remember the attempt for this process's outcome."""
        self.run.attempt = attempt

    def tell(self, report: HandoverEnded) -> None:
        """Tell the agent."""
        self.run.tell(report)

    def tell_attached(self, why: str) -> None:
        """Tell the agent why this process accepts no live hand-over."""
        tell_attached(self.run, why)

    def tell_voting(self) -> None:
        """Tell the agent that this trainer is about to vote."""
        self.run.tell(Voting(self.attempt.run, self.attempt.next))

    def acknowledged(self) -> bool:
        """Whether the agent has acknowledged the vote; True without an agent."""
        settings = self.run.settings
        if settings.report_fd is None or settings.offer_file is None:
            return True
        return vote_acknowledged(settings.offer_file, self.attempt.next)

    def vote(self) -> None:
        """Vote that this party is ready, and wait for all votes."""
        self.bridge.vote(None if self.party.part is PartyRole.NEWCOMER else self._held)
        self.lap("vote")

    # The log.

    @property
    def takeover(self) -> TakeoverLog:
        """This party's view of the log."""
        if self._takeover is None:
            run, header = self.run, self.header
            place = header.place if header else None
            self._takeover = TakeoverLog(
                Log(run.store), uid=self.settings.uid, run=self.attempt.run, next_run=self.attempt.next, place=place
            )
        return self._takeover

    def append_opened(self) -> Verdict:
        """On the decider: append Opened with one PUT. OPEN: a commit of the older run came first, so try again."""
        step = self.header.position.step if self.header else self.run.progress.step
        with self._log:
            found = self.takeover.open(self.attempt.new_world, step, self.keys.writer, self._members)
        self.lap("append")
        self._learn(self.takeover.entry)
        return found

    def append_refused(self) -> Verdict:
        """Append Refused with one PUT, to settle an unknown outcome. OPEN: a commit of the older run came first, try
        again."""
        with self._log:
            found = self.takeover.refuse()
        self._learn(self.takeover.entry)
        return found

    def read_log(self) -> Verdict:
        """The attempt's verdict in the log."""
        with self._log:
            found = self.takeover.look()
        self._learn(self.takeover.entry)
        return found

    def word(self) -> Word:
        """The log's deciding entry as a word for the other parties."""
        slot = self.takeover.entry
        if slot is None or slot.entry is None:
            raise RuntimeError("the log has not decided")
        return Word(HandoverWord.GO, seq=slot.seq, entry=write_entry(slot.entry).decode())

    def learn(self, word: Word) -> None:
        """Learn from a word GO, which carries the log's entry."""
        self._learn(slot_of(word.seq, word.entry.encode()))

    def _learn(self, slot: Slot | None) -> None:
        """Remember the newest opened run, which this process reports when it ends."""
        if slot and slot.entry and isinstance(slot.entry.event, Opened):
            self.run.read_opened = max(self.run.read_opened, slot.entry.run)

    # After the decision.

    def took_over(self) -> TookOver:
        """The message to the agent once this process is a rank of the newer run."""
        run, parts = self.run, dict(self.stop_seconds)
        if self.party.old is not None:  # a newcomer did not train, so it has no pause
            parts["pause"] = sum(seconds for part, seconds in parts.items() if part != "connect")
        return TookOver(self.attempt.next, run.rank, run.world, run.progress.step, parts)

    def install(self, word: Word) -> list[Any]:
        """Become a rank of the newer run. Returns the old groups, which the caller frees later."""
        run, header = self.run, self.header
        if self.attempt.newcomers:
            run.hint = BEGAN_ANEW
        before = change_ranks(run, self.bridge, self.settings, self.resharding.install)
        take_over_log(run, self._writer, word)
        if header and self.party.part is PartyRole.STAYER:
            self._go_on(header)
        if header:
            self.own_states.install(header)
        if run.framework:
            run.framework.renew()
        self.lap("install")
        return before

    def _go_on(self, header: Header) -> None:
        """Change in a stayer what restoring a commit made here would change."""
        run = self.run
        if self._kept:
            own = run.registry.state(None).shared if self.resharding.places else self._kept.shared
            run.registry.load(replace(self._kept, shared=own))
            run.tell_result()
        run.schedule.take_over(run.rank, header.age)

    def _describe(self, stop: Stop, gathered: Gathered) -> dict[str, Any]:
        run = self.run
        writer = run.checkpointer.writer
        if writer is None:
            return {}
        state = gathered.state or RankState({}, {}, {})
        mesh = run.registry.mesh
        goal = run.opening.goal if run.opening else None
        header = Header(
            run.progress.position(),
            describe(state),
            gathered.objects,
            tuple(gathered.ranks),
            writer.place,
            run.checkpointer.commit,
            goal,
            stop.source,
            run.progress.saved,
            stop.due,
            stop.exhausted,
            run.schedule.age,
            gathered.alike,
            tuple(gathered.accumulators) if any(gathered.accumulators) else (),
            tuple(gathered.parts) if any(gathered.parts) else (),
            asdict(run.background.carried),
            gathered.shards,
            mesh.shape if mesh else (),
            run.registry.sharding_options(),
            gathered.alone,
            run.images.all_able,
            run.images.mirrors,
        )
        return header.write()
