"""The connections of one attempt: the bridge of all parties, on which state, votes and words go, and the new groups.

They are made in a thread of the old ranks while they train; newcomers have nothing else to do. A bridge serves one
attempt: whatever fails on it is PeerLost and ends the attempt, never the training. Nothing of the session is known
here. Called by perdure.live.effects.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import GlooPeers, peer_lost
from perdure.group.rendezvous import Deadline, Groups, connect_ranks
from perdure.group.world import Group, connect_group
from perdure.live.keys import WORD_BYTES, Keys, Word
from perdure.live.protocol.parties import Attempt, Party
from perdure.live.protocol.timing import QUIET_SECONDS
from perdure.wire.settings import Settings


@dataclass
class Bridge:
    """All parties of an attempt, connected; `party` is this process's."""

    attempt: Attempt
    party: Party
    group: Group
    """For state and votes: silence ends it."""
    words: Group
    """For words, which nobody may say for long: it ends when a process does."""
    groups: Groups | None
    """Of the newer run; None at a leaver."""
    connected: float
    """Seconds it took to connect, beside the training."""

    def __post_init__(self) -> None:
        self.peers = GlooPeers(self.group)
        self._said: list[Any] = []
        """What is under way needs its memory."""

    def vote(self, held: int | None) -> None:
        """Says that this party is ready to go, and returns when all parties have said so; PeerLost if one has not.

        `held` is an old rank's sum of what it holds, None a newcomer's. UserError if the old ranks' differ: the decider
        is one of them.
        """
        votes = torch.tensor([1, held or 0], dtype=torch.int64, device="cpu")
        with peer_lost("the votes were counted"):
            self.group.allreduce([votes]).wait()
        voted, sums = votes.tolist()
        if voted != len(self.attempt.parties):
            raise PeerLost(f"{voted} of {len(self.attempt.parties)} parties have voted")
        if held is not None and sums != held * self.attempt.world:
            raise UserError(
                f"the ranks of run {self.attempt.run} hold different parameters or optimizer state: its next "
                f"checkpoint says where"
            )

    def say(self, word: Word | None) -> None:
        """The decider to all others, everybody else to the decider; nobody is waited for, and some may be gone.

        None: this party knows what has happened, and says nothing any more. The decider's words are its last.
        """
        data = torch.frombuffer(bytearray(word.write() if word else b" " * WORD_BYTES), dtype=torch.uint8)
        for other in self.attempt.parties:
            if other.number != self.party.number and (other.decides or self.party.decides):
                with contextlib.suppress(PeerLost), peer_lost("the word was said"):
                    self._said.append((self.words.send([data], other.number, 0), data))

    def hear(self, party: int) -> Word | None:
        """What a party says; None if it says nothing any more. PeerLost if its process ends.

        Nobody may be waiting here when the interpreter ends: torch would bring the process down.
        """
        data = torch.zeros(WORD_BYTES, dtype=torch.uint8, device="cpu")
        with peer_lost("a word was awaited"):
            self.words.recv([data], party, 0).wait()
        text = bytes(data.numpy())
        return Word.read(text) if text.strip() else None


def connect_bridge(
    keys: Keys,
    attempt: Attempt,
    party: Party,
    settings: Settings,
    *,
    seconds: float,
    timeout: timedelta,
    deadline: Deadline,
) -> Bridge:
    """Connects all parties, which are there, and the newer run's groups. PeerLost if one is gone.

    `settings` are this process's in the newer run. Words are awaited for `seconds`, a collective of the newer run for
    `timeout`.
    """
    begun = time.monotonic()
    size = len(attempt.parties)
    with peer_lost("the bridge was made"):
        group, words = (
            connect_group(keys.store, name, rank=party.number, size=size, timeout=timedelta(seconds=patience))
            for name, patience in (("bridge", QUIET_SECONDS), ("words", seconds))
        )
    groups = None if party.new is None else connect_ranks(settings, timeout=timeout, deadline=deadline)
    return Bridge(attempt, party, group, words, groups, time.monotonic() - begun)


def settings_of(attempt: Attempt, party: Party, settings: Settings, master: str) -> Settings:
    """This process's place in the newer run."""
    if party.new is None:
        return settings
    host, _, port = master.rpartition(":")
    address = (host, int(port)) if attempt.new_world > 1 else None
    return replace(
        settings, run=attempt.next, rank=party.new, world=attempt.new_world, master=address, handover=None, wait=0.0
    )
