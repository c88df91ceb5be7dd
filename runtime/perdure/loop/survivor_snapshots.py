"""What a rank leaves behind that has lost a peer: an image of where it stands, for the run that follows.

Parameters and optimizer state stand where the last `optimizer.step()` has left them. Everything else moves with the
step that is broken: buffers, random generators, what a script sets before its step. So that is copied at each place
where the run may stop, as long as it is small; the image is of the last such place, if no optimizer has stepped since.
Whoever writes it may be the main thread, which a lost peer has thrown out of the training, or another, while the main
thread hangs in a collective: an optimizer that would step meanwhile waits.

What cannot be had without harm is not had: then the newest commit counts, and a line says why. Owned by the session's
Run; perdure.session.boundary tells it the places.
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
from perdure.checkpoint.state import State
from perdure.console import say
from perdure.errors import PerdureError
from perdure.group.peers import Peers
from perdure.host.memory import free_memory
from perdure.log.entry import checksum
from perdure.log.images import Stamp
from perdure.log.position import Position
from perdure.loop.copy_budget import CopyBudget
from perdure.loop.position.progress import Progress
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
"""What moves between two steps is copied at each of them, if it is no more than this."""
MARGIN_BYTES: Final = 64 * 2**20
"""What an image leaves of the memory there is."""
PATIENCE_SECONDS: Final = 4.0
"""How long a rank that is asked for an image in the middle of a step waits for the step's end: less than the agent."""
TOO_LONG: Final = "what moves between two steps takes too long to be copied just now"


@dataclass(frozen=True)
class SafePoint:
    """One place at which the run might have stopped."""

    stamp: Stamp
    position: Position
    small: Small
    rank: Any
    """What is this rank's own."""
    open: tuple[str, ...]
    """Accumulators of which a rank that is lost may have held what nobody else knows."""


class SnapshotSource(Protocol):
    """What an image is made from: the parts of a Run that it reads, and the listeners that it tells."""

    settings: Settings
    progress: Progress
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
        """What is this rank's alone."""
        ...

    def tell(self, event: Event) -> None:
        """Tells the agent and whoever else listens."""
        ...


class SurvivorSnapshots:
    """One process's; it leaves one at most."""

    def __init__(self, run: SnapshotSource) -> None:
        self._run = run
        self._standing: SafePoint | None = None
        self._touched = False
        """An optimizer has begun a step since."""
        self._unseen = False
        """Before that place parameters have changed although no optimizer was seen to step."""
        self._behind_epoch = False
        """That place is the end of an epoch."""
        self._last = False
        """This process may be the last that has the state, though it is its only rank."""
        self._renewed = False
        """Since that place the script has registered more, or is about to."""
        self._eye = Fingerprints()
        self._seen: Fingerprint | None = None
        """What optimizers alone may change, as it was by then."""
        self._never = "nothing is restored yet"
        """Why there will be none at all."""
        self._alike: tuple[str, ...] = ()
        """The random generators that drew the same numbers on all ranks when they began, as one world."""
        self._world = 0
        self._ranks: tuple[Any, ...] = ()
        """What is each rank's own at that place, encoded, where the ranks have told one another."""
        self._allowance = CopyBudget()
        """For copying."""
        self._generators = Reading(PythonGenerator().state, NumpyGenerator().state)
        self._left = False
        self._lock = threading.RLock()
        """Held while the image is written, and by whoever changes what is in it."""
        self._changed = threading.Condition(self._lock)
        self._awaited = False
        """Whether somebody waits for a change."""
        self._hook: Any = None

    @property
    def wanted(self) -> bool:
        """Whether somebody keeps an image, should this rank lose a peer."""
        # Else who dies leaves nobody behind that has the state.
        several = self._run.world > 1 or self._run.joining or self._last
        able = self._run.settings.image_file is not None and several and not self._never
        return able and not self._allowance.pauses(time.monotonic())

    def begin(self) -> None:
        """Everything is restored: from here on there may be images, if nothing stands in the way. Collective."""
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
        """The random generators that drew the same numbers on all ranks when they began, as the world that is now."""
        return self._alike if self._run.world == self._world else ()

    def join(self, alike: tuple[str, ...]) -> None:
        """From here on this process is a rank of a world in which these generators are alike."""
        self._alike, self._world = alike, self._run.world

    def know(self, ranks: tuple[Any, ...]) -> None:
        """At the place where this rank stands, what is each rank's own is this, encoded."""
        with self._lock:
            self._ranks = ranks

    def stand_in(
        self, run: int, rank: int, alike: tuple[str, ...], ranks: tuple[Any, ...] = (), own: Any = None
    ) -> None:
        """This process is to be of a run that takes over `run`, holds all that rank `rank` holds there, and votes: an
        image that is made before it knows what came of it is that rank's.

        `own` is what was that rank's alone, where this process does not go on with it: it was the only one.
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
        """This rank ends right where it stands, and maybe nobody else has what it holds: a single one did not expect
        that."""
        if self._run.world == 1:
            self._last = True
            self.stand_in(self._run.settings.run or 0, 0, self.alike)

    def renew(self) -> None:
        """The script is about to register more: how that was at the last place nobody knows."""
        with self._lock:
            self._renewed = True

    def end(self) -> None:
        """No optimizer is watched any more."""
        if self._hook:
            self._hook.remove()
        self._eye.forget()

    def _obstacle(self) -> str:
        registry = self._run.registry
        if self._run.driven_by:
            return f"{self._run.driven_by} keeps states of its own, which the ranks put together where they save"
        if registry.by_rank:
            return f"each rank has its own state of {', '.join(registry.by_rank)}: the lost rank's is lost with it"
        if any(parameter.device.type != "cpu" for parameter in registry.parameters()):
            return "parameters are on an accelerator, which may hang with the collective"
        if registry.extra:
            return f"a module of type {registry.extra} keeps state that is no tensor"
        if (size := registry.small_bytes()) > SMALL_BYTES:
            return f"buffers and averages have {size / 2**20:.0f} MiB: too much to be copied at each step"
        return ""

    def stand(self, *, anew: bool = False, behind_epoch: bool = False) -> None:
        """The run might stop right here: an image that is made later is of this place.

        `anew`: another run has taken over at it. `behind_epoch`: what a script does to parameters before its next batch
        it does once an epoch.
        """
        self._look_again()
        if not self.wanted or self._left:
            return
        with self._lock:
            before, self._seen = self._seen, self._glance()
            moved = self._touched or before is None or self._seen != before
            known = before is not None and not anew and not self._behind_epoch
            self._unseen = moved and not self._touched and known
            self._behind_epoch = behind_epoch
            self._alike, self._ranks = self.alike, ()
            if self._run.progress.saved:
                self._standing = None
            elif moved or anew or self._renewed:
                self._standing = self._copied_in_time(self._run.settings.run or 0, self._run.rank)
            # Else all since is done again from the place before: it may have failed, and the script have gone on.
            self._touched = self._renewed = False
            if self._awaited:
                self._changed.notify_all()

    def _look_again(self) -> None:
        """What was registered since may be what no image can hold."""
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
            say(f"{TOO_LONG}: no image of this rank is left within the next {pause:.0f} s")
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
        """Leaves the image, or says why there is none; once, whoever comes first.

        `patience`: how long the end of a step may be waited for. From any thread.
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
            except Exception as error:  # noqa: BLE001 - of a script's own object: who leaves has an end to tell
                step, why = None, f"what is registered cannot be read: {error!r}"
            of = self._standing.stamp.run if self._standing and step is not None else 0
            self._run.tell(Imaged(step, why, of))
        if step is None:
            say(f"no image of this rank is left: {why}")
        else:
            say(f"rank {self._run.rank} leaves an image of step {step}")

    def _written(self) -> tuple[int | None, str]:
        """The step, or why there is none."""
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
            return None, "it stands in the middle of a step"
        if standing is None or path is None:
            return None, "nothing was trained since the last commit"
        if standing.open:
            return None, f"what the lost rank has added to accumulators is lost with it: {', '.join(standing.open)}"
        state = run.registry.state(standing.rank, standing.small)
        staged = stage.stage(state, 0, 1)
        run.tell(Imaging(staged.size))
        room = free_memory()
        if room is not None and staged.size + MARGIN_BYTES > room:
            return None, f"it would have {staged.size / 2**20:.0f} MiB, and {room / 2**20:.0f} MiB of memory are left"
        of_lost = of_lost_rank([staged.state], self._alike)
        label = Label(standing.stamp, standing.position, _sum_of(state), self._alike, of_lost, self._ranks)
        if not write_image(path, label, staged, self._stands):
            return None, "it has gone on while it was written"
        return standing.stamp.step, ""

    def _stands(self) -> bool:
        """Whether nothing that optimizers alone may change has changed since the last place."""
        return not self._touched and (self._seen is None or self._seen == self._glance())


def _hook(mine: weakref.ref[SurvivorSnapshots]) -> Callable[..., None]:
    """Before each optimizer's step. Traced by a compiler it is nothing at all."""

    def before(*_: Any) -> None:
        if not torch.compiler.is_compiling() and (images := mine()):
            images.steps()

    return before


def _sum_of(state: State) -> str:
    """A checksum of what is equal on all ranks."""
    sums = [f"{name} {tensors.checksum(tensor)}" for name, tensor in sorted(state.shared.items())]
    return checksum("\n".join(sums).encode())
