"""What a training script touches: `Session`.

It ties the rooms together and holds no rule of its own: who the ranks are (exit.rendezvous), when a run may begin
(opening), where training stands (progress), what is saved (registry) and how (saving), and when all stop
(exit.agree). Scripts use it from one thread.

    session = perdure.Session.from_env()
    model = session.wrap(Net())
    optimizer = torch.optim.Adam(model.parameters())
    session.register(model=model, optimizer=optimizer)
    for epoch in session.epochs(10):
        for images, labels in session.loader(dataset, batch_size=64): ...
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from perdure.channel import Attached, Committed, Exiting, Opened, Stepped
from perdure.checkpoint.checkpointer import GOAL_SECONDS, Checkpointer
from perdure.checkpoint.opening import Opening, load_newest, open_run, say
from perdure.checkpoint.schedule import CheckpointSchedule
from perdure.checkpoint.state import Loaded, State
from perdure.contract import ExitKind
from perdure.data.loader import Loader
from perdure.data.sampling import SamplingPlan
from perdure.errors import PerdureError, UserError
from perdure.group.agreement import Agreement, CheckpointCall, Votes
from perdure.group.pulse import Pulse
from perdure.group.rendezvous import Deadline, rendezvous
from perdure.session import wrapping
from perdure.session.leaving import Exit, Reporter, leave_at_once, tell_last_error, watch_for_errors
from perdure.session.progress import Progress, random_state
from perdure.session.registry import Registry
from perdure.session.requests import Requests
from perdure.settings import Settings, read_settings
from perdure.store import open_store
from perdure.telemetry.timings import Timings
from perdure.telemetry.trace import NoTrace, StoreTrace, Trace

COLLECTIVE_SECONDS: Final = 1800.0
"""How long a collective may wait for a rank; a rank that died is noticed at once."""


class Session:
    """One process's part in one run of a training job."""

    @classmethod
    def from_env(
        cls,
        root: str | Path | None = None,
        *,
        deterministic: bool = False,
        seed: int = 0,
        timeout_seconds: float = COLLECTIVE_SECONDS,
    ) -> Session:
        """Joins the run this process was started for; returns when all its ranks are connected.

        `root` is where checkpoints live when nobody else says (a folder, or a URI). `deterministic` makes a resumed run
        equal to an undisturbed one bit for bit with more than two ranks too, at some cost. `seed` is for the order of
        samples and for random states that cannot be resumed.
        """
        return cls(read_settings(os.environ, root), deterministic=deterministic, seed=seed, timeout=timeout_seconds)

    def __init__(self, settings: Settings, *, deterministic: bool, seed: int, timeout: float) -> None:
        """Scripts call `from_env`."""
        self._settings = settings
        self._deterministic = deterministic
        self._seed = seed
        self._progress = Progress()
        self._registry = Registry()
        self._timings = Timings()
        self._goal: int | None = None
        self._opening: Opening | None = None
        self._checkpointer: Checkpointer | None = None
        self._trace: Trace = NoTrace()
        self._stepped = False
        self._request_traced = False
        self._schedule = CheckpointSchedule(settings.cadence, rank=settings.rank)
        self._save_at_epochs_end = False
        self.exhausted = False
        """Whether some rank has said `step(exhausted=True)`: for scripts that bring samples of their own."""
        self._reporter = Reporter(settings.report_fd)
        self._reporter.tell(Attached(os.getpid()))
        self._requests = Requests(settings.request_file, settings.grace)
        self._requests.listen()
        self._stop_watching = watch_for_errors(self._reporter, lambda: self._ending(ExitKind.FAILED))
        atexit.register(self._at_exit)
        in_child = weakref.WeakMethod(self._leave_to_child)
        os.register_at_fork(after_in_child=lambda: (act := in_child()) and act())
        self.device = wrapping.take_device(settings.local_rank)
        self._join(timeout)

    def _join(self, timeout: float) -> None:
        settings = self._settings
        import torch._dynamo  # noqa: F401, PLC0415 - the first optimizer would: here others may still be on their way

        self._timings.begin(settings.started)
        self._store = open_store(settings.root, os.environ)
        with self._timings.part("rendezvous"):
            deadline = Deadline(settings.rendezvous, self._give_up)
            groups = rendezvous(settings, timeout=timedelta(seconds=timeout), deadline=deadline)
        self._peers = groups.peers
        self._agreement = Agreement(groups.agreement)
        self._pulse = Pulse(settings, lambda: self._requests.seen, self._lose_peers)
        self._pulse.start()

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        return self._settings.rank

    @property
    def world(self) -> int:
        """How many processes the run has."""
        return self._settings.world

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return self._progress.step

    @property
    def exit_requested(self) -> bool:
        """A hint, of this rank alone: the ranks stop where `step()` or `poll()` says so."""
        return self._requests.seen

    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        """The model as training calls it: in DistributedDataParallel with more than one rank. `options` go there."""
        return wrapping.wrap(model, world=self.world, deterministic=self._deterministic, options=options)

    def register(self, **things: Any) -> None:
        """Says what belongs to the state of training: modules, optimizers, schedulers, whatever has a state_dict."""
        if self._opening:
            raise UserError(f"register({', '.join(things)}): training is restored already: register before epochs()")
        for name, thing in things.items():
            self._registry.add(name, thing)

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        name: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """This rank's share of every global batch of `batch_size` samples, in an order that no disruption changes.

        `options` (num_workers, collate_fn, pin_memory, ...) go to torch's DataLoader.
        """
        size = len(dataset)  # type: ignore[arg-type]
        plan = SamplingPlan(name, size, batch_size, self._seed if seed is None else seed, shuffle, drop_last)
        loader = Loader(dataset, plan, self._progress, rank=self.rank, world=self.world, options=options)
        self._progress.add(loader)
        return loader

    def restore(self) -> None:
        """Opens the run in the log and puts everything registered where the newest commit left it.

        `epochs()` does this if nobody did; scripts call it to look at the restored state before.
        """
        if self._opening:
            return
        settings = self._settings
        opening = open_run(settings, self._store, self._peers, self._give_up)
        self._opening = opening
        if settings.trace:
            self._trace = StoreTrace(self._store, uid=settings.uid, run=opening.run, rank=self.rank, world=self.world)
        self._checkpointer = self._make_checkpointer(opening)
        self._reporter.tell(Opened(opening.run))
        self._requests.before_first_step(self._stop_without_step)
        with self._timings.part("restore"):
            loaded = load_newest(settings, self._store, self._peers, opening.writer, self._registry)
            if loaded:
                self._go_on_from(loaded)
            self._checkpoints.rehearse()
        self._reporter.tell(Opened(opening.run, self._checkpointer.commit))
        self._trace.event("resumed", step=self._progress.step)
        self._schedule.saved()

    def _make_checkpointer(self, opening: Opening) -> Checkpointer:
        return Checkpointer(
            store=self._store,
            peers=self._peers,
            writer=opening.writer,
            run=opening.run,
            keep=self._settings.keep,
            trace=self._trace,
            timings=self._timings,
            read=self._state,
        )

    def _state(self) -> State:
        return self._registry.state({"rng": self._progress.random_state()})

    def _go_on_from(self, loaded: Loaded) -> None:
        self._registry.load(loaded.state)
        same_world = loaded.world == self.world
        step, rank = loaded.position.step, self.rank
        state = random_state(loaded.state.rank, same_world=same_world, seed=self._seed, step=step, rank=rank)
        self._progress.resume(loaded.position, state)
        self._checkpoints.commit = loaded.commit

    @property
    def _checkpoints(self) -> Checkpointer:
        if self._checkpointer is None:
            raise UserError("nothing is restored yet: iterate `for epoch in session.epochs(n)`, or call restore()")
        return self._checkpointer

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`; at their end the job is completed in the log."""
        self.restore()
        self._goal = count
        while self._progress.epochs_done < count and not self._completed_before(count):
            yield self._progress.begin_epoch()
            self._progress.finish_epoch()
            asked, self._save_at_epochs_end = self._save_at_epochs_end, False
            if self._progress.epochs_done < count:
                self._between_epochs(asked=asked)
        self._complete(count)

    def _between_epochs(self, *, asked: bool) -> None:
        if asked:
            self.save()
        if self._schedule.after_epoch(self._progress.epochs_done) and not self._progress.saved:
            self._save_periodically("epoch")

    def _completed_before(self, count: int) -> bool:
        """Whether the log says that this goal, or a higher one, has been reached."""
        goal = self._opening.goal if self._opening else None
        return isinstance(goal, dict) and count <= int(goal.get("epochs", 0))

    def weighted(self, loss: Tensor) -> Tensor:
        """A mean loss over this rank's batch, weighted so that the ranks' mean is that of the global batch.

        Every rank takes part in every batch; one that got no sample contributes nothing.
        """
        return self._progress.weighted(loss)

    def step(self, *, exhausted: bool = False) -> None:
        """One optimizer step is done. Saves when that is due; leaves the script when the ranks have agreed to."""
        self._checkpoints  # noqa: B018 - raises if nothing is restored
        if not self._stepped:
            self._requests.before_first_step(None)
            self._stepped = True
        ids = self._progress.finish_step()
        self._trace.step(self._progress.epochs_done, self._progress.step, ids)
        self._reporter.tell(Stepped(self._progress.step))
        self._pulse.stepped()
        due = self._check(CheckpointCall.STEP, exhausted=exhausted) or self._schedule.after_step(self._progress.step)
        if due and not self._progress.saved:
            self._save_periodically("cadence")

    def poll(self) -> None:
        """A place to leave the script between two steps, in a long evaluation say. All ranks call it alike."""
        self._checkpoints  # noqa: B018 - raises if nothing is restored
        self._check(CheckpointCall.POLL)

    def save(self) -> bool:
        """Makes a checkpoint now, on all ranks; False if the store failed, which is reported.

        At the end of an epoch it is made once the epoch's body is done: a resume would run the body's rest again.
        """
        self._checkpoints  # noqa: B018 - raises if nothing is restored
        if self._progress.at_epochs_end:
            self._save_at_epochs_end = True
            return True
        if self._at_once(CheckpointCall.SAVE, exit_=self._requests.seen):
            self._exit()
        return self._save_periodically("script")

    def _at_once(self, kind: CheckpointCall, *, exit_: bool = False) -> bool:
        """Whether all leave, as they say right here."""
        agreed = self._agreement.at_once(self._progress.step, kind, Votes(exit=exit_))
        self.exhausted = self.exhausted or agreed.exhausted
        return agreed.exit

    def _check(self, kind: CheckpointCall, *, exhausted: bool = False) -> bool:
        """Whether a checkpoint is due for all; does not return if the ranks have agreed to leave."""
        self._trace_request()
        said = Votes(self._requests.seen, kind is CheckpointCall.STEP and self._schedule.by_the_clock(), exhausted)
        agreed = self._agreement.check(self._progress.step, kind, said)
        self.exhausted = self.exhausted or agreed.exhausted
        if agreed.exit and not self._progress.at_goal(self._goal):
            self._exit()
        if agreed.exit and not self._progress.saved:
            self._save_periodically("goal")  # what is left of the last epoch may take longer than there is time
        return agreed.save

    def _trace_request(self) -> None:
        """Once, with the time at which the request was seen rather than that of this check."""
        request = self._requests.current
        if request and not self._request_traced:
            self._request_traced = True
            ago = time.monotonic() - request.at
            self._trace.event("request-seen", t=time.time() - ago, step=self._progress.step, cause=request.cause)

    def _save_periodically(self, reason: str) -> bool:
        with self._pulse.paused():
            done = self._checkpoints.periodic(self._progress.position(), reason)
        if done:
            self._progress.saved = True
            self._schedule.saved()
            self._tell_commit()
        return done

    def _tell_commit(self) -> None:
        if self._checkpoints.commit:
            self._reporter.tell(Committed(self._checkpoints.commit))

    def _exit(self) -> None:
        """All ranks save and leave, at one step."""
        self._pulse.stop()
        request = self._requests.current
        if request:
            self._timings.note({"agree": time.monotonic() - request.at})
        causes = self._peers.gather(request.cause if request else "")
        cause = next((cause for cause in causes if cause), "a rank was asked to exit")
        self._trace.event("exit", step=self._progress.step)
        self._checkpoints.final(self._progress.position(), cause, self._requests.left)
        self._tell_commit()
        self._reporter.tell(self._ending(ExitKind.CHECKPOINTED))
        if self.rank == 0:
            say(f"saved step {self._progress.step}, leaving: {cause}")
        self._checkpoints.write_trace(self._requests.left)
        raise Exit

    def _complete(self, count: int) -> None:
        """The goal is reached, and that beats a request to leave."""
        self._at_once(CheckpointCall.END)
        self._pulse.stop()
        self._requests.before_first_step(None)
        begun = time.monotonic()

        def left() -> float:
            asked = self._requests.left()
            return GOAL_SECONDS - (time.monotonic() - begun) if asked is None else asked

        self._trace.event("completed", step=self._progress.step)
        if not self._progress.saved:
            self._checkpoints.final(self._progress.position(), "goal", left)
            self._progress.saved = True
            self._tell_commit()
        goal = self._opening.goal if self._completed_before(count) and self._opening else {"epochs": count}
        self._checkpoints.complete(goal, self._progress.position(), left)
        self._reporter.tell(self._ending(ExitKind.COMPLETED))
        self._release_after_goal()
        self._checkpoints.write_trace(left)
        self._checkpoints.retire()

    def _release_after_goal(self) -> None:
        """With an agent SIGTERM stays harmless: the agent's limit bounds what the script still does, an export say."""
        if self._settings.report_fd is None:
            self._requests.release()
        else:
            self._requests.release_interruption()

    def _stop_without_step(self) -> None:
        """In the requests' thread: nothing was trained, so there is nothing to save, and the main thread may hang.

        Rank 0 alone, as the log is its own: another rank may be a step behind one that is done.
        """
        if self.rank != 0:
            return
        self._checkpoints.close("no-step")
        self._end_stopped("asked to leave before the first step was done")
        leave_at_once(0)

    def _lose_peers(self, why: str) -> None:
        """In the pulse's thread: the main thread may wait in a collective for ever. The store may be cut off too."""
        self._reporter.tell(self._ending(ExitKind.PEER_LOST))
        say(why)
        leave_at_once(1)

    def _give_up(self) -> None:
        """Before the run is open: leaves if anybody asked to."""
        if self._requests.seen:
            self._end_stopped("asked to leave before the run was open")
            raise Exit

    def _end_stopped(self, why: str) -> None:
        with contextlib.suppress(PerdureError):
            self._trace.flush()
        self._reporter.tell(self._ending(ExitKind.STOPPED))
        say(why)

    def _ending(self, outcome: ExitKind) -> Exiting:
        opened = self._opening.opened if self._opening else 0
        commit = self._checkpointer.commit if self._checkpointer else None
        return Exiting(outcome, self._progress.step, commit, opened, dict(self._timings.seconds))

    def close(self) -> None:
        """Gives back signals, hooks and process groups; the interpreter's end does it by itself."""
        atexit.unregister(self._at_exit)
        self._pulse.stop()
        self._requests.before_first_step(None)
        self._requests.release()
        self._stop_watching()
        self._trace.close()
        with contextlib.suppress(PerdureError):
            self._trace.flush()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def _at_exit(self) -> None:
        tell_last_error(self._reporter, lambda: self._ending(ExitKind.FAILED))
        self.close()

    def _leave_to_child(self) -> None:
        """A forked child is no rank: how it ends is nobody's outcome."""
        atexit.unregister(self._at_exit)
        self._stop_watching()
