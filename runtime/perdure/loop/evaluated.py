"""The statistics that each rank evaluates with. The next save reports if they differ between ranks.

DistributedDataParallel gives rank 0's buffers to all ranks in each forward pass. Between two steps they may differ. A
script that evaluates the network inside it uses the statistics of this rank's own batches, so each rank scores another
network. No rank can see that alone, so each sends a checksum with the data that a save exchanges anyway.

Owned by the session's Run. perdure.session.boundary reports evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple, Protocol

from torch import nn

from perdure.checkpoint import tensors
from perdure.checkpoint.checkpointer import different, listed
from perdure.console import say
from perdure.group.peers import Peers
from perdure.log.entry import checksum
from perdure.loop.position.progress import Progress
from perdure.state.modules import unwrapped
from perdure.state.registry import Registry
from perdure.state.wrapping import Replica, spread


class EvaluatingRun(Protocol):
    """The parts of a Run that are needed here."""

    progress: Progress
    registry: Registry
    peers: Peers
    replicas: list[Replica]
    joining: bool

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        ...

    @property
    def world(self) -> int:
        """How many processes the run has."""
        ...


class Evaluated:
    """One process's."""

    def __init__(self, run: EvaluatingRun) -> None:
        self._run = run
        self._places: list[_Place] = []
        """The buffers that a forward pass of a wrapped model gives to all ranks."""
        self._placed: tuple[Any, ...] = ()
        """What these places are of."""
        self._scored: list[_Place] = []
        """The statistics of the evaluated modules. Checksums take longer than a small network's forward pass, so they
        are made once, when the evaluation is over."""
        self._sums: dict[str, int] = {}
        """Checksums by name, of the evaluations since the last save."""
        self._step = 0
        self._said = False

    def note(self) -> None:
        """An evaluation is running or ending: modules in eval mode count."""
        if self._run.world == 1 or self._run.joining or self._said:
            return
        self._find()
        scored = [place for place in self._places if not place.layer.training]
        if scored != self._scored:
            self.settle()  # another network was evaluated before
        self._scored, self._step = scored, self._run.progress.step

    def settle(self) -> None:
        """Evaluated modules are about to be trained, or saved: their statistics are still those of the evaluation."""
        if self._scored:
            scored, self._scored = self._scored, []
            found = {place.name: place.layer._buffers.get(place.own) for place in scored}  # noqa: SLF001 - it may be gone
            self._sums |= {name: tensors.checksum(buffer) for name, buffer in found.items() if buffer is not None}

    def total(self) -> str:
        """One checksum of all, for the other ranks; "" without an evaluation."""
        self.settle()
        return checksum(repr(sorted(self._sums.items())).encode()) if self._sums else ""

    def compare(self, by_rank: Sequence[str]) -> None:
        """Say it once if all ranks evaluated, and some with other statistics. Collective if they differ.

        `by_rank` has each rank's total.
        """
        sums, self._sums = self._sums, {}
        if "" in by_rank or len(set(by_rank)) == 1:
            return
        self._said = True
        found = self._run.peers.gather("compares what it has evaluated with", sums)
        rank = next(rank for rank, own in enumerate(found) if own != found[0])
        if self._run.rank == 0:
            say(
                f"in the evaluation after step {self._step} these differ between rank 0 and rank {rank}: "
                f"{listed(different(found[0], found[rank]))}: each rank scores with its own statistics: evaluate what "
                f"session.wrap returned, which has rank 0's on all ranks, or use SyncBatchNorm"
            )

    def _find(self) -> None:
        """Looks for the places again if the script has replaced a part of a module, or a wrapper its inside."""
        replicas = self._run.replicas
        now = (self._run.registry.parameters(), *(part for replica in replicas for part in replica.inside))
        if len(now) == len(self._placed) and all(map(is_, now, self._placed)):
            return
        self._placed, given = now, spread(replicas)
        self._places = [
            _Place(".".join(filter(None, (name, path, own))), layer, own)
            for name, thing in (self._run.registry.named.items() if given else ())
            for path, layer in (unwrapped(thing).named_modules() if isinstance(thing, nn.Module) else ())
            for own, buffer in layer.named_buffers(recurse=False)
            if id(buffer) in given
        ]


class _Place(NamedTuple):
    """A buffer's."""

    name: str
    layer: nn.Module
    own: str
