"""The statistics that each rank evaluates with. The next save reports if they differ between ranks.

DistributedDataParallel gives rank 0's buffers to all ranks in each forward pass. Between two steps they may differ. A
script that evaluates the network inside it uses the statistics of this rank's own batches, so each rank scores another
network. No rank can see that alone, so each sends a checksum with the data that a save exchanges anyway.

A step may use them, too: it calls the network in eval mode to make adversarial samples or labels, and trains with what
it gets. Only a hook of all modules sees that. It costs as much as a small layer, so it is there in a few steps alone:
those whose number is a power of two. It is never there once torch has compiled anything.

Owned by the session's Run. perdure.session.boundary reports evaluations and steps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from perdure.checkpoint import tensors
from perdure.checkpoint.checkpointer import different, listed
from perdure.console import say
from perdure.group.peers import Peers
from perdure.log.entry import checksum
from perdure.loop.position.progress import ProgressTracker
from perdure.state.modules import unwrapped
from perdure.state.registry import Registry
from perdure.state.wrapping import Replica, spread


class EvaluatingRun(Protocol):
    """The parts of a Run that are needed here."""

    progress: ProgressTracker
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
        self._within: dict[str, int] = {}
        """Checksums by name, of what steps have called in eval mode since the last save."""
        self._begun_at = 0
        """The newest step with a hook."""
        self._uncalled: dict[int, list[_Place]] = {}
        """Places of statistics in layers that the present step has not called in eval mode yet, by the layer's id."""
        self._hook: RemovableHandle | None = None
        self._first: int | None = None
        """This process's first step. Before it all ranks have rank 0's statistics, and nothing is compiled yet."""
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

    def begin_step(self) -> None:
        """A batch goes to the script."""
        step = self._run.progress.step
        if self._first is None:
            self._first = step
        if self._hook or step & (step - 1) or step == self._first or self._run.world == 1 or self._said:
            return
        self._find()
        if self._places and not _compiles():
            self._begun_at, self._uncalled = step, {}
            for place in self._places:
                self._uncalled.setdefault(id(place.layer), []).append(place)
            own = weakref.ref(self)  # torch's hook would keep the run's groups, and their connections, open

            def look(layer: nn.Module, _inputs: Any) -> None:
                if (found := own()) is not None:
                    found._look(layer)  # noqa: SLF001 - of this class

            self._hook = register_module_forward_pre_hook(look)

    def end_look(self) -> None:
        """The step is done, or an evaluation begins in it."""
        if self._hook:
            self._hook.remove()
            self._hook = None

    def _look(self, layer: nn.Module) -> None:
        """A module is called."""
        traces = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if traces or torch.compiler.is_compiling() or layer.training:
            return
        for place in self._uncalled.pop(id(layer), ()):
            buffer = layer._buffers.get(place.own)  # noqa: SLF001 - it may be gone
            if type(buffer) is Tensor:
                self._within[place.name] = tensors.checksum(buffer)

    def settle(self) -> None:
        """Evaluated modules are about to be trained, or saved: their statistics are still those of the evaluation."""
        if self._scored:
            scored, self._scored = self._scored, []
            found = {place.name: place.layer._buffers.get(place.own) for place in scored}  # noqa: SLF001 - it may be gone
            self._sums |= {name: tensors.checksum(buffer) for name, buffer in found.items() if buffer is not None}

    def total(self) -> str:
        """One checksum of all, for the other ranks; "" without an evaluation."""
        self.settle()
        every = [sorted(self._sums.items()), sorted(self._within.items())]
        return checksum(repr(every).encode()) if any(every) else ""

    def compare(self, by_rank: Sequence[str]) -> None:
        """Say it once if all ranks evaluated, and some with other statistics. Collective if they differ.

        `by_rank` has each rank's total.
        """
        sums, within = dict(self._sums), dict(self._within)
        self._sums.clear()
        self._within.clear()
        if "" in by_rank or len(set(by_rank)) == 1:
            return
        self._said = True
        self.end_look()
        found = self._run.peers.gather("compares what it has evaluated with", [sums, within])
        rank = next(rank for rank, own in enumerate(found) if own != found[0])
        if self._run.rank == 0:
            (scored, called), (others_scored, others_called) = found[0], found[rank]
            who = f"between rank 0 and rank {rank}"
            if scored != others_scored:
                say(
                    f"in the evaluation after step {self._step} these differ {who}: "
                    f"{listed(different(scored, others_scored))}: each rank scores with its own statistics: evaluate "
                    f"what session.wrap returned, which has rank 0's on all ranks, or, on GPUs, use SyncBatchNorm"
                )
            if called != others_called:
                say(
                    f"step {self._begun_at + 1} calls layers in eval mode whose statistics differ {who}: "
                    f"{listed(different(called, others_called))}: if it trains on what they give, a resumed run is not "
                    f"exact: there, call what session.wrap returned, in its no_sync()"
                )

    def _find(self) -> None:
        """Looks for the places again if the script has replaced a part of a module, or a wrapper its inside."""
        replicas = self._run.replicas
        # Weak, because a wrapper keeps its group, and connections, open. An object has one such reference.
        inside = [weakref.ref(part) for replica in replicas for part in replica.inside]
        now = (self._run.registry.parameters(), *inside)
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


def _compiles() -> bool:
    """Whether torch has compiled anything. It recompiles a module whose hooks change."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])
