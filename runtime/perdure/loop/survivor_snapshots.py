"""Leaves an image of this rank's state when the rank loses a peer, so that the next run continues from there.

Parameters and optimizer state stay as the last `optimizer.step()` left them. Everything else changes within the broken
step: buffers, random generators, whatever the script sets before its step. So that part is copied at each place where
the run may stop, if it is small. The image is of the last such place, if no optimizer has stepped since. The main
thread writes it when a lost peer has ended the training by an exception. If the main thread hangs in a collective,
another thread writes it, and an optimizer that would step meanwhile waits.

If an image is not possible without harm, none is left. Then the newest commit counts, and a line says why. Owned by the
session's Run; perdure.session.boundary reports the places.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perdure.checkpoint import stage, tensors
from perdure.checkpoint.image_file import Label, write_image
from perdure.checkpoint.state import RankState
from perdure.console import say
from perdure.errors import PerdureError
from perdure.group.peers import Peers
from perdure.host.memory import free_memory
from perdure.log.images import Stamp
from perdure.log.position import Position
from perdure.loop.copy_budget import CopyBudget
from perdure.loop.position.progress import ProgressTracker
from perdure.loop.reporting import Reporter
from perdure.loop.telemetry.events import Event
from perdure.state.numpy_random import NumpyGenerator
from perdure.state.python_random import PythonGenerator
from perdure.state.registry import Registry, Small
from perdure.state.rng import Reading, alike, of_lost_rank, sums
from perdure.state.write_detection import Fingerprint, Fingerprints
from perdure.wire.channel import Imaged, Imaging
from perdure.wire.settings import Settings

SMALL_BYTES: Final = 16 * 2**20
"""State that changes between two steps is copied at each of them, up to this size."""
MARGIN_BYTES: Final = 64 * 2**20
"""Memory that has to be left over beside an image."""
PATIENCE_SECONDS: Final = 4.0
"""How long an image waits for the end of the current step: less than the agent waits for the image."""
TOO_LONG: Final = "copying what changes between two steps takes too long at present"


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


class SnapshotSource(Protocol):
    """What an image is made from: the parts of a Run that it reads, and the listeners that it tells."""

    settings: Settings
    progress: ProgressTracker
    registry: Registry
    peers: Peers
    reporter: Reporter
    driven_by: str
    joining: bool

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        ...

    @property
    def world(self) -> int:
        """How many processes the run has."""
        ...

    def own(self, reading: Reading = ...) -> dict[str, Any]:
        """State that is this rank's alone."""
        ...

    def tell(self, event: Event) -> None:
        """Reports an event to the agent and the other sinks."""
        ...


class SurvivorSnapshots:
    """The snapshots of one process. It leaves one image at most."""

    def __init__(self, run: SnapshotSource) -> None:
        self._run = run
        self._standing: SafePoint | None = None
        self._touched = False
        """True if an optimizer has begun a step since then."""
        self._unseen = False
        """True if parameters had changed by then although no optimizer was seen to step."""
        self._behind_epoch = False
        """True if that place is the end of an epoch."""
        self._last = False
        """True if this process may hold the only copy of the state, although it is the only rank."""
        self._renewed = False
        """True if the script has registered more since then, or is about to."""
        self._eye = Fingerprints()
        self._seen: Fingerprint | None = None
        """The parameters and optimizer tensors at that place."""
        self._never = "nothing is restored yet"
        """Why this process will never leave an image; empty if it may."""
        self._alike: tuple[str, ...] = ()
        """Random generators that drew the same numbers on all ranks at the beginning, for a world of this size."""
        self._world = 0
        self._ranks: tuple[Any, ...] = ()
        """Each rank's own state at that place, encoded, if the ranks have exchanged it."""
        self._allowance = CopyBudget()
        """How much time copies may take."""
        self._generators = Reading(PythonGenerator().state, NumpyGenerator().state)
        self._left = False
        self._lock = threading.RLock()
        """Held while an image is written, and by whatever changes its content."""
        self._changed = threading.Condition(self._lock)
        self._awaited = False
        """True while a thread waits for a change."""
        self._hook: Any = None

    @property
    def wanted(self) -> bool:
        """Whether this rank would leave an image if it lost a peer."""
        # In a world of one, a process that dies leaves nobody behind to write an image.
        several = self._run.world > 1 or self._run.joining or self._last
        able = self._run.settings.image_file is not None and several and not self._never
        return able and not self._allowance.pauses(time.monotonic())

    def begin(self) -> None:
        """Everything is restored: from now on there may be images, unless something prevents them. Collective."""
        run = self._run
        drawn = run.peers.gather("begins with what is restored", sums(run.progress.generators.state()))
        self._alike, self._world = () if run.joining else alike(drawn), run.world
        if run.settings.image_file is None:
            return
        self._never = self._obstacle()
        if self._never:
            return
        self._hook = register_optimizer_step_pre_hook(_hook(weakref.ref(self)))

    @property
    def alike(self) -> tuple[str, ...]:
        """Random generators that drew the same numbers on all ranks at the beginning, if the world has not changed
        since."""
        return self._alike if self._run.world == self._world else ()

    def join(self, alike: tuple[str, ...]) -> None:
        """This process is now a rank of a world in which these generators are alike."""
        self._alike, self._world = alike, self._run.world

    def know(self, ranks: tuple[Any, ...]) -> None:
        """Sets each rank's own state, encoded, at the present place."""
        with self._lock:
            self._ranks = ranks

    def stand_in(
        self, run: int, rank: int, alike: tuple[str, ...], ranks: tuple[Any, ...] = (), own: Any = None
    ) -> None:
        """Takes a snapshot as rank `rank` of run `run`, whose state this process holds, before it votes to take that
        run over. An image that is written while the outcome of the vote is unknown is that rank's.

        `own` is that rank's own state, if it was the only rank and this process does not continue with it.
        """
        self._look_again()
        if not self.wanted or self._left:
            return
        with self._lock:
            self.join(alike)
            self._ranks = ranks
            self._seen = self._glance()
            self._standing = self._copied(run, rank) if not self._run.progress.saved else None
            if self._standing and own is not None:
                stamp = replace(self._standing.stamp, world=1)
                self._standing = replace(self._standing, stamp=stamp, rank=own)
            self._touched = self._renewed = False

    def hold_on(self) -> None:
        """This rank ends where it stands, and may hold the only copy of the state. A world of one has taken no snapshot
        so far."""
        if self._run.world == 1:
            self._last = True
            self.stand_in(self._run.settings.run or 0, 0, self.alike)

    def renew(self) -> None:
        """The script is about to register more, whose state at the last place is unknown."""
        with self._lock:
            self._renewed = True

    def end(self) -> None:
        """Stops watching optimizers."""
        if self._hook:
            self._hook.remove()
        self._eye.forget()

    def _obstacle(self) -> str:
        registry = self._run.registry
        if self._run.driven_by:
            return f"{self._run.driven_by} keeps states of its own, which the ranks put together where they save"
        if name := registry.sharded:
            return f"{name} is sharded: no rank holds all of it"
        if registry.by_rank:
            return f"each rank has its own state of {', '.join(registry.by_rank)}: the lost rank's is lost with it"
        if any(parameter.device.type != "cpu" for parameter in registry.parameters()):
            return "parameters are on an accelerator, which may hang with the collective"
        if registry.extra:
            return f"a module of type {registry.extra} keeps state that is no tensor"
        if (size := registry.small_bytes()) > SMALL_BYTES:
            return f"buffers and averages have {size / 2**20:.0f} MiB: too much to be copied at each step"
        return ""

    def stand(self, *, after_takeover: bool = False, behind_epoch: bool = False) -> None:
        """The run might stop here: an image that is written later is of this place.

        `after_takeover`: another run has taken over at this place. `behind_epoch`: once an epoch, the script may change
        parameters before its next batch.
        """
        self._look_again()
        if not self.wanted or self._left:
            return
        with self._lock:
            before, self._seen = self._seen, self._glance()
            moved = self._touched or before is None or self._seen != before
            known = before is not None and not after_takeover and not self._behind_epoch
            self._unseen = moved and not self._touched and known
            self._behind_epoch = behind_epoch
            self._alike, self._ranks = self.alike, ()
            if self._run.progress.saved:
                self._standing = None
            elif moved or after_takeover or self._renewed:
                self._standing = self._copied_in_time(self._run.settings.run or 0, self._run.rank)
            # Otherwise the old place stays: an image of it repeats all since, even if a save failed and the script went
            # on.
            self._touched = self._renewed = False
            if self._awaited:
                self._changed.notify_all()

    def _look_again(self) -> None:
        """Objects registered since may be such that no image can hold them."""
        if self._renewed and not self._never:
            self._never = self._obstacle()

    def _glance(self) -> Fingerprint:
        registry = self._run.registry
        return self._eye.look(registry.parameters(), registry.optimizer_tensors())

    def _copied_in_time(self, number: int, rank: int) -> SafePoint | None:
        begun = time.monotonic()
        standing = self._copied(number, rank)
        pause = self._allowance.spend(begun, time.monotonic())
        if pause:
            say(f"{TOO_LONG}: this rank leaves no image within the next {pause:.0f} s")
            return None
        return standing

    def _copied(self, number: int, rank: int) -> SafePoint | None:
        run = self._run
        stamp = Stamp(run.settings.uid, number, run.progress.step, rank, run.world)
        try:
            own, open_sums = run.own(self._generators), run.progress.sums.open
            return SafePoint(stamp, run.progress.position(), run.registry.small(), own, open_sums)
        except Exception as error:  # noqa: BLE001 - of a script's own object: training is worth more
            self._never = f"what is registered cannot be copied: {error!r}"
            return None

    def steps(self) -> None:
        """An optimizer is about to step."""
        with self._lock:
            self._touched = True

    def leave(self, patience: float = 0.0) -> None:
        """Leaves the image, or says why there is none. Only the first call does. From any thread.

        `patience`: seconds to wait for the end of the current step.
        """
        if self._run.settings.image_file is None or self._run.reporter.ended:
            return
        with self._lock:
            self._awaited = True
            self._changed.wait_for(lambda: self._left or not self._touched or not self.wanted, patience)
            if self._left:
                return
            self._left = True
            try:
                step, why = self._written()
            except (PerdureError, OSError) as error:
                step, why = None, str(error)
            except Exception as error:  # noqa: BLE001 - of a script's own object: an end is still to be reported
                step, why = None, f"what is registered cannot be read: {error!r}"
            of = self._standing.stamp.run if self._standing and step is not None else 0
            self._run.tell(Imaged(step, why, of))
        if step is None:
            say(f"this rank leaves no image: {why}")
        else:
            say(f"rank {self._run.rank} leaves an image of step {step}")

    def _written(self) -> tuple[int | None, str]:
        """The image's step, or why there is none."""
        run, standing, path = self._run, self._standing, self._run.settings.image_file
        if self._never:
            return None, self._never
        if not self.wanted:
            return None, TOO_LONG
        if self._unseen:
            return None, "parameters change where no optimizer steps, or one that is compiled"
        if self._renewed:
            return None, "the script has registered more since its last batch was handed out"
        if not self._stands():
            return None, "it is in the middle of a step"
        if standing is None or path is None:
            return None, "nothing was trained since the last commit"
        if standing.open:
            return None, f"what the lost rank added to accumulators is lost with it: {', '.join(standing.open)}"
        state = run.registry.state(standing.rank, standing.small)
        staged = stage.stage(state, 0, 1)
        run.tell(Imaging(staged.size))
        room = free_memory()
        if room is not None and staged.size + MARGIN_BYTES > room:
            return None, f"it would have {staged.size / 2**20:.0f} MiB, and {room / 2**20:.0f} MiB of memory are left"
        of_lost = of_lost_rank([staged.state], self._alike)
        label = Label(standing.stamp, standing.position, _sum_of(state), self._alike, of_lost, self._ranks)
        if not write_image(path, label, staged, self._stands):
            return None, "training went on while the image was written"
        return standing.stamp.step, ""

    def _stands(self) -> bool:
        """Whether parameters and optimizer tensors are as they were at the last place."""
        return not self._touched and (self._seen is None or self._seen == self._glance())


def _hook(mine: weakref.ref[SurvivorSnapshots]) -> Callable[..., None]:
    """Before each optimizer's step. Traced by a compiler it is nothing at all."""

    def before(*_: Any) -> None:
        if not torch.compiler.is_compiling() and (images := mine()):
            images.steps()

    return before


def _sum_of(state: RankState) -> str:
    """A checksum of what is equal on all ranks."""
    return f"{tensors.digest({name: tensors.checksum(tensor) for name, tensor in state.shared.items()}):016x}"
