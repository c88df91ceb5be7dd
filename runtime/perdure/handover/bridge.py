"""The connections of one attempt: its store at the decider, the bridge of all parties, the newer run's groups.

All of it is made in a thread of the old ranks while they train; newcomers have nothing else to do. A bridge serves
one attempt: whatever fails on it is PeerLost and ends the attempt, never the training. Nothing of the session is known
here. Called by the session's side of a hand-over.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch

from perdure.checkpoint.entry import ENTRY_BYTES
from perdure.contract import Handover, HandoverWord
from perdure.errors import PeerLost, UserError
from perdure.group.gloo import GlooPeers, peer_lost
from perdure.group.rendezvous import Deadline, Groups, Place, await_keys, connect_ranks, open_place
from perdure.group.world import Group, connect_group
from perdure.handover.parties import Attempt, Party
from perdure.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

QUIET_SECONDS: Final = 10.0
"""How long a party may be silent in the stop."""
WRITER: Final = "writer"
WORD_TAG: Final = 1
"""Tags tell messages apart whose order is nobody's: state has 0."""
WORD_BYTES: Final = ENTRY_BYTES * 2 + 1024
"""An entry's quotes are escaped."""
STOPPED: Final = "stopped"
"""The key that tells newcomers that the old ranks stand still, and send."""


@dataclass(frozen=True)
class Word:
    """What the decider says of the attempt."""

    word: HandoverWord
    why: str = ""
    seq: int = 0
    entry: str = ""
    """With go: the log's entry that says so, and its number."""


@dataclass
class Bridge:
    """All parties of an attempt, connected; `party` is this process's."""

    attempt: Attempt
    party: Party
    store: Store
    group: Group
    groups: Groups | None
    """Of the newer run; None at a leaver."""
    writer: str
    """How the newer run's entries in the log are marked."""
    connected: float
    """Seconds it took to connect, beside the training."""

    def __post_init__(self) -> None:
        self.peers = GlooPeers(self.group)
        self._said: list[Any] = []
        """What is under way needs its memory."""

    @property
    def size(self) -> int:
        """How many parties there are."""
        return len(self.attempt.parties)

    def stand_still(self) -> None:
        """Tells newcomers that the old ranks are in the stop."""
        with peer_lost("the stop was announced"):
            self.store.set(STOPPED, "1")

    def await_stop(self, deadline: Deadline) -> None:
        """Returns when the old ranks are in the stop."""
        with peer_lost("the old ranks' stop was awaited"):
            await_keys(self.store, [STOPPED], deadline, "the old ranks have not stopped for the hand-over")

    def vote(self, seconds: float) -> None:
        """Says that this party is ready to go, and returns when all parties have said so; PeerLost if one has not."""
        votes = torch.ones(1, dtype=torch.int64)
        with peer_lost("the votes were counted"):
            self.group.allreduce([votes]).wait(timedelta(seconds=seconds))
        if int(votes.item()) != self.size:
            raise PeerLost(f"{int(votes.item())} of {self.size} parties have voted")

    def say(self, word: Word) -> None:
        """The decider's word, to all others; nobody is waited for."""
        text = json.dumps([word.word, word.why, word.seq, word.entry]).encode()
        data = torch.frombuffer(bytearray(text.ljust(WORD_BYTES)), dtype=torch.uint8)
        for other in self.attempt.parties:
            if other.number != self.party.number:
                with contextlib.suppress(PeerLost), peer_lost("the word was said"):
                    self._said.append((self.group.send([data], other.number, WORD_TAG), data))

    def hear(self, seconds: float) -> Word:
        """The decider's word. PeerLost if its link closes, or nothing comes."""
        data = torch.zeros(WORD_BYTES, dtype=torch.uint8, device="cpu")
        with peer_lost("the decider's word was awaited"):
            self.group.recv([data], self.attempt.decider, WORD_TAG).wait(timedelta(seconds=seconds))
        word, why, seq, entry = json.loads(bytes(data.numpy()))
        return Word(HandoverWord(word), why, seq, entry)

    def seen(self) -> None:
        """This party knows what has happened, and needs the store no more."""
        with peer_lost("the decider's store was told"):
            self.store.set(f"seen/{self.party.number}", "1")

    def all_seen(self) -> bool:
        """Whether every party has said so."""
        with peer_lost("the parties' words were read"):
            return bool(self.store.check([f"seen/{party.number}" for party in self.attempt.parties]))


def connect_bridge(
    attempt: Attempt,
    party: Party,
    block: Handover,
    settings: Settings,
    *,
    warm: str,
    writer: str,
    timeout: timedelta,
    give_up: Callable[[], None],
) -> Bridge:
    """Returns when all parties have come and are connected, and the newer run's groups with them.

    `settings` are this process's in the newer run (a leaver's: of the older one), `warm` is what all parties must hold
    alike: UserError where they do not; `writer` is how the newer run's rank 0 marks its entries. PeerLost when the
    attempt's time is up; `give_up` raises to end it before.
    """
    deadline = Deadline(block.limit, give_up)
    store = open_place(_place(block, attempt, party), timedelta(seconds=block.limit), deadline)
    if party.new == 0:
        store.set(WRITER, writer)
    _all_warm(store, attempt, party, warm, deadline)
    begun = time.monotonic()
    size = len(attempt.parties)
    bridge_timeout = timedelta(seconds=max(QUIET_SECONDS, deadline.check("the bridge")))
    with peer_lost("the bridge was made"):
        group = connect_group(store, "bridge", rank=party.number, size=size, timeout=bridge_timeout)
    groups = None if party.new is None else connect_ranks(settings, timeout=timeout, deadline=deadline)
    writer = bytes(store.get(WRITER)).decode()
    return Bridge(attempt, party, store, group, groups, writer, time.monotonic() - begun)


def settings_of(attempt: Attempt, party: Party, settings: Settings, master: str) -> Settings:
    """This process's place in the newer run."""
    if party.new is None:
        return settings
    host, _, port = master.rpartition(":")
    address = (host, int(port)) if attempt.new_world > 1 else None
    return replace(
        settings, run=attempt.next, rank=party.new, world=attempt.new_world, master=address, handover=None, wait=0.0
    )


def _place(block: Handover, attempt: Attempt, party: Party) -> Place:
    host, _, port = block.master.rpartition(":")
    who = f"the decider of run {attempt.next}'s hand-over"
    return Place((host, int(port)), party.decides, block.token, block.token, who)


def _all_warm(store: Store, attempt: Attempt, party: Party, warm: str, deadline: Deadline) -> None:
    store.set(f"warm/{party.number}", json.dumps(warm))
    for other in attempt.parties:
        key = f"warm/{other.number}"
        await_keys(store, [key], deadline, f"party {other.number}, {_called(other)}, has not come")
        found = json.loads(bytes(store.get(key)))
        if found != warm:
            raise UserError(
                f"party {other.number}, {_called(other)}, holds other things than party {party.number}, "
                f"{_called(party)}: {found} and {warm}: start newcomers from the same image and script"
            )


def _called(party: Party) -> str:
    return f"rank {party.old} of the living run" if party.new is None else f"rank {party.new} to be"
