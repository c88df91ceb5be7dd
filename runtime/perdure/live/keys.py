"""The attempt's store at the decider: who is warm, and what is said before the bridge stands.

Its ports are a range of their own. torch's stores ask for no password: the token is their first key and prefix, so what
is stale or blind gets no further. Every method raises PeerLost if the decider is gone. Called by
perdure.live.effects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import peer_lost
from perdure.group.rendezvous import Deadline, Place, connect_again, look_for_keys, open_place
from perdure.live.protocol.parties import Attempt, Party
from perdure.log.entry import ENTRY_BYTES
from perdure.wire import Handover, HandoverWord
from perdure.wire.settings import NOBODY, Member

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

WORD_BYTES: Final = ENTRY_BYTES * 2 + 1024
"""An entry's quotes are escaped."""
WARM_SECONDS: Final = 0.1
STOP_SECONDS: Final = 0.002
"""How often is looked: in the second case everybody waits, and this process has nothing else to do."""
STOPPED: Final = "stopped"
"""The old ranks stand still, and send."""
WRITER: Final = "writer"
ROOM: Final = "room"
WORD: Final = "word"


@dataclass(frozen=True)
class Word:
    """What somebody says of the attempt; go is the decider's alone."""

    word: HandoverWord
    why: str = ""
    seq: int = 0
    entry: str = ""
    """With go: the log's entry that says so, and its number."""

    def write(self) -> bytes:
        """As it travels, always as long."""
        text = json.dumps([self.word, self.why[:200], self.seq, self.entry])
        return text.encode().ljust(WORD_BYTES)

    @classmethod
    def read(cls, data: bytes) -> Word:
        """From that."""
        word, why, seq, entry = json.loads(data)
        return cls(HandoverWord(word), why, seq, entry)


class Keys:
    """One party's connection to the attempt's store."""

    def __init__(self, store: Store, attempt: Attempt, party: Party, place: Place) -> None:
        self.store = store
        self._place = place
        self._attempt = attempt
        self._party = party

    def tell_room(self, needed: Sequence[Any]) -> None:
        """As old rank 0, before it is warm: for which tensors a newcomer needs room (JSON)."""
        with peer_lost("the newcomers were told what room they need"):
            self.store.set(ROOM, json.dumps(needed))

    def await_room(self, deadline: Deadline) -> list[Any]:
        """As a newcomer: what old rank 0 has told, once that is warm; nothing if it has told nothing."""
        with peer_lost("old rank 0 was awaited"):
            look_for_keys(self.store, ["warm/0"], deadline, "rank 0 of the living run has not come", every=WARM_SECONDS)
            return list(json.loads(self.store.get(ROOM))) if self.store.check([ROOM]) else []

    def await_warm(self, warm: str, writer: str, deadline: Deadline, member: Member = NOBODY) -> None:
        """Says that this party is warm, and returns when all are. UserError where one holds other things than this one.

        `writer` is how the newer run's rank 0 marks its entries, if this is the one; `member` is where this party runs.
        """
        with peer_lost("the parties were awaited"):
            if writer:
                self.store.set(WRITER, writer)
            self.store.set(f"member/{self._party.number}", json.dumps(asdict(member)))
            self.store.set(f"warm/{self._party.number}", json.dumps(warm))
            for other in self._attempt.parties:
                key = f"warm/{other.number}"
                look_for_keys(self.store, [key], deadline, f"{_called(other)} has not come", every=WARM_SECONDS)
                if json.loads(bytes(self.store.get(key))) != warm:
                    raise UserError(
                        f"{_called(other)} has other models, optimizers or versions than {_called(self._party)}: start "
                        f"newcomers with the same image and script"
                    )

    @property
    def writer(self) -> str:
        """How the newer run's entries are marked."""
        with peer_lost("the writer's mark was read"):
            return bytes(self.store.get(WRITER)).decode()

    def members(self) -> list[Member]:
        """Where the newer run's ranks run, in order, once all are warm; nobody for one that has not told."""
        with peer_lost("the members' names were read"):
            return [self._member(self._attempt.of_new(rank)) for rank in range(self._attempt.new_world)]

    def _member(self, party: Party) -> Member:
        key = f"member/{party.number}"
        return Member(**json.loads(bytes(self.store.get(key)))) if self.store.check([key]) else NOBODY

    def missing(self) -> list[int]:
        """Who has never said that it is warm."""
        with peer_lost("the parties were counted"):
            parties = (party.number for party in self._attempt.parties)
            return [party for party in parties if not self.store.check([f"warm/{party}"])]

    def say(self, word: Word) -> None:
        """To whoever has no bridge yet."""
        with peer_lost("the word was said"):
            self.store.set(WORD, word.write().decode())

    def word(self) -> Word | None:
        """What somebody has said there."""
        with peer_lost("the word was looked for"):
            return Word.read(bytes(self.store.get(WORD))) if self.store.check([WORD]) else None

    def stand_still(self) -> None:
        """Tells newcomers that the old ranks are in the stop."""
        with peer_lost("the stop was announced"):
            self.store.set(STOPPED, "1")

    def await_stop(self, deadline: Deadline) -> None:
        """Returns when the old ranks are in the stop."""
        with peer_lost("the old ranks' stop was awaited"):
            awaited = "the old ranks have not stopped for the hand-over"
            look_for_keys(self.store, [STOPPED], deadline, awaited, every=STOP_SECONDS)

    def another(self) -> Keys:
        """One more connection, for whoever may wait for an answer without an end; the decider's own store answers it at
        once."""
        if self._party.decides:
            return self
        with peer_lost("the decider was reached"):
            try:
                store = connect_again(self._place)
            except OSError as error:
                raise PeerLost(f"the decider is gone: {error}") from error
        return Keys(store, self._attempt, self._party, self._place)

    def here(self) -> dict[int, int]:
        """Says that this party is there, and returns when the decider's store knows. To the decider: how often each
        other party has said so."""
        with peer_lost("the decider's store was told"):
            counts = {self._party.number: self.store.add(f"here/{self._party.number}", 1)}
            if self._party.decides:
                others = (party.number for party in self._attempt.parties if not party.decides)
                counts |= {number: self.store.add(f"here/{number}", 0) for number in others}
            return counts

    def seen(self) -> None:
        """This party knows what has happened, and needs the store no more."""
        with peer_lost("the decider's store was told"):
            self.store.set(f"seen/{self._party.number}", "1")

    def seen_by(self, parties: Iterable[int]) -> list[int]:
        """Those of them that have said so."""
        with peer_lost("the parties' words were read"):
            return [party for party in parties if self.store.check([f"seen/{party}"])]


def open_keys(block: Handover, attempt: Attempt, party: Party, give_up: Callable[[], None]) -> Keys:
    """Once the decider listens. PeerLost when the attempt's time is up; `give_up` raises to end it before."""
    host, _, port = block.master.rpartition(":")
    who = f"the decider of run {attempt.next}'s hand-over"
    place = Place((host, int(port)), party.decides, block.token, block.token, who)
    limit = timedelta(seconds=max(1, block.limit))
    return Keys(open_place(place, limit, Deadline(block.limit, give_up)), attempt, party, place)


def _called(party: Party) -> str:
    return f"rank {party.old} of the living run" if party.old is not None else f"the newcomer for rank {party.new}"
