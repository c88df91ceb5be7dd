"""The implementation behind `Session`: connects the layers below, and contains no rules.

Those say how a process joins its run (joining) and continues from a commit (resuming), where the run may stop
(boundary), what the work is (job), how a process leaves (leaving) and what it reports (reporting). For one thread. Made
by `Session`, used by it, by perdure.session.functions, and by the adapters through perdure.session.driven.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from perdure.console import fall_silent, say, warn
from perdure.errors import PerdureError, UserError
from perdure.group.found import with_found_group
from perdure.group.world import guard_world, install_placeholder, lift_guard
from perdure.live.joining import attach, meet, meet_in_place
from perdure.live.newcomer import gets_placeholder
from perdure.loop.asking import ExitFile
from perdure.loop.asking import exit_signals as ask_signals
from perdure.loop.data.randomness import in_no_checkpoint, own_generators
from perdure.loop.ending import tell_failed
from perdure.loop.failures import exit_status
from perdure.loop.hang_watch import HangWatch
from perdure.loop.hooks import HookName
from perdure.loop.leaving import Exit
from perdure.loop.reporting import NO_GROUP_YET, ExitWatch, classify, explained, shown_in_words, tell_error
from perdure.loop.run import Run
from perdure.session import current
from perdure.session.boundary import Boundary
from perdure.session.closures import Closures
from perdure.session.describing import describe, scripts_own
from perdure.session.description import Description
from perdure.session.forgotten import FirstWeights
from perdure.session.gradients import HeldGradients
from perdure.session.job import EpochLoops, Status
from perdure.session.loop_exit import has_ended, main_frame
from perdure.session.mesh_places import check_batches
from perdure.session.options import read_limit
from perdure.session.preview import Preview
from perdure.session.resuming import receive, resume, wait_in_place
from perdure.session.unregistered_check import FirstSteps
from perdure.state import wrapping
from perdure.wire import ExitKind
from perdure.wire.settings import RESOLVER, Settings, read_settings, unknown

Hook = TypeVar("Hook", bound=Callable[..., Any])


@dataclass(frozen=True)
class Asks:
    """The options of `Session.from_env` that make the run save and leave, or fail."""

    signals: Sequence[int]
    file: str | Path | None
    max_save_failures: int | None


def join(
    root: str | Path | None,
    resume_from: Mapping[str, Any] | None,
    asks: Asks,
    *,
    deterministic: bool,
    seed: int,
    timeout: float,
) -> Core:
    """Joins the run that this process was started for. Returns when all its ranks are connected."""
    with shown_in_words():
        limit = read_limit(asks.max_save_failures)
        exit_requests = ask_signals(asks.signals), None if asks.file is None else ExitFile(Path(asks.file))
        settings = with_found_group(read_settings(os.environ, root, resume_from))
    if settings.rank == 0:
        for warning in unknown(os.environ):
            warn(warning)
    os.environ.setdefault(*RESOLVER)
    core = Core(settings, deterministic=deterministic, seed=seed, timeout=timeout, exit_requests=exit_requests)
    core.run.max_save_failures = limit
    return core


class Core:
    """One process's part in one run."""

    def __init__(
        self,
        settings: Settings,
        *,
        deterministic: bool,
        seed: int,
        timeout: float,
        exit_requests: tuple[Sequence[signal.Signals], ExitFile | None],
    ) -> None:
        self.deterministic = deterministic
        self.seed = seed
        self.run = Run(settings)
        self.boundary = Boundary(self.run)
        self._hang_watch = HangWatch(self.run)
        self.loops = EpochLoops(self.run, self.boundary, self.restore)
        self.run.requests.take(*exit_requests)
        self.preview: Preview | None = None
        if settings.preview:
            self.preview = Preview(self.run, self.describe, settings.preview)
            self.boundary, self.loops = self.preview.boundary, self.preview.loops
        else:
            attach(self.run)
            self._hang_watch.start()
        tells = settings.rank == 0 and not settings.preview
        self._unregistered_check = FirstSteps(self._first_weights) if tells else None
        self._held = HeldGradients() if tells else None
        self._closures = None if settings.preview else Closures(self.run)
        self._watch = ExitWatch(self._tell_error, self._explained)
        self._main = main_frame()
        atexit.register(self._at_exit)
        in_child = weakref.WeakMethod(self._leave_to_child)
        os.register_at_fork(after_in_child=lambda: (act := in_child()) and act())
        self.device = wrapping.take_device(settings.local_rank)
        meet(self.run, timeout)
        if self.run.joining:
            guard_world(self.need_world)
        current.opened(self)

    def restore(self) -> None:
        """Opens the run in the log and restores everything registered from the newest commit, once."""
        run = self.run
        if self.preview:
            self.preview.restore()
        elif run.opening is None and run.joining:
            self.boundary.newcomer = receive(run, seed=self.seed)
            if self.boundary.newcomer is None:
                self._begin_in_place()
        if run.opening is None:
            self._check_collecting()
            check_batches(run)
            resume(run, seed=self.seed)
            sums_alike = self.deterministic or run.world <= wrapping.WORLD_WITH_ONE_ORDER or run.registry.sharded
            if run.rank == 0 and not sums_alike:
                say(
                    f"with {run.world} ranks a resumed run is exact in samples, not in bits: gradients are summed in "
                    f"another order after a restart; Session.from_env(deterministic=True) sums in one order"
                )

    def need_world(self) -> None:
        """The script of a process that joins a living run makes a process group or a device mesh. There are no ranks
        for it, unless the newer run begins in place. A sharded model and a framework get a placeholder."""
        if self.boundary.newcomer:
            raise UserError(NO_GROUP_YET)
        if gets_placeholder(self.run):
            install_placeholder(rank=self.run.rank, world=self.run.world)
            return
        wait_in_place(self.run, NO_GROUP_YET)
        self._begin_in_place()

    def _begin_in_place(self) -> None:
        lift_guard()
        meet_in_place(self.run)

    def _check_collecting(self) -> None:
        """UserError for a hook that should get whole tensors if no rank has any."""
        if self.run.hooks.has(HookName.COLLECT) and (name := self.run.registry.sharded):
            raise UserError(
                f"on('collect'): {name} is sharded, so no rank holds what this hook is given: leave it out, and "
                f"export a commit instead: perdure export {self.run.store.uri} {name} TO"
            )

    def describe(self) -> Description:
        """What this session is about to do, as of now."""
        return describe(
            self.run,
            loop=self.loops.begun,
            goal=self.loops.goal,
            start=self.preview.start if self.preview else None,
            device=self.device,
            deterministic=self.deterministic,
            seed=self.seed,
        )

    def _first_weights(self) -> FirstWeights:
        return FirstWeights(scripts_own(self.run), self.run.progress.step)

    def step(self, *, exhausted: bool) -> None:
        """One optimizer step is done."""
        self.boundary.step(exhausted=exhausted)
        if self._unregistered_check:
            self._unregistered_check.stepped(scripts_own(self.run), self.run.user_state)
        if self._held and self._held.stepped(self.run):
            self._held = None

    def add_hook(self, name: str, hook: Hook) -> Hook:
        """Calls `hook` at the moment of this name."""
        self.warn_of_generators(f"the hook {name!r}", hook)
        return self.run.hooks.add(name, hook)

    def warn_of_generators(self, whose: str, thing: Any) -> None:
        """Warns about random generators that a dataset or a hook draws from and that no checkpoint holds."""
        for path in own_generators(thing) if self.run.rank == 0 else ():
            say(in_no_checkpoint(whose, path))

    def end(self, error: BaseException | None) -> None:
        """The script has left its `with`. The outcome reported here is final, even if the script handles the error."""
        if isinstance(error, Exit) or exit_status(error) == 0:
            self._finish()
            self.close()
            if error:
                self.run.let_go_shards()
        elif error:
            self.run.background.end()  # the script may catch the error and go on
            self.run.mirror.end()
            self.run.evaluated.end_look()
            clear = self._explained(error)
            self._tell_error(clear)
            tell_failed(self.run)
            self._report_last()
            if clear is not error:
                raise clear from error

    def close(self) -> None:
        """Gives back signals, hooks and its process groups."""
        run = self.run
        current.closed(self)
        self._hang_watch.stop()
        atexit.unregister(self._at_exit)
        if hasattr(run, "heartbeat"):  # otherwise it is connected to no rank
            run.heartbeat.stop()
        lift_guard()
        run.requests.before_first_step(None)
        run.requests.release()
        run.images.end()
        run.background.end()
        run.mirror.end()
        run.evaluated.end_look()
        if run.measurements:
            run.measurements.end()
        for looks in (self._unregistered_check, self._held, self._closures):
            if looks:
                looks.end()
        self._watch.stop()
        run.trace.close()
        with contextlib.suppress(PerdureError):
            run.trace.flush()
        if dist.is_initialized() and not run.settings.joined:
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        run.let_go()
        fall_silent()

    def _finish(self, status: Status = Status.GOOD) -> None:
        if not self.run.reporter.ended:
            self.loops.finish(status)

    def _report_last(self) -> None:
        """Makes the last timed reports. The outcome is reported already, so nothing waits for them."""
        if not self.run.joining and not self.preview:  # otherwise it has trained nothing
            self.run.reports.end()

    def _explained(self, error: BaseException) -> BaseException:
        return explained(error) if self.run.joining else error

    def _tell_error(self, error: BaseException) -> ExitKind:
        run = self.run
        if classify(error)[0] is ExitKind.PEER_LOST:
            run.images.leave()
        kind = ExitKind.HANDOVER_FAILED if run.joining else ExitKind.FAILED
        requested_early = (lambda: False) if run.joining else run.requests.came_early
        return tell_error(run.reporter, lambda: run.ending(kind), error, requested_early)

    def _at_exit(self) -> None:
        """The interpreter ends: a script without `with` is done, unless it has failed."""
        self._watch.tell_last_error()
        if self._watch.status == 0:
            try:
                known = self._main is None or has_ended(self._main) or self._watch.exited
                self._finish(Status.EXPECTED if known else Status.UNKNOWN)
            except BaseException as error:  # noqa: BLE001 - nothing else would print it
                sys.excepthook(type(error), error, error.__traceback__)
        if self._watch.status:
            tell_failed(self.run)
        self._report_last()
        self.close()
        self.run.let_go_shards()

    def _leave_to_child(self) -> None:
        """A forked child is no rank, and its end no outcome."""
        atexit.unregister(self._at_exit)
        self._watch.stop()
