"""Leaves an image of this rank's state when the rank loses a peer, so that the next run continues from there.

Parameters and optimizer state stay as the last `optimizer.step()` left them. Everything else changes within the broken
step: buffers, random generators, whatever the script sets before its step. So that part is copied at each place where
the run may stop, if it is small. The image is of the last such place, if no optimizer has stepped since. The main
thread writes it when a lost peer has ended the training by an exception. If the main thread hangs in a collective,
another thread writes it, and an optimizer that would step meanwhile waits.

An image of a sharded model holds this rank's shards, or a part of what it shares with ranks that hold the same. There
all ranks meet before their optimizers step, and a rank that loses another one in the meeting leaves two images
(perdure.loop.last_step). Without another rank that holds the same, a lost rank's shards are lost with it, and there are
no images.

If an image is not possible without harm, none is left. Then the newest commit counts, and a line says why. Owned by the
session's Run; perdure.session.boundary reports the places.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from perdure.checkpoint import boxes
from perdure.console import say
from perdure.errors import PeerLost, PerdureError
from perdure.loop.copy_budget import CopyBudget
from perdure.loop.death_cost import held_in_two_pods
from perdure.loop.last_step import LastStep, StepAction, StepEvent, StepPhase, react
from perdure.loop.optimizer_meeting import OptimizerMeeting
from perdure.loop.safe_point import SafePoint, SnapshotSource, safe_point
from perdure.loop.step_exchanges import StepExchanges
from perdure.state.numpy_random import NumpyGenerator
from perdure.state.python_random import PythonGenerator
from perdure.state.rng import Reading, alike, sums
from perdure.state.write_detection import Fingerprint, Fingerprints
from perdure.wire.channel import Imaged

SMALL_BYTES: Final = 16 * 2**20
"""State that changes between two steps is copied at each of them, up to this size."""
PATIENCE_SECONDS: Final = 4.0
"""How long an image waits for the end of the current step: less than the agent waits for the image."""
GIVEN_UP: Final = "this run is lost, and this rank has left its image: it stops training"
TOO_LONG: Final = "copying what changes between two steps takes too long at present"


class SurvivorSnapshots:
    """The snapshots of one process. It leaves one image at most, or two of a sharded model."""

    def __init__(self, run: SnapshotSource) -> None:
        self._run = run
        self._safe_point: SafePoint | None = None
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
        self._fingerprints = Fingerprints()
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
        self._lock = threading.RLock()
        """Held while an image is written, and by whatever changes its content."""
        self._changed = threading.Condition(self._lock)
        self._hooks: list[Any] = []
        self._machine = LastStep()
        self._lone = ""
        """Why a lost rank's shards would be lost with it; empty if they are not."""
        self._apart = False
        """Whether each part of the state is in two pods."""
        self.all_able = False
        """Whether all ranks could leave images at the beginning. Equal on all ranks."""
        self.mirrors = 0
        """After how many steps all ranks mirror their parts; 0: never. Equal on all ranks."""
        self._meeting = OptimizerMeeting(run)
        self._first: int | None = None
        """The step of the image that it has left of the place before."""
        self._end = 0
        """Where that image ends in the file."""
        self._exchanges = StepExchanges()
        self._said_between = False
        """Whether it is said that a loss between two optimizers costs steps."""

    @property
    def wanted(self) -> bool:
        """Whether this rank would leave an image if it lost a peer."""
        # With a single rank, no process survives to write an image.
        several = self._run.world > 1 or self._run.joining or self._last
        able = self._run.settings.image_file is not None and several and not self._never and not self._lone
        return able and not self._allowance.pauses(time.monotonic())

    @property
    def hold_all_steps(self) -> bool:
        """Whether the survivors of any member would leave images with each finished step, as far as this rank knows."""
        place = self._safe_point
        only_sometimes = self._unseen or self._said_between or bool(place and place.open)
        return self.wanted and self.all_able and self._apart and not only_sometimes

    def begin(self) -> None:
        """Everything is restored: from now on there may be images, unless something prevents them. Collective."""
        run = self._run
        has_file = run.settings.image_file is not None
        self._never = self.obstacle() if has_file else "its agent has no file for one"
        may = 0 if self._never else 1 + (run.settings.mirror or 0)  # an earlier version knows whether, and no number
        found = run.peers.gather("begins with what is restored", [sums(run.progress.generators.state()), may])
        self._alike, self._world = () if run.joining else alike([drawn for drawn, _ in found]), run.world
        self.all_able = all(able for _, able in found)
        self.mirrors = int(may) - 1 if may and all(able == may for _, able in found) else 0
        if run.settings.mirror and not self.mirrors and run.rank == 0 and not run.joining:
            why = self._never or "another rank cannot leave images, or has no checkpoint.mirror like this one's"
            say(f"checkpoint.mirror: nothing is mirrored: {why}")
        self._look_at_shards()
        if self._never and not run.joining:
            return
        mine = weakref.ref(self)
        self._hooks = [
            register_optimizer_step_pre_hook(_before(mine)),
            register_optimizer_step_post_hook(_behind(mine)),
        ]

    @boxes.meshes_stay()
    def _look_at_shards(self) -> None:
        """The ranks, or what they hold, may be others: whether another one holds the same, and whether all meet before
        they step. Equal on all ranks."""
        run = self._run
        sharded = bool(run.registry.sharded)
        parts = boxes.parts(run.registry.parameters(), run.world) if sharded else (0,) * run.world
        alone = [rank for rank, part in enumerate(parts) if parts.count(part) == 1]
        self._lone = ""
        self._apart = held_in_two_pods(parts, run.settings.pod)
        if sharded and (alone or run.world == 1):
            self._lone = f"{run.registry.sharded} is sharded, and no other rank holds what a lost one did"
        meets = self.all_able and not self._lone and len(set(parts)) > 1
        self._machine = replace(self._machine, meets=meets)

    @property
    def alike(self) -> tuple[str, ...]:
        """Random generators that drew the same numbers on all ranks at the beginning, if the world has not changed
        since."""
        return self._alike if self._run.world == self._world else ()

    def join(self, alike: tuple[str, ...], *, all_able: bool | None = None, mirrors: int | None = None) -> None:
        """This process is now a rank of a world in which these generators are alike. `all_able`, `mirrors`: what
        the other ranks have found at the beginning."""
        self._alike, self._world = alike, self._run.world
        self.all_able = self.all_able if all_able is None else all_able
        self.mirrors = self.mirrors if mirrors is None else mirrors

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
        with self._lock:
            if not self.wanted or self._ended or self._run.registry.sharded:
                return
            self.join(alike)
            self._ranks = ranks
            self._seen = self._glance()
            self._safe_point = self._copied(run, rank) if not self._run.progress.saved else None
            if self._safe_point and own is not None:
                stamp = replace(self._safe_point.stamp, world=1)
                self._safe_point = replace(self._safe_point, stamp=stamp, rank=own)
            self._touched = self._renewed = False
            self._feed(StepEvent.STOOD)

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
        for hook in self._hooks:
            hook.remove()
        self._fingerprints.forget()

    def obstacle(self) -> str:
        """Why no image can hold what is registered; "" if one can."""
        registry = self._run.registry
        if self._run.framework:
            return f"{self._run.framework.name} keeps per-rank states, which the ranks exchange only when they save"
        if registry.by_rank:
            return f"each rank has its own state of {', '.join(registry.by_rank)}: the lost rank's is lost with it"
        if any(parameter.device.type != "cpu" for parameter in registry.parameters()):
            return "parameters are on an accelerator, which may hang with the collective"
        if registry.extra:
            return f"a module of type {registry.extra} keeps state that is no tensor"
        if (size := registry.small_bytes()) > SMALL_BYTES:
            return f"buffers and averages have {size / 2**20:.0f} MiB: too much to be copied at each step"
        return ""

    def reach_safe_point(self, *, after_takeover: bool = False, behind_epoch: bool = False) -> None:
        """The run might stop here: an image that is written later is of this place.

        `after_takeover`: another run has taken over at this place. `behind_epoch`: once an epoch, the script may change
        parameters before its next batch.
        """
        self._exchanges.reset()
        self._run.registry.reshard()  # a snapshot does, and whether one is taken now each rank decides by itself
        self._look_again()
        with self._lock:
            if after_takeover:
                self._look_at_shards()
            if self._ended:
                return
            if self.wanted:
                self._take(after_takeover=after_takeover, behind_epoch=behind_epoch)
            self._feed(StepEvent.STOOD)

    def _take(self, *, after_takeover: bool, behind_epoch: bool) -> None:
        """Takes the snapshot of this place, if it is another one."""
        before, self._seen = self._seen, self._glance()
        moved = self._touched or before is None or self._seen != before
        known = before is not None and not after_takeover and not self._behind_epoch
        self._unseen = moved and not self._touched and known
        self._behind_epoch = behind_epoch
        self._alike, self._ranks = self.alike, ()
        if self._run.progress.saved:
            self._safe_point = None
        elif moved or after_takeover or self._renewed:
            self._safe_point = self._copied_in_time(self._run.settings.run or 0, self._run.rank)
        # Otherwise the old place stays: an image of it repeats all since, even if a save failed and the script went on.
        self._touched = self._renewed = False

    def _look_again(self) -> None:
        """Objects registered since may be such that no image can hold them."""
        if self._renewed and not self._never:
            self._never = self.obstacle()

    def _glance(self) -> Fingerprint:
        registry = self._run.registry
        return self._fingerprints.look(registry.parameters(), registry.optimizer_tensors())

    def _copied_in_time(self, number: int, rank: int) -> SafePoint | None:
        begun = time.monotonic()
        place = self._copied(number, rank)
        pause = self._allowance.spend(begun, time.monotonic())
        if pause:
            say(f"{TOO_LONG}: this rank leaves no image within the next {pause:.0f} s")
            return None
        return place

    def _copied(self, number: int, rank: int) -> SafePoint | None:
        try:
            return safe_point(self._run, number, rank, self._generators)
        except Exception as error:  # noqa: BLE001 - of a script's own object: training is worth more
            self._never = f"what is registered cannot be copied: {error!r}"
            return None

    def steps(self, optimizer: Any = None) -> None:
        """An optimizer is about to step. Collective for one that is registered, where ranks meet.

        PeerLost if this rank has left what it leaves.
        """
        registered = any(optimizer is one for one in self._run.registry.things)
        with self._lock:
            if registered or not self._machine.meets:
                actions = self._feed(StepEvent.WILL_STEP)
            else:
                self._look_at_hidden(optimizer)
                actions = ()
            if StepAction.RAISE in actions:
                raise PeerLost(GIVEN_UP)
            self._touched = self._touched or StepAction.MEET not in actions
        if StepAction.MEET in actions:
            self._meet()
        if self._machine.meets and self._exchanges.begin(optimizer) and not (self._never or self._said_between):
            self._said_between = True
            self._say_cost("ranks exchange values between two optimizers of a step: if one dies there")

    def _look_at_hidden(self, optimizer: Any) -> None:
        """An optimizer that is not registered is about to step, for example one within a registered object that is no
        optimizer. The ranks have not met before, and so no rank can finish the step alone."""
        if self._never or self._machine.phase is not StepPhase.STANDS:
            return
        own = {id(parameter) for parameter in self._run.registry.parameters()}
        if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            self._have_none(f"an optimizer ({type(optimizer).__name__}) that is not registered itself steps")

    def _meet(self) -> None:
        try:
            moment = self._meeting.attend(lambda: self._machine.phase is StepPhase.MEETS, finishes=not self._never)
        except BaseException:
            with self._lock:
                if self._machine.phase is StepPhase.MEETS:
                    self._machine = replace(self._machine, phase=StepPhase.STANDS)
            raise
        with self._lock:
            if self._machine.phase is StepPhase.MEETS:
                self._feed(moment)
            elif self._ended:
                raise PeerLost(GIVEN_UP)
            self._touched = True

    @property
    def lost(self) -> PeerLost | None:
        """The loss of a peer that this rank has noticed before its optimizer stepped: the script finishes that step."""
        return self._meeting.lost

    @property
    def alone(self) -> int:
        """How many steps this rank has done since it lost a peer; other ranks may not have done them."""
        return self._meeting.alone

    @property
    def _ended(self) -> bool:
        """Whether it has left what it leaves."""
        return self._machine.phase is StepPhase.ENDED

    def _feed(self, moment: StepEvent) -> tuple[StepAction, ...]:
        """Note what has happened. Writes the image and reports it where that is due."""
        self._machine, actions = react(self._machine, moment)
        if StepAction.KEEP in actions:
            self._keep()
        if StepAction.LEAVE in actions:
            self._tell_left(*self._tried())
        if StepAction.TELL in actions:
            self._tell_left(None, self._tried()[1])
        if self._ended:
            self._changed.notify_all()
        return actions

    def _keep(self) -> None:
        """Leaves an image of the place before the step that this rank now finishes alone."""
        self._meeting.lose(PeerLost(GIVEN_UP))
        step, why = self._tried()
        self._touched = True
        if step is None:
            say(f"this rank leaves no image of the place before its last step: {why}")
        else:
            self._first = step
            say(f"rank {self._run.rank} leaves an image of step {step}, and finishes the next one")

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped. If it has exchanged values with other ranks meanwhile, no rank can finish a step
        alone, and the newest commit counts."""
        if self._machine.meets and not self._never and (found := self._exchanges.end(optimizer)):
            self._have_none(f"{type(found).__name__} exchanges values with other ranks while it steps")

    def _have_none(self, why: str) -> None:
        """Found on all ranks alike: from now on there are no images."""
        self._never = why
        self._say_cost(f"{why}: if a rank dies")

    def _say_cost(self, when: str) -> None:
        if self._run.rank == 0:
            say(f"{when}, the newest commit counts")

    def leave(self, patience: float = 0.0) -> None:
        """Leaves the image, or says why there is none. Only the first call does. From any thread: in the main thread,
        training has ended by then.

        `patience`: seconds to wait for the end of the current step. Ranks that meet wait longer, if that is too little:
        what one of them holds may be another one's shard of that step.
        """
        if self._run.settings.image_file is None or self._run.reporter.ended:
            return
        with self._lock:
            if not self.wanted or threading.current_thread() is threading.main_thread():
                self._feed(StepEvent.FAILED)
                return
            self._feed(StepEvent.ASKED)
            least = PATIENCE_SECONDS if self._machine.meets else 0.0
            self._changed.wait_for(lambda: self._ended, max(patience, least))
            self._feed(StepEvent.LATE)

    def _tell_left(self, step: int | None, why: str) -> None:
        """Tells the agent which image there is. `why`: why there is none."""
        step = self._first if step is None else step
        of = self._safe_point.stamp.run if self._safe_point and step is not None else 0
        if step is None and (mirrored := self._run.mirrored):
            of, step = mirrored.place
        self._run.tell(Imaged(step, why if step is None else "", of))
        if step is None:
            say(f"this rank leaves no image: {why}")
        else:
            say(f"rank {self._run.rank} leaves an image of step {step}")

    def _tried(self) -> tuple[int | None, str]:
        try:
            return self._written()
        except (PerdureError, OSError) as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - of a script's own object: an end is still to be reported
            return None, f"what is registered cannot be read: {error!r}"

    def _written(self) -> tuple[int | None, str]:
        """The image's step, or why there is none."""
        place, path = self._safe_point, self._run.settings.image_file
        if self._never or self._lone:
            return None, self._never or self._lone
        if not self.wanted:
            return None, TOO_LONG
        if self._unseen:
            return None, "parameters change where no optimizer steps, or one that is compiled"
        if self._renewed:
            return None, "the script has registered more since its last batch was handed out"
        if not self._stands():
            return None, "it is in the middle of a step"
        if place is None or path is None:
            return None, "nothing was trained since the last commit"
        if place.open:
            return None, f"what the lost rank added to accumulators is lost with it: {', '.join(place.open)}"
        end, why = place.write(
            self._run, path, stands=self._stands, behind=self._end, alike=self._alike, ranks=self._ranks
        )
        if why:
            return None, why
        self._end = end
        return place.stamp.step, ""

    def _stands(self) -> bool:
        """Whether parameters and optimizer tensors are as they were at the last place."""
        return not self._touched and (self._seen is None or self._seen == self._glance())


def _before(mine: weakref.ref[SurvivorSnapshots]) -> Callable[..., None]:
    """Before each optimizer's step. Traced by a compiler it is nothing at all."""

    def before(optimizer: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling() and (images := mine()):
            images.steps(optimizer)

    return before


def _behind(mine: weakref.ref[SurvivorSnapshots]) -> Callable[..., None]:
    """Behind each optimizer's step, in the same way."""

    def behind(optimizer: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling() and (images := mine()):
            images.stepped(optimizer)

    return behind
