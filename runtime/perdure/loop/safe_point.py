"""One place at which a run might have stopped: a copy of what changes until the next one, and the image made of it.

Used by perdure.loop.survivor_snapshots, which knows when a copy is needed and whether an image is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from perdure.checkpoint import boxes, stage, tensors
from perdure.checkpoint.image_file import Label, write_image
from perdure.checkpoint.state import RankState
from perdure.checkpoint.upload import Staged
from perdure.group.agreement import Agreement
from perdure.group.peers import Peers
from perdure.host.memory import free_memory
from perdure.log.entry import checksum
from perdure.log.images import Stamp
from perdure.log.position import Position
from perdure.loop.framework import Framework
from perdure.loop.position.progress import ProgressTracker
from perdure.loop.reporting import Reporter
from perdure.loop.telemetry.events import Event
from perdure.state.registry import Registry, Small
from perdure.state.rng import Reading, of_lost_rank
from perdure.wire.channel import Imaging
from perdure.wire.settings import Settings

MARGIN_BYTES: Final = 64 * 2**20
"""Memory that has to be left over beside an image."""


class SnapshotSource(Protocol):
    """What an image is made from: the parts of a Run that it reads, and the listeners that it tells."""

    settings: Settings
    progress: ProgressTracker
    registry: Registry
    peers: Peers
    agreement: Agreement
    reporter: Reporter
    framework: Framework | None
    joining: bool

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        ...

    @property
    def world(self) -> int:
        """How many processes the run has."""
        ...

    @property
    def mirrored(self) -> Stamp | None:
        """The newest snapshot that lies in this pod for the mirror."""
        ...

    def own(self, reading: Reading = ...) -> dict[str, Any]:
        """State that is this rank's alone."""
        ...

    def tell(self, event: Event) -> None:
        """Reports an event to the agent and the other sinks."""
        ...


@dataclass(frozen=True)
class SafePoint:
    """One place at which the run might have stopped."""

    stamp: Stamp
    position: Position
    small: Small
    rank: Any
    """This rank's own state."""
    open: tuple[str, ...]
    """Accumulators to which a lost rank may have added values that no other rank has."""

    def write(
        self,
        run: SnapshotSource,
        path: Path,
        *,
        alike: tuple[str, ...],
        ranks: tuple[Any, ...],
        stands: Callable[[], bool],
        behind: int,
    ) -> tuple[int, str]:
        """Write an image of this place to the path, from byte `behind` on. Returns where it ends and "", or 0 and why
        there is none.

        `alike` and `ranks` are what the image says of all ranks: the random generators that are equal on them, and each
        rank's own state. `stands` returns whether parameters are still those of this place.
        """
        staged, label = self.image(run, alike=alike, ranks=ranks)
        run.tell(Imaging(staged.size))
        room = free_memory()
        if room is not None and staged.size + MARGIN_BYTES > room:
            return 0, f"it would have {staged.size / 2**20:.0f} MiB, and {room / 2**20:.0f} MiB of memory are left"
        end = write_image(path, label, staged, stands, behind)
        return (end, "") if end else (0, "training went on while the image was written")

    @boxes.meshes_stay()
    def image(
        self, run: SnapshotSource, *, alike: tuple[str, ...], ranks: tuple[Any, ...] = ()
    ) -> tuple[Staged, Label]:
        """This rank's part of an image of this place, and what the image says about itself: see `write`."""
        state = run.registry.state(self.rank, self.small)
        parts = boxes.parts(state.shared.values(), self.stamp.world)
        part, several = parts[self.stamp.rank], max(parts) + 1
        staged = stage.stage(state, part, several, parts)
        of_lost = of_lost_rank([staged.state], alike)
        layout = checksum(repr([stage.layout(state.shared), parts]).encode()) if several > 1 else ""
        alone = several > 1 and parts.count(part) == 1  # there is no other rank to differ from
        crc = "" if alone else _sum_of(state)
        whose = part, several, layout, bool(self.open)
        return staged, Label(self.stamp, self.position, crc, alike, of_lost, ranks, *whose)


def safe_point(run: SnapshotSource, number: int, rank: int, generators: Reading) -> SafePoint:
    """Copy what changes until the next such place, as rank `rank` of run `number`."""
    stamp = Stamp(run.settings.uid, number, run.progress.step, rank, run.world)
    own, open_sums = run.own(generators), run.progress.sums.open
    return SafePoint(stamp, run.progress.position(), run.registry.small(), own, open_sums)


def _sum_of(state: RankState) -> str:
    """A checksum of what is equal on all ranks that hold the same."""
    sums_of: dict[str, int] = {}
    for name, tensor in state.shared.items():
        held = boxes.held(tensor) if boxes.is_sharded(tensor) else None
        if held is None:
            sums_of[name] = tensors.checksum(tensor)
        else:
            sums_of |= {f"{name}{one.box}": tensors.checksum(one.memory) for one in held}
    return f"{tensors.digest(sums_of):016x}"
