"""The keys in a hand-over's store: which parties are warm, and messages before the bridge connects them.

The decider serves the store, a torch TCPStore, on a port of a separate range. Such stores have no passwords, so the
attempt's token is the first key and the prefix of all others: stale connections get no further. It is no secret.
Every method raises PeerLost if the decider is gone. Called by perdure.live.effects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import peer_lost
from perdure.group.rendezvous import Deadline, StoreAddress, connect_again, look_for_keys, open_place
from perdure.live.protocol.parties import Attempt, Party, PartyRole
from perdure.live.word import Word
from perdure.state.parameter_layouts import first_difference
from perdure.wire import Handover
from perdure.wire.settings import NO_MEMBER, Member

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

FORMAT: Final = 13
"""Version of what the parties send each other: keys after the warm key, headers, tensors and what the ranks of a run
tell each other. Parties of different ones do not meet: one image may have replaced another between the start of two
pods."""
WARM_POLL_SECONDS: Final = 0.1
STOP_POLL_SECONDS: Final = 0.002
"""Short, because training stands still while a newcomer waits for the old ranks to stop."""
STOPPED: Final = "stopped"
"""Set once the old ranks have stopped and are sending."""
WRITER: Final = "writer"
ROOM: Final = "room for shards"
"""What newcomers need memory for, which may be shards. A version that does not know shards looks at another key."""
PLACEHOLDER: Final = "placeholder"
"""Whether newcomers get a placeholder of their ranks: "1" or "0"."""
WORD: Final = "word"


class StoreKeys:
    """One party's connection to the attempt's store."""

    def __init__(self, store: Store, attempt: Attempt, party: Party, place: StoreAddress) -> None:
        self.store = store
        self._place = place
        self._attempt = attempt
        self._party = party

    def publish_placeholder(self, *, wanted: bool) -> None:
        """On old rank 0, which can hand over: publish whether newcomers get a placeholder of their ranks."""
        with peer_lost("it was published whether newcomers get a placeholder"):
            self.store.set(PLACEHOLDER, "1" if wanted else "0")

    def publish_arrival(self) -> None:
        """On a newcomer: publish that its script has come to its restore."""
        with peer_lost("the arrival was published"):
            self.store.set(f"arrived/{self._party.number}", "1")

    def await_newcomers(self, deadline: Deadline) -> None:
        """On an old rank: wait until the scripts of all newcomers have come to their restore."""
        with peer_lost("the newcomers were awaited"):
            newcomers = (party for party in self._attempt.parties if party.part is PartyRole.NEWCOMER)
            self._await_each(newcomers, "arrived", "has not come", deadline)

    def can_hand_over(self) -> bool:
        """On a newcomer: whether old rank 0 has published that it can hand over."""
        with peer_lost("it was looked up whether old rank 0 can hand over"):
            return bool(self.store.check([PLACEHOLDER]))

    def await_placeholder(self, deadline: Deadline) -> bool:
        """On a newcomer: wait until old rank 0 can hand over, and return whether newcomers get a placeholder."""
        with peer_lost("old rank 0 was awaited"):
            awaited = "rank 0 of the living run has not come"
            look_for_keys(self.store, [PLACEHOLDER], deadline, awaited, every=WARM_POLL_SECONDS)
            return bytes(self.store.get(PLACEHOLDER)) == b"1"

    def publish_memory_needed(self, tensors: Sequence[Any]) -> None:
        """On old rank 0, before it is warm: publish, as JSON, the tensors that a newcomer needs memory for."""
        with peer_lost("the tensors that newcomers need memory for were published"):
            self.store.set(ROOM, json.dumps(tensors))

    def await_memory_needed(self, deadline: Deadline) -> list[Any]:
        """On a newcomer: wait until old rank 0 is warm, and return what it published, or an empty list."""
        with peer_lost("old rank 0 was awaited"):
            awaited = "rank 0 of the living run has not come"
            look_for_keys(self.store, ["warm/0"], deadline, awaited, every=WARM_POLL_SECONDS)
            return list(json.loads(self.store.get(ROOM))) if self.store.check([ROOM]) else []

    def await_warm(self, warm: str, writer: str, deadline: Deadline, member: Member = NO_MEMBER) -> None:
        """Publish that this party is warm, and wait until all are.

        `warm` describes this party's models, optimizers and versions in lines; all parties must have the same.
        `writer` is the mark of the newer run's log entries, given on its rank 0. `member` is this party's pod and node.

        Raises UserError if another party has other models, optimizers or versions.
        """
        with peer_lost("the parties were awaited"):
            if writer:
                self.store.set(WRITER, writer)
            self.store.set(f"member/{self._party.number}", json.dumps(asdict(member)))
            mine = [FORMAT, warm]
            self.store.set(f"warm/{self._party.number}", json.dumps(mine))
            for other in self._attempt.parties:
                key = f"warm/{other.number}"
                look_for_keys(self.store, [key], deadline, f"{_name(other)} has not come", every=WARM_POLL_SECONDS)
                if (theirs := json.loads(bytes(self.store.get(key)))) != mine:
                    raise UserError(
                        f"{_name(other)} has other models, optimizers or versions than {_name(self._party)}: "
                        f"{_difference(theirs, mine)}start newcomers with the same image and script"
                    )

    @property
    def writer(self) -> str:
        """The mark of the newer run's log entries."""
        with peer_lost("the writer's mark was read"):
            return bytes(self.store.get(WRITER)).decode()

    def members(self) -> list[Member]:
        """The pods and nodes of the newer run's ranks, by rank; NO_MEMBER for one that published none. Call it once all
        are warm."""
        with peer_lost("the members' names were read"):
            return [self._member(self._attempt.of_new(rank)) for rank in range(self._attempt.new_world)]

    def _member(self, party: Party) -> Member:
        key = f"member/{party.number}"
        return Member(**json.loads(bytes(self.store.get(key)))) if self.store.check([key]) else NO_MEMBER

    def missing(self) -> list[int]:
        """The parties that have not published that they are warm."""
        with peer_lost("the parties were counted"):
            parties = (party.number for party in self._attempt.parties)
            return [party for party in parties if not self.store.check([f"warm/{party}"])]

    def publish_connected(self) -> None:
        """Publish that this party has connected the bridge and its groups of the newer run."""
        with peer_lost("the connection was reported"):
            self.store.set(f"connected/{self._party.number}", "1")

    def await_connected(self, deadline: Deadline) -> None:
        """Wait until all parties have published it."""
        with peer_lost("the parties' connections were awaited"):
            self._await_each(self._attempt.parties, "connected", "has not connected to the others", deadline)

    def _await_each(self, parties: Iterable[Party], key: str, missing: str, deadline: Deadline) -> None:
        """Wait until each of the parties has set its key; `missing` says of one what it has not done."""
        for other in parties:
            awaited = f"{_name(other)} {missing}"
            look_for_keys(self.store, [f"{key}/{other.number}"], deadline, awaited, every=WARM_POLL_SECONDS)

    def say(self, word: Word) -> None:
        """Publish a message for parties without a bridge."""
        with peer_lost("the outcome was published"):
            self.store.set(WORD, word.write().decode())

    def word(self) -> Word | None:
        """The published message; None if there is none yet."""
        with peer_lost("the outcome was looked for"):
            return Word.read(bytes(self.store.get(WORD))) if self.store.check([WORD]) else None

    def announce_stop(self) -> None:
        """Publish that the old ranks have stopped."""
        with peer_lost("the stop was announced"):
            self.store.set(STOPPED, "1")

    def await_stop(self, deadline: Deadline) -> None:
        """Wait until the old ranks have stopped."""
        with peer_lost("the old ranks' stop was awaited"):
            awaited = "the old ranks have not stopped for the hand-over"
            look_for_keys(self.store, [STOPPED], deadline, awaited, every=STOP_POLL_SECONDS)

    def second_connection(self) -> StoreKeys:
        """Another connection to the store, for a thread that may block in it. The decider shares its own, which never
        blocks."""
        if self._party.decides:
            return self
        with peer_lost("the decider was reached"):
            try:
                store = connect_again(self._place)
            except OSError as error:
                raise PeerLost(f"the decider is gone: {error}") from error
        return StoreKeys(store, self._attempt, self._party, self._place)

    def send_heartbeat(self) -> dict[int, int]:
        """Count one more heartbeat of this party in the store. Returns the counts by party: on the decider those of all
        parties, elsewhere only its own."""
        with peer_lost("a heartbeat was sent"):
            counts = {self._party.number: self.store.add(f"here/{self._party.number}", 1)}
            if self._party.decides:
                others = (party.number for party in self._attempt.parties if not party.decides)
                counts |= {number: self.store.add(f"here/{number}", 0) for number in others}
            return counts

    def publish_seen(self) -> None:
        """Publish that this party knows the outcome and no longer needs the store."""
        with peer_lost("the outcome was acknowledged"):
            self.store.set(f"seen/{self._party.number}", "1")

    def seen_by(self, parties: Iterable[int]) -> list[int]:
        """The parties among these that published it."""
        with peer_lost("the acknowledgements were read"):
            return [party for party in parties if self.store.check([f"seen/{party}"])]


def open_keys(block: Handover, attempt: Attempt, party: Party, give_up: Callable[[], None]) -> StoreKeys:
    """Wait until the decider listens, and connect.

    Raises PeerLost at the attempt's time limit. `give_up` is called while waiting; it raises to end the wait earlier.
    """
    host, _, port = block.master.rpartition(":")
    who = f"the decider of run {attempt.next}'s hand-over"
    place = StoreAddress((host, int(port)), party.decides, block.token, block.token, who)
    limit = timedelta(seconds=max(1, block.limit))
    return StoreKeys(open_place(place, limit, Deadline(block.limit, give_up)), attempt, party, place)


def _difference(theirs: Any, mine: Sequence[Any]) -> str:
    """The first lines that differ in what two parties of the same FORMAT hold."""
    if not isinstance(theirs, list) or theirs[:1] != [FORMAT]:
        return ""
    found = first_difference(theirs[1].split("\n"), mine[1].split("\n"))
    return f"it has {found[0]}, and not {found[1]}: " if found else ""


def _name(party: Party) -> str:
    return f"rank {party.old} of the living run" if party.old is not None else f"the newcomer for rank {party.new}"
