"""The connections between the parties of one attempt to hand over: the decider's store, state, votes, words, and closed
links.

Modelled after perdure.live.keys and .bridge, as far as the parties can notice: each finds the decider at its address
and by the token, a collective fails if a party is gone, out of reach, or silent for too long, and words go to the
decider and from it, in order. A closed link is noticed where its reset arrives. What the parties wait for, and their
reactions, are the real driver's and its machine's: see `driving`.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from perdure.errors import PeerLost
from perdure.live.protocol.parties import Attempt, Party, PartyRole
from perdure.live.protocol.timing import QUIET_SECONDS
from perdure.live.word import Word
from perdure.log.reader import ReadPosition
from perdure.wire import CommitRef, Handover
from tests.simulation.gang import Fabric, Gang, Seat, Told, Track
from tests.simulation.interface import Behaviour, Network
from tests.simulation.store import OUTSIDE, Changes
from tests.simulation.threads import Inbox

WORD_SECONDS: Final = (0.001, 0.05)
LOOK_AGAIN_SECONDS: Final = 2.0
"""How often what cannot go on is looked at again, and a packet sent again."""
Said = Word | None | PeerLost
"""What comes on a link: a word, that no other follows, or that it is closed."""


@dataclass(frozen=True)
class Header:
    """What old rank 0 tells in the stop: where training stands, as a commit made here would have it."""

    track: Track
    commit: CommitRef | None
    goal: int
    place: ReadPosition
    """Up to where rank 0 has read the log."""
    due: str
    """Why a checkpoint is due at this very place."""
    age: float
    """Of the last checkpoint, in seconds."""


@dataclass(eq=False)
class Link:
    """One party's end."""

    party: Party
    ip: str
    rng: random.Random
    inboxes: dict[int, Inbox] = field(default_factory=lambda: defaultdict(Inbox))
    """What has come from each party."""
    seat: Seat | None = None
    """In the newer run; a leaver has none."""
    told: Told | None = None
    """What the newer run's rank 0 publishes about it."""
    mark: str = ""
    """How that rank marks its entries."""
    connected: bool = False
    gone: bool = False
    still: bool = False
    """Its process is stopped: it says nothing."""


class Bridge:
    """One attempt's."""

    def __init__(self, attempt: Attempt, name: str, network: Network, behaviour: Behaviour) -> None:
        self.attempt = attempt
        self.links: dict[int, Link] = {}
        self.changed = Changes()
        self.keys: dict[str, set[int]] = defaultdict(set)
        """In the decider's store: the parties that have set a key of this name."""
        self.early: Word | None = None
        """The word said before the parties were connected."""
        self.header: Header | None = None
        self.heartbeats: dict[int, int] = defaultdict(int)
        self.torn: set[int] = set()
        """Parties for which the next collective fails although all live: the others have their part."""
        self._name, self._network, self._behaviour = name, network, behaviour
        self._said: dict[str, set[int]] = defaultdict(set)
        self._on_the_way: dict[tuple[int, int], deque[Said]] = defaultdict(deque)
        """By sender and receiver."""
        self._gang: Gang | None = None

    # the decider's store

    def enter(self, link: Link) -> None:
        """One more party has found the store."""
        self.links[link.party.number] = link
        self.changed.tell()

    def set(self, key: str, link: Link) -> None:
        """This party sets its key of that name."""
        self.keys[key].add(link.party.number)
        self.changed.tell()

    def have_set(self, key: str, parties: Iterable[Party], link: Link) -> bool:
        """Whether they have, as this party sees it."""
        return {party.number for party in parties} <= self.keys[key] and self.reaches_decider(link)

    @property
    def newcomers(self) -> list[Party]:
        """Those that come for the newer run."""
        return [party for party in self.attempt.parties if party.part is PartyRole.NEWCOMER]

    def reaches_decider(self, link: Link) -> bool:
        """Whether this party can read the store now."""
        decider = self.links.get(self.attempt.decider)
        return decider is not None and self._network.reachable(link.ip, decider.ip)

    def is_closed_to(self, link: Link) -> bool:
        """Whether this party knows that the decider is gone."""
        return self.links[self.attempt.decider].gone and self.reaches_decider(link)

    def hears(self, link: Link, party: int) -> bool:
        """Whether that party is there, as this one can know; all say so to the decider."""
        other = self.links.get(party)
        here = other is not None and not (other.gone or other.still)
        return here and other is not None and self._network.reachable(other.ip, link.ip)

    @property
    def mark(self) -> str:
        """How the newer run's entries are marked."""
        return self.links[self.attempt.of_new(0).number].mark

    # collectives

    async def together(self, link: Link, what: str, takes: tuple[float, float]) -> bool:
        """Whether all parties have done it; False where one is gone, or silent for too long."""
        loop, said = asyncio.get_running_loop(), self._said[what]
        said.add(link.party.number)
        self.changed.tell()
        until = loop.time() + QUIET_SECONDS
        while not (len(said) == len(self.attempt.parties) and self._whole()):
            if self._lost_by(link) or loop.time() >= until:
                return False
            await self.changed.wait(min(LOOK_AGAIN_SECONDS, until - loop.time()))
        await asyncio.sleep(link.rng.uniform(*takes))
        if link.party.number in self.torn:
            self.torn.discard(link.party.number)
            return False
        # Fast parties already have the others' part, slow ones have not.
        return not self._lost_by(link) or link.rng.random() < 0.5

    def connect(self, link: Link) -> Gang:
        """The newer run's ranks are connected to each other, too."""
        link.connected = True
        if self._gang is None:
            first = self.links[self.attempt.of_new(0).number]
            if first.told is None:
                raise RuntimeError("the newer run's rank 0 tells nothing")
            self._gang = Gang(self._name, self.attempt.new_world, self._network, self._behaviour, first.told)
            for each in self.links.values():
                if each.seat:
                    self._gang.join(each.seat)
                    if each.gone:
                        self._gang.leave(each.seat)
        return self._gang

    # words and ends

    def say(self, link: Link, word: Word | None) -> None:
        """The decider sends to all others, every other party to the decider; None: it sends no more."""
        for other in self.links.values():
            if other is not link and (other.party.decides or link.party.decides):
                self._send(link, other, word)

    def say_early(self, word: Word) -> None:
        """To parties that are not connected."""
        self.early = word
        self.changed.tell()

    def leave(self, link: Link) -> None:
        """The party's process has ended."""
        if link.gone:
            return
        link.gone = True
        self.changed.tell()
        if self._gang and link.seat:
            self._gang.leave(link.seat)
        for other in self.links.values():
            if other is not link and other.connected and (other.party.decides or link.party.decides):
                self._send(link, other, PeerLost(f"party {link.party.number} is gone"))

    def _whole(self) -> bool:
        """Whether all parties live and reach each other."""
        links, reach = list(self.links.values()), self._network.reachable
        if any(link.gone for link in links):
            return False
        return all(reach(one.ip, other.ip) for one, other in pairwise(links))

    def _lost_by(self, link: Link) -> bool:
        """Whether a party is gone, as far as this one can know."""
        return any(other.gone and self._network.reachable(other.ip, link.ip) for other in self.links.values())

    def _send(self, sender: Link, receiver: Link, said: Said) -> None:
        self._on_the_way[sender.party.number, receiver.party.number].append(said)
        seconds = receiver.rng.uniform(*WORD_SECONDS)
        asyncio.get_running_loop().call_later(seconds, self._arrive, sender, receiver, context=OUTSIDE)

    def _arrive(self, sender: Link, receiver: Link) -> None:
        """The oldest. Out of reach it is sent again, as long as its sender lives."""
        waiting = self._on_the_way[sender.party.number, receiver.party.number]
        if receiver.gone or not waiting:
            return
        if self._network.reachable(sender.ip, receiver.ip):
            receiver.inboxes[sender.party.number].put(waiting.popleft())
        elif not sender.gone or isinstance(waiting[0], PeerLost):
            again = asyncio.get_running_loop().call_later
            again(LOOK_AGAIN_SECONDS, self._arrive, sender, receiver, context=OUTSIDE)
        else:
            waiting.popleft()


class Bridges:
    """Where deciders listen, in one history."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Bridge] = {}

    @classmethod
    def of(cls, network: Network) -> Bridges:
        """The one of this history."""
        found: Bridges = network.shared.setdefault("bridges", cls())
        return found

    def listen(self, ip: str, block: Handover, bridge: Bridge, fabric: Fabric) -> None:
        """The decider has opened its store, where it is: others look for it where the assignment says."""
        self._open[f"{ip}:{block.master.rpartition(':')[2]}", block.token] = bridge
        fabric.changed.tell()

    def find(self, block: Handover) -> Bridge | None:
        """The attempt's, once the decider listens; a token of another attempt gets no further."""
        return self._open.get((block.master, block.token))
