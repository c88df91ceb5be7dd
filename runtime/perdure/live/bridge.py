"""The connections of one attempt: the bridge for state, votes and words, and later the newer run's groups.

Old ranks connect in a thread while they train. A bridge serves one attempt: a failure raises PeerLost and ends the
attempt, never the training. This module knows nothing of the session. Called by perdure.live.effects.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import GlooPeers, peer_lost
from perdure.group.rendezvous import Groups
from perdure.group.world import Group, connect_group
from perdure.live.keys import StoreKeys
from perdure.live.protocol.parties import Attempt, Party
from perdure.live.protocol.timing import QUIET_SECONDS
from perdure.live.word import WORD_BYTES, Word
from perdure.wire.settings import Settings


@dataclass
class Bridge:
    """The connected parties of an attempt; `party` is this process."""

    attempt: Attempt
    party: Party
    group: Group
    """Carries state and votes. A timeout ends it."""
    words: Group
    """Carries words, which may take long to come. Only the end of a process ends it."""
    groups: Groups | None = None
    """The newer run's groups; None before they are connected, and on a leaver."""

    def __post_init__(self) -> None:
        self.peers = GlooPeers(self.group)
        self._said: list[Any] = []
        """Sends in flight, with their memory."""

    def vote(self, held: int | None) -> None:
        """Vote that this party is ready, and wait for all votes. Raises PeerLost if one is missing.

        `held` is an old rank's checksum of its state; None on a newcomer. Raises UserError on old ranks if their
        checksums differ.
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
        """Send a word: the decider to all others, other parties to the decider. Never waits; parties may be gone.

        None says that this party knows the outcome and sends no more. The decider sends only one word.
        """
        data = torch.frombuffer(bytearray(word.write() if word else b" " * WORD_BYTES), dtype=torch.uint8)
        for other in self.attempt.parties:
            if other.number != self.party.number and (other.decides or self.party.decides):
                with contextlib.suppress(PeerLost), peer_lost("the word was said"):
                    self._said.append((self.words.send([data], other.number, 0), data))

    def hear(self, party: int) -> Word | None:
        """Wait for a party's word; None if it sends no more. Raises PeerLost if its process ends.

        No thread may wait here when the interpreter ends: torch would crash the process.
        """
        data = torch.zeros(WORD_BYTES, dtype=torch.uint8, device="cpu")
        with peer_lost("a word was awaited"):
            self.words.recv([data], party, 0).wait()
        text = bytes(data.numpy())
        return Word.read(text) if text.strip() else None


def connect_bridge(keys: StoreKeys, attempt: Attempt, party: Party, *, seconds: float) -> Bridge:
    """Connect all parties, which have arrived. Raises PeerLost if one is gone. `seconds` limits the wait for words."""
    size = len(attempt.parties)
    with peer_lost("the bridge was made"):
        group, words = (
            connect_group(keys.store, name, rank=party.number, size=size, timeout=timedelta(seconds=patience))
            for name, patience in (("bridge", QUIET_SECONDS), ("words", seconds))
        )
    return Bridge(attempt, party, group, words)


def settings_of(attempt: Attempt, party: Party, settings: Settings, master: str) -> Settings:
    """This process's settings in the newer run."""
    if party.new is None:
        return settings
    host, _, port = master.rpartition(":")
    address = (host, int(port)) if attempt.new_world > 1 else None
    return replace(
        settings,
        run=attempt.next,
        takes_over=attempt.run,
        rank=party.new,
        world=attempt.new_world,
        master=address,
        handover=None,
        wait=0.0,
    )
