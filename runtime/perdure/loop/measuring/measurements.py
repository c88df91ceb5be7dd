"""What one process measures of its training. The session tells of batches and steps, and the votes carry the values.

Owned by the session's Run, if it is to measure. A part of the training state, registered beside the session's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import torch

from perdure.console import say
from perdure.goodput.speed import Speed
from perdure.loop.data.loader import Loader
from perdure.loop.data.sampling import Share
from perdure.loop.data.source import Source
from perdure.loop.measuring.gradient_norms import LoneNorms, Owned, RankNorms, Things
from perdure.loop.measuring.noise_meter import NoiseMeter
from perdure.loop.measuring.speed_profile import SpeedProfile
from perdure.loop.measuring.two_equations import solve
from perdure.loop.position.progress import ProgressTracker
from perdure.state import fully_sharded
from perdure.state.wrapping import Replica
from perdure.wire.settings import Settings

EVERY: Final = 4
"""Of so many steps one is looked at for its norms: they are two passes over the gradients."""
STATE: Final = "measured"
"""The name of the value in a checkpoint."""


class MeasuredRun(Protocol):
    """The parts of a Run that are needed here."""

    settings: Settings
    progress: ProgressTracker
    replicas: list[Replica]

    @property
    def registry(self) -> Things:
        """What the script has registered."""
        ...


class Measurements:
    """One process's."""

    def __init__(self, run: MeasuredRun, initial: int, every: int = EVERY) -> None:
        """`initial`: the samples of the script's own batch. `every`: of how many steps one is looked at."""
        self._run, self._every = run, every
        self.profile = SpeedProfile(_hardware())
        self.meter = NoiseMeter(initial)
        self._owned = Owned(run.registry)
        self.rank_norms = RankNorms(self._owned)
        self._lone_norms = LoneNorms(self._owned)
        self._node = int.from_bytes(hashlib.blake2b(run.settings.member.node.encode(), digest_size=7).digest())
        self._nodes: int | None = None
        """On how many nodes the ranks are, once they have said so."""
        self._parts: list[tuple[Source[Any], Share | None]] = []
        """The batches of the present step."""
        self._weighted = False
        """Whether this step's loss is weighted by samples."""
        self._has_told = False
        """Whether it has said that it does not measure the noise."""

    def speed(self) -> Speed | None:
        """The times of a step as this rank's steps foretell them; None if they are not known yet."""
        return self.profile.speed()

    def noise(self) -> float | None:
        """The gradient noise scale in samples; None if it is not known yet. Equal on all ranks."""
        return self.meter.scale

    # Called by the session.

    def batch_requested(self, source: Source[Any]) -> None:
        """The script is done with the batch that it has."""
        if not source.evaluates:
            self.profile.batch_requested(self._nodes, self._run.settings.world)

    def batch_handed_out(self, source: Source[Any]) -> None:
        """A batch goes to the script."""
        if source.evaluates:
            self.profile.spoil()
            return
        shard = source.current if isinstance(source, Loader) else None
        self._parts = [part for part in self._parts if part[0] is source or part[0].walking]
        self._parts.append((source, shard))
        self._choose_step()
        self.profile.batch_handed_out(source.name, len(shard.ids) if shard else 0)

    def _choose_step(self) -> None:
        """Whether the present step is looked at: on all ranks alike. Of one rank alone two in a row are."""
        step, pairs = self._run.progress.step, self._lone_norms.parts == 1
        self.rank_norms.looks = step % self._every == 0
        self._lone_norms.looks = step % (2 * self._every) < 2 if pairs else step % self._every == 0

    def weighted(self) -> None:
        """The script has weighted its loss."""
        self._weighted = True

    def stepped(self) -> None:
        """The script has stepped."""
        self.profile.stepped()
        shards = self._shards()
        if self._run.settings.world > 1:
            self._add_ranks(shards)
        else:
            self._add_alone(shards)
        self._tell_unmeasured()
        self._parts, self._weighted = [], False
        if self._owned.look():
            self._look_at_parameters()

    def _tell_unmeasured(self) -> None:
        """Says once that the noise is not measured, if it is known why."""
        if self._has_told or self._run.settings.rank != 0 or not (why := self._why_unmeasured()):
            return
        self._has_told = True
        say(f"from now on the noise of the gradient is not measured, without which no other batch is chosen: {why}")

    def _why_unmeasured(self) -> str:
        world = self._run.settings.world
        if world > 1 and (own := next((one.lasting for one in self._run.replicas if one.lasting), "")):
            return f"gradients are averaged with {own}"
        fewer = [(source, shard.world) for source, shard in self._parts if shard and shard.world != world]
        return next((f"{source} shares a batch among {count} of {world} ranks" for source, count in fewer), "")

    def _shards(self) -> list[Share]:
        """The step's batches, of one loader whose shares are the ranks'; otherwise none."""
        sources, shards = {source.name for source, _ in self._parts}, [shard for _, shard in self._parts]
        world = self._run.settings.world
        return [one for one in shards if one and one.world == world] if len(sources) == 1 else []

    def _add_ranks(self, shards: Sequence[Share]) -> None:
        norms, world = self.rank_norms.take(), self._run.settings.world
        sizes = [sum(share(one.stop - one.start, rank, world) for one in shards) for rank in range(world)]
        solution = solve(sizes, weighted=self._weighted and len(set(sizes)) > 1)
        if norms and solution:
            ranks = 1 if norms.of_shards else world
            self.meter.add(norms.own, norms.mean, solution, batch=self._every * sum(sizes), ranks=ranks)

    def _add_alone(self, shards: Sequence[Share]) -> None:
        taken = self._lone_norms.take([one.stop - one.start for one in shards])
        by_samples = self._weighted and len({one.weight for one in shards}) > 1
        if taken and (solution := solve(taken[1], weighted=by_samples)):
            norms, sizes = taken
            steps = 1 if len(shards) > 1 else 2
            batch = self._every * sum(sizes)
            self.meter.add(norms.own, norms.mean, solution, batch=batch, ranks=1, steps=steps)

    def _look_at_parameters(self) -> None:
        self.meter.fit(self._owned.groups)
        fully_sharded.watch(self._run.registry.sharded_modules, self.rank_norms)
        if self._run.settings.world == 1:
            self._lone_norms.attach()

    def ranks_changed(self) -> None:
        """This process is a rank of a newer run."""
        self.profile.begin_anew()
        self.meter.begin(self._run.settings.rank)
        self._nodes, self._parts = None, []
        self.rank_norms.forget()
        self._lone_norms.detach()
        self._owned.look()  # a newcomer does not know them yet
        self._look_at_parameters()

    def end(self) -> None:
        """Looks at no gradient any more."""
        self._lone_norms.detach()
        fully_sharded.watch_no_more(self._run.registry.sharded_modules)

    # What goes with the ranks' votes.

    def words(self) -> Sequence[int]:
        """This rank's node, and its averages."""
        return [self._node, *self.meter.words()]

    def heard(self, rows: Sequence[Sequence[int]]) -> None:
        """Each rank's."""
        self._nodes = len({row[0] for row in rows})
        self.meter.heard([row[1:] for row in rows])

    # What a checkpoint holds.

    def state_dict(self) -> dict[str, Any]:
        """The times that rank 0 has measured, and what all ranks have heard of the noise."""
        return {STATE: {"speed": self.profile.write(), "noise": self.meter.write()}}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Goes on with them. A run that did not measure has saved none."""
        if STATE in saved:
            self.profile.read(saved[STATE]["speed"])
            self.meter.read(saved[STATE]["noise"])
            self.meter.begin(self._run.settings.rank)


def share(samples: int, rank: int, world: int) -> int:
    """How many of a batch's samples this rank has; sizes differ by one at most, the first ranks have more."""
    return samples // world + (rank < samples % world)


def _hardware() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
