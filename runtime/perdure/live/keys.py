"""The attempt's key-value store at the decider: who is warm, and words before the bridge is connected.

It has a port range of its own. torch's stores have no passwords: the token is the first key and the prefix of all
others, so that stale or foreign connections get no further. Every method raises PeerLost if the decider is gone. Called
by perdure.live.effects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import peer_lost
from perdure.group.rendezvous import Deadline, StoreAddress, connect_again, look_for_keys, open_place
from perdure.live.protocol.parties import Attempt, Party
from perdure.log.entry import ENTRY_BYTES
from perdure.wire import Handover, HandoverWord
from perdure.wire.settings import NOBODY, Member

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

WORD_BYTES: Final = ENTRY_BYTES * 2 + 1024
"""Twice an entry, because its quotes are escaped."""
WARM_SECONDS: Final = 0.1
STOP_SECONDS: Final = 0.002
"""Polling intervals. During the stop all parties wait, and this process has nothing else to do."""
STOPPED: Final = "stopped"
"""Set once the old ranks have stopped and send."""
WRITER: Final = "writer"
ROOM: Final = "room"
WORD: Final = "word"


@dataclass(frozen=True)
class Word:
    """A party's message about the attempt's outcome. Only the decider says GO."""

    word: HandoverWord
    why: str = ""
    seq: int = 0
    entry: str = ""
    """With GO: the log's entry that decided; `seq` is its number."""

    def write(self) -> bytes:
        """The word as bytes of fixed length."""
        text = json.dumps([self.word, self.why[:200], self.seq, self.entry])
        return text.encode().ljust(WORD_BYTES)

    @classmethod
    def read(cls, data: bytes) -> Word:
        """The word from those bytes."""
        word, why, seq, entry = json.loads(data)
        return cls(HandoverWord(word), why, seq, entry)


class StoreKeys:
    """One party's connection to the attempt's store."""

    def __init__(self, store: Store, attempt: Attempt, party: Party, place: StoreAddress) -> None:
        self.store = store
        self._place = place
        self._attempt = attempt
        self._party = party

    def tell_room(self, needed: Sequence[Any]) -> None:
        """On old rank 0, before it is warm: publish the tensors that a newcomer needs memory for (JSON)."""
        with peer_lost("the newcomers were told what room they need"):
            self.store.set(ROOM, json.dumps(needed))

    def await_room(self, deadline: Deadline) -> list[Any]:
        """On a newcomer: wait until old rank 0 is warm, and return what it published, or an empty list."""
        with peer_lost("old rank 0 was awaited"):
            look_for_keys(self.store, ["warm/0"], deadline, "rank 0 of the living run has not come", every=WARM_SECONDS)
            return list(json.loads(self.store.get(ROOM))) if self.store.check([ROOM]) else []

    def await_warm(self, warm: str, writer: str, deadline: Deadline, member: Member = NOBODY) -> None:
        """Publish that this party is warm, and wait until all are. Raises UserError if one has other models or
        versions.

        `writer` is the mark of the newer run's log entries, on its rank 0; `member` is this party's pod and node.
        """
        with peer_lost("the parties were awaited"):
            if writer:
                self.store.set(WRITER, writer)
            self.store.set(f"member/{self._party.number}", json.dumps(asdict(member)))
            self.store.set(f"warm/{self._party.number}", json.dumps(warm))
            for other in self._attempt.parties:
                key = f"warm/{other.number}"
                look_for_keys(self.store, [key], deadline, f"{_name(other)} has not come", every=WARM_SECONDS)
                if json.loads(bytes(self.store.get(key))) != warm:
                    raise UserError(
                        f"{_name(other)} has other models, optimizers or versions than {_name(self._party)}: start "
                        f"newcomers with the same image and script"
                    )

    @property
    def writer(self) -> str:
        """The mark of the newer run's log entries."""
        with peer_lost("the writer's mark was read"):
            return bytes(self.store.get(WRITER)).decode()

    def members(self) -> list[Member]:
        """Pods and nodes of the newer run's ranks, in order, once all are warm; NOBODY for one that published none."""
        with peer_lost("the members' names were read"):
            return [self._member(self._attempt.of_new(rank)) for rank in range(self._attempt.new_world)]

    def _member(self, party: Party) -> Member:
        key = f"member/{party.number}"
        return Member(**json.loads(bytes(self.store.get(key)))) if self.store.check([key]) else NOBODY

    def missing(self) -> list[int]:
        """The parties that have not published that they are warm."""
        with peer_lost("the parties were counted"):
            parties = (party.number for party in self._attempt.parties)
            return [party for party in parties if not self.store.check([f"warm/{party}"])]

    def say(self, word: Word) -> None:
        """Publish a word for parties without a bridge."""
        with peer_lost("the word was said"):
            self.store.set(WORD, word.write().decode())

    def word(self) -> Word | None:
        """The published word, or None."""
        with peer_lost("the word was looked for"):
            return Word.read(bytes(self.store.get(WORD))) if self.store.check([WORD]) else None

    def stand_still(self) -> None:
        """Publish that the old ranks have stopped."""
        with peer_lost("the stop was announced"):
            self.store.set(STOPPED, "1")

    def await_stop(self, deadline: Deadline) -> None:
        """Wait until the old ranks have stopped."""
        with peer_lost("the old ranks' stop was awaited"):
            awaited = "the old ranks have not stopped for the hand-over"
            look_for_keys(self.store, [STOPPED], deadline, awaited, every=STOP_SECONDS)

    def another(self) -> StoreKeys:
        """A second connection, for a thread that may wait for an answer forever. The decider's own store never
        blocks."""
        if self._party.decides:
            return self
        with peer_lost("the decider was reached"):
            try:
                store = connect_again(self._place)
            except OSError as error:
                raise PeerLost(f"the decider is gone: {error}") from error
        return StoreKeys(store, self._attempt, self._party, self._place)

    def here(self) -> dict[int, int]:
        """Send a heartbeat, and wait until the decider's store has it. Returns the heartbeats per party: on the decider
        of all parties, otherwise only its own."""
        with peer_lost("the decider's store was told"):
            counts = {self._party.number: self.store.add(f"here/{self._party.number}", 1)}
            if self._party.decides:
                others = (party.number for party in self._attempt.parties if not party.decides)
                counts |= {number: self.store.add(f"here/{number}", 0) for number in others}
            return counts

    def seen(self) -> None:
        """Publish that this party knows the outcome and no longer needs the store."""
        with peer_lost("the decider's store was told"):
            self.store.set(f"seen/{self._party.number}", "1")

    def seen_by(self, parties: Iterable[int]) -> list[int]:
        """The parties among these that published it."""
        with peer_lost("the parties' words were read"):
            return [party for party in parties if self.store.check([f"seen/{party}"])]


def open_keys(block: Handover, attempt: Attempt, party: Party, give_up: Callable[[], None]) -> StoreKeys:
    """Wait until the decider listens, and connect. Raises PeerLost at the attempt's limit; `give_up` raises to end
    the wait earlier."""
    host, _, port = block.master.rpartition(":")
    who = f"the decider of run {attempt.next}'s hand-over"
    place = StoreAddress((host, int(port)), party.decides, block.token, block.token, who)
    limit = timedelta(seconds=max(1, block.limit))
    return StoreKeys(open_place(place, limit, Deadline(block.limit, give_up)), attempt, party, place)


def _name(party: Party) -> str:
    return f"rank {party.old} of the living run" if party.old is not None else f"the newcomer for rank {party.new}"
