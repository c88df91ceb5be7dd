"""What a training script touches: `Session`.

It ties the rooms together and holds no rule of its own: how a process joins its run (joining) and goes on from a
commit (resuming), where the run may stop (boundary), what the work is (job), how a process leaves (leaving), and who
is told (reporting). Scripts use it from one thread.

    with perdure.Session.from_env() as session:
        model = session.wrap(Net())
        optimizer = torch.optim.Adam(model.parameters())
        session.register(model=model, optimizer=optimizer)
        for epoch in session.epochs(10):
            for images, labels in session.loader(dataset, batch_size=64):
                ...
                session.step()
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, overload

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perdure.console import fall_silent, say, warn
from perdure.errors import PerdureError, UserError
from perdure.group.found import with_found_group
from perdure.live.joining import attach, meet, meet_in_place
from perdure.loop.asking import ExitFile
from perdure.loop.asking import exit_signals as ask_signals
from perdure.loop.data.evaluating import Evaluation
from perdure.loop.data.loader import Loader, check_arguments
from perdure.loop.data.randomness import in_no_checkpoint, own_generators
from perdure.loop.data.reading import Reader, read_portion
from perdure.loop.data.sampling import SamplingPlan
from perdure.loop.ending import tell_failed
from perdure.loop.hooks import HookName, read_name
from perdure.loop.leaving import Exit
from perdure.loop.position.accumulating import Accumulator
from perdure.loop.position.counting import NAME as STEPS
from perdure.loop.position.counting import Steps
from perdure.loop.position.progress import RESERVED
from perdure.loop.position.stopping import Condition, Limit, max_seconds, max_steps, read_goal
from perdure.loop.reporting import Watch, classify, exit_status, explained, shown_in_words, tell_error
from perdure.loop.run import Run
from perdure.session import current
from perdure.session.boundary import Boundary
from perdure.session.describing import describe, scripts_own
from perdure.session.description import Description
from perdure.session.exchanging import all_reduce, gather
from perdure.session.gradients import HeldGradients
from perdure.session.job import EpochLoops, Status
from perdure.session.late import register_late
from perdure.session.loop_exit import has_ended, main_frame
from perdure.session.options import checked, read_limit
from perdure.session.preview import Preview
from perdure.session.resuming import receive, resume
from perdure.session.unregistered_check import FirstSteps
from perdure.session.weighting import weigh
from perdure.state import wrapping
from perdure.state.merging import Merge, check_merges
from perdure.state.userstate import UserState
from perdure.wire import ExitKind
from perdure.wire.settings import RESOLVER, Settings, read_settings, unknown

COLLECTIVE_SECONDS: Final = 1800.0
"""How long a collective may wait for a rank; a rank that died is noticed at once."""

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Session:
    """One process's part in one run of a training job."""

    @classmethod
    @checked()
    def from_env(
        cls,
        root: str | Path | None = None,
        *,
        deterministic: bool = False,
        seed: int = 0,
        timeout_seconds: float = COLLECTIVE_SECONDS,
        exit_signals: Sequence[int] = (signal.SIGTERM,),
        exit_file: str | Path | None = None,
        max_save_failures: int | None = None,
        resume_from: Mapping[str, Any] | None = None,
    ) -> Session:
        """Joins the run this process was started for; returns when all its ranks are connected. A process group that a
        launcher, a framework or the script has made before is used, and left to whoever made it.

        `root` is where checkpoints live when nobody else says (a folder, or a URI). `deterministic` makes a resumed run
        equal to an undisturbed one bit for bit with more than two ranks too, at some cost. `seed` is for the order of
        samples and for random states that cannot be resumed.

        `exit_signals` ask to save and leave, as SIGTERM and Ctrl-C do in any case; UserError for one that cannot, such
        as SIGKILL. So does `exit_file`, JSON whose key "GracefulExit" equals 1: it is looked at in each step, on each
        rank, and it is enough if one rank sees it. One that is missing or wrong asks for nothing.

        With the last of `max_save_failures` periodic checkpoints that fail in a row training ends, by StorageError.
        None: it goes on, as ending it would lose what may still be saved later. UserError for a number below 1.

        `resume_from` says where to begin instead of the newest commit: one of `epoch`, `step`, `seq` and `pin`, as
        `perdure.load` takes them, and `uri` for a commit of another root. It counts once: the same words in a later run
        change nothing, and the commits that were bypassed stay bypassed. UserError where there is no such commit.
        """
        with shown_in_words():
            limit = read_limit(max_save_failures)
            asked = ask_signals(exit_signals), None if exit_file is None else ExitFile(Path(exit_file))
            settings = with_found_group(read_settings(os.environ, root, resume_from))
        if settings.rank == 0:
            for told in unknown(os.environ):
                warn(told)
        os.environ.setdefault(*RESOLVER)
        session = cls(settings, deterministic=deterministic, seed=seed, timeout=timeout_seconds, asked=asked)
        session._run.max_save_failures = limit
        return session

    def __init__(
        self,
        settings: Settings,
        *,
        deterministic: bool,
        seed: int,
        timeout: float,
        asked: tuple[Sequence[signal.Signals], ExitFile | None],
    ) -> None:
        """Scripts call `from_env`."""
        self._deterministic = deterministic
        self._seed = seed
        self._run = Run(settings)
        self._boundary = Boundary(self._run)
        self._loops = EpochLoops(self._run, self._boundary, self.restore)
        self._run.requests.take(*asked)
        self._preview: Preview | None = None
        if settings.preview:
            self._preview = Preview(self._run, self.describe, settings.preview)
            self._boundary, self._loops = self._preview.boundary, self._preview.loops
        else:
            attach(self._run)
        tells = settings.rank == 0 and not settings.preview
        self._firsts = FirstSteps() if tells else None
        self._held = HeldGradients() if tells else None
        self._watch = Watch(self._tell_error, self._explained)
        self._main = main_frame()
        atexit.register(self._at_exit)
        in_child = weakref.WeakMethod(self._leave_to_child)
        os.register_at_fork(after_in_child=lambda: (act := in_child()) and act())
        self.device = wrapping.take_device(settings.local_rank)
        meet(self._run, timeout)
        current.opened(self)

    @property
    def run(self) -> int:
        """The run's number: it grows with each change of the members, also while this process goes on."""
        return self._run.settings.run or 0

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        return self._run.rank

    @property
    def world(self) -> int:
        """How many processes the run has."""
        return self._run.world

    @property
    def steps_done(self) -> int:
        """Optimizer steps done, of all runs together."""
        return self._run.progress.step

    @property
    def epoch(self) -> int | None:
        """The epoch being trained, counted within its loop; None outside."""
        return None if self._run.progress.epoch is None else self._run.progress.loop_epochs

    @property
    def epoch_resumed(self) -> bool:
        """Whether an earlier run has begun the present epoch: of its batches there may be any number left, or none."""
        return self._run.progress.epoch_resumed

    @property
    def finished_epochs(self) -> int:
        """Epochs that are done, of all loops and runs together."""
        return self._run.progress.epochs_done

    @property
    def remaining(self) -> int | None:
        """Epochs of this loop that are not done, with the present one; None where their number is not known."""
        goal = self._loops.goal
        return None if goal is None or goal.epochs is None else goal.epochs - self._run.progress.loop_epochs

    @property
    def batch_index(self) -> int:
        """Batches of the present epoch that were handed out before it was resumed: `enumerate(train, batch_index)`.

        With several loaders, of the one in whose middle the epoch was resumed; each loader has a `batch_index`, too.
        """
        return self._run.progress.batch_index

    @property
    def exit_requested(self) -> bool:
        """A hint, of this rank alone: all ranks stop together, at a hand-out or where `poll()` finds it agreed."""
        self._run.requests.look()
        seen = self._run.requests.seen
        self._boundary.told = self._boundary.told or seen
        return seen

    @property
    def save_failures(self) -> int:
        """Periodic checkpoints that have failed in a row, up to now; 0 again with the next that is made."""
        return self._run.checkpointer.failures

    @property
    def exhausted(self) -> bool:
        """Whether some rank has said `step(exhausted=True)`: for scripts that bring samples of their own."""
        return self._boundary.exhausted

    @property
    def state(self) -> UserState:
        """Values of the script's own, by name, that are saved and restored with the training.

        A value that a checkpoint cannot hold is refused when it is set (UserError). Rank 0's values are the saved ones.
        """
        return self._run.user_state

    @property
    def result(self) -> dict[str, Any] | None:
        """What the training has come to, in a few figures: a JSON object of at most 1 KiB, or None.

        In a cluster it ends in the job's `status.result`, once the run ends. It is saved and restored with the
        training. Rank 0's counts. What is read is a copy: set it whole. UserError for what does not fit.
        """
        return self._run.result.value

    @result.setter
    def result(self, value: Mapping[str, Any] | None) -> None:
        self._run.set_result(value)

    @overload
    def on(self, name: str) -> Callable[[Hook], Hook]: ...

    @overload
    def on(self, name: str, hook: Hook) -> Hook: ...

    def on(self, name: str, hook: Callable[..., Any] | None = None) -> Any:
        """Has `hook` called at a moment of the training: perdure.loop.hooks.HookName lists them and what
        they give.

        Without `hook` this is a decorator. A hook that fails is reported, and fatal only in init, collect and exit.
        UserError for a name that there is not, or one whose moment is over.
        """
        if read_name(name) in (HookName.INIT, HookName.RESUMED, HookName.RANKS) and self._run.opening:
            raise UserError(f"on({name!r}): training is restored already: give this hook before epochs()")
        add = partial(self._add_hook, name)
        return add if hook is None else add(hook)

    def _add_hook(self, name: str, hook: Hook) -> Hook:
        self._warn_of_generators(f"the hook {name!r}", hook)
        return self._run.hooks.add(name, hook)

    @checked(DistributedDataParallel)
    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        """The model as training calls it: through DistributedDataParallel where there are several ranks.

        `options` go there. The model itself is the wrapper's `module`.
        """
        replica = wrapping.Replica(model, deterministic=self._deterministic, options=options)
        if not self._run.joining:
            replica.adapt(self.world)
        self._run.replicas.append(replica)
        return replica

    def register(
        self,
        *,
        absent: Literal["refuse", "keep"] | None = None,
        rename: Mapping[str, str] | None = None,
        merge: Mapping[str, Merge] | None = None,
        **things: Any,
    ) -> None:
        """Says what belongs to the state of training: modules, optimizers, schedulers, whatever has a state_dict.

        With `absent="keep"` a checkpoint need not hold these: what it does not have, whole objects or some tensors of a
        module, stays as the script has made it, and is named in the log; else that is refused. `rename` says what is
        called otherwise in checkpoints from before: objects, or parts of a module with what lies below them,
        `{"net": "model", "model.fc": "model.head"}`.

        `merge` says of what each rank has a state of its own, `{"meter": fn}`: it is saved by rank, 256 KiB at most,
        and each rank gets its own back. On another number of ranks each one loads what `fn(states, rank, world)` gives
        for the state_dicts of all ranks that there were, in their order. Not for modules and optimizers.

        What is registered late, after `restore()` or in an epoch, on all ranks alike, gets what the checkpoint holds of
        it right then. A checkpoint that holds nothing of it was made before, so the object begins as it is; with
        `absent="refuse"` that is a UserError. A resumed run registers it again before its first step, else the step is
        a UserError; what no run has registered again goes on into each checkpoint.

        UserError for a name that is taken, what has no state, or a `merge` that cannot be, or comes late.
        """
        if absent not in (None, "refuse", "keep"):
            raise UserError(f"register(absent={absent!r}): write absent='keep' or absent='refuse'")
        merges = check_merges(merge or {}, list(things))
        if self._run.opening:
            register_late(self._run, things, rename or {}, merges, absent)
            return
        self._run.registry.rename(rename or {})
        for name, thing in things.items():
            self._run.registry.add(name, thing, keeps=absent == "keep", merge=merges.get(name))

    @checked(DataLoader)
    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        name: str = "train",
        train: bool = True,
        shuffle: bool | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        per_epoch: int | None = None,
        rewind: bool = True,
        fingerprint: bool = True,
        **options: Any,
    ) -> Loader:
        """This rank's share of every global batch of `batch_size` samples, in an order that no disruption changes.

        With `train=False` it is for an evaluation: it may be walked any number of times, also outside of `epochs()`, no
        step uses any of it, and each pass by itself, below or above the batch loop, has a position: it polls, an
        evaluation that is broken goes on there, and those that are done are left out. `shuffle` is as `train` is.

        With `per_epoch` an epoch takes so many samples of all ranks together, the first ones of its order. With
        `rewind=False` it goes on where the epoch before has left the dataset, in one order for all; the loader's
        `exhausted` is a condition for `epochs(stop=[...])`, which is true when all samples are used.

        A `fingerprint` of the dataset, a few samples that are read and hashed once an epoch where batches are read, is
        compared between the ranks and with the checkpoint; a difference is said once.

        `options` (num_workers, collate_fn, pin_memory, ...) go to torch's DataLoader. Asked for a name again, with the
        same arguments, it gives the same loader again. UserError for what has no position that could be saved.
        """
        check_arguments(name, dataset, batch_size, options)
        size = len(dataset)  # type: ignore[arg-type]
        seed, shuffle = self._seed if seed is None else seed, train if shuffle is None else shuffle
        plan = SamplingPlan(name, size, batch_size, seed, shuffle, drop_last)
        known = self._run.progress.source(name)
        if isinstance(known, Loader):
            return known.same(dataset, plan, options, train=train, per_epoch=per_epoch, rewind=rewind)
        if name in RESERVED:
            raise UserError(f"loader {name!r}: the name is taken by the session itself: give another one")
        self._warn_of_generators(f"loader {name!r}: the dataset", dataset)
        sized_for, rank, world = self._run.settings.global_batch_size, self.rank, self.world
        portion = read_portion(plan, per_epoch, train=train, rewind=rewind)
        kind = (Loader if train else Evaluation) if portion is None else partial(Reader, portion=portion)
        looks = fingerprint and not own_generators(dataset)
        loader = kind(
            dataset,
            plan,
            self._boundary,
            rank=rank,
            world=world,
            options=options,
            sized_for=sized_for,
            fingerprint=looks,
        )
        if self._run.joining:
            loader.postpone_look()
        self._run.progress.add(loader)
        return loader

    def _warn_of_generators(self, whose: str, thing: Any) -> None:
        for path in own_generators(thing) if self.rank == 0 else ():
            say(in_no_checkpoint(whose, path))

    def steps(self, count: int) -> Steps:
        """The numbers 0 to count-1, for a loop over samples of the script's own; from where the epoch was resumed."""
        known = self._run.progress.source(STEPS)
        if isinstance(known, Steps) and (known.end == count or known.handed):
            return known
        steps = Steps(self._boundary, count)
        self._run.progress.add(steps)
        return steps

    def restore(self) -> None:
        """Opens the run in the log and puts everything registered where the newest commit left it.

        `epochs()` does this if nobody did; scripts call it to look at the restored state before.
        """
        if self._preview:
            self._preview.restore()
        elif self._run.opening is None and self._run.joining:
            self._boundary.newcomer = receive(self._run, seed=self._seed)
            if self._boundary.newcomer is None:
                meet_in_place(self._run)
        if self._run.opening is None:
            resume(self._run, seed=self._seed)
            if self.rank == 0 and self.world > wrapping.WORLD_WITH_ONE_ORDER and not self._deterministic:
                say(
                    f"with {self.world} ranks a resumed run is exact in samples, not in bits: gradients are summed in "
                    f"another order after a restart; Session.from_env(deterministic=True) sums in one order"
                )

    def describe(self) -> Description:
        """What this session is about to do, as it stands now: where it would begin or is, what ends it, its hooks, what
        is registered with sizes in bytes, each loader's samples and shares, the cadence, the root.

        A frozen value: `print(session.describe())` is for people, `.plain()` is what JSON takes. It is not collective,
        trains nothing and writes nothing; before `epochs()` it reads the log. StorageError, or StorageRefused, if the
        store does not let one read; UserError for what the run's opening would refuse.
        """
        return describe(
            self._run,
            loop=self._loops.begun,
            goal=self._loops.goal,
            start=self._preview.start if self._preview else None,
            device=self.device,
            deterministic=self._deterministic,
            seed=self._seed,
        )

    @checked()
    def epochs(
        self,
        count: int | None = None,
        *,
        stop: Sequence[Condition | Limit] = (),
        max_steps: int | None = None,
        max_seconds: float | None = None,
    ) -> Iterator[int]:
        """The epochs that are left of this loop's `count`. Opens the run and restores, if nobody did.

        The loop ends with the first epoch after which a condition of `stop` is true on any rank, or a limit is reached:
        `max_steps` of all runs and loops together, `max_seconds` of training. UserError if nothing could ever end it.
        """
        goal = read_goal(count, stop, max_steps=max_steps, max_seconds=max_seconds)
        return self._loops.epochs(goal, stop)

    def remaining_epochs_until(self, count: int) -> Iterator[int]:
        """The epochs that are left until `count` are finished, of all loops and runs together, by their numbers from 0.

        It is a loop as `epochs` gives one, that ends earlier by `stop`, `stop_when` or `break`: one until 60 behind one
        until 30 has the epochs 30 to 59, or those of them that earlier runs have left. UserError for a number below 1,
        and within another epoch.
        """
        return self._loops.epochs(read_goal(count or 0, ()), (), in_all=True)

    max_steps = staticmethod(max_steps)
    max_seconds = staticmethod(max_seconds)

    def stop_when(self, name: str, condition: Condition) -> None:
        """Every loop of the script ends with the epoch after which `condition()` is true, on any rank."""
        self._run.stopping.when(name, condition)

    def stop(self, reason: str) -> None:
        """The loop that is on ends with the epoch that is on, on all ranks, for this reason. UserError outside."""
        if self._run.progress.epoch is None:
            raise UserError(f"stop({reason!r}) is called outside of `for epoch in session.epochs(...)`")
        self._run.stopping.ask(reason)

    def weighted(self, loss: Tensor, n: float | Tensor | None = None, *, of: float | Tensor | None = None) -> Tensor:
        """A mean loss over this rank's batch, weighted so that the ranks' mean is that of the global batch.

        Every rank takes part in every batch; one that got no sample contributes nothing. What comes back has the shape
        of `loss`, a scalar as a rule.

        `n` is how many items this rank's `loss` is a mean of where samples have unequally many, tokens say: a number
        from 0, or a tensor of one element. The mean is that over all items of all ranks then, and one without items
        contributes nothing. `of` is how many this rank has in the whole step, where gradients are accumulated over
        several losses; else `n`. With `n` this is collective: all ranks call it equally often. UserError, on all ranks,
        for what is no number of items.
        """
        if n is None:
            if of is not None:
                raise UserError("weighted(loss, of=...): say of how many of them this loss is the mean, too: give n")
            return self._run.progress.weighted(loss)
        return weigh(loss, n, of, self._run.peers)

    def gather(self, value: Any) -> list[Any]:
        """Each rank's `value`, by rank, on all ranks: numbers, strings, None, lists, mappings, at most 1 MiB as JSON.

        What comes back has been JSON: tuples are lists. Collective: all ranks call it equally often, at the same step.
        UserError, on all ranks, for what one of them cannot tell, and for ranks that call it at different places.
        """
        return gather(value, self._place("gather"), self._run.peers)

    def all_reduce(self, value: Any, how: str = "sum") -> Any:
        """All ranks' values as one: their "sum", "mean", "min" or "max", on all ranks.

        `value` is a number, or a list, a mapping or a tensor of numbers, of one form on all ranks and at most 1 MiB as
        JSON; what comes back has that form, a tensor its shape, dtype and device (the mean of whole numbers is of
        torch's default dtype). Sums are rounded once. Collective, with the errors of `gather`.
        """
        return all_reduce(value, how, self._place("all_reduce"), self._run.peers)

    def accumulator(self, name: str = "sums") -> Accumulator:
        """Sums over all ranks and all runs of this training, of which no sample lacks or counts twice.

        `scores.add(loss=2.5, n=16)` adds on this rank, `scores.sum()` gives the sums by name and begins anew. Asked for
        a name again it gives the same accumulator. UserError for what is no name.
        """
        if not isinstance(name, str) or not name:
            raise UserError(f"accumulator({name!r}): give a name")
        return Accumulator(name, self._run.progress.sums, self._gather_sums)

    def _gather_sums(self, told: Any, call: str) -> list[Any]:
        if not (self._preview and self._preview.start):
            self._run.checkpointer  # noqa: B018 - raises if nothing is restored
        return gather(told, self._place(call), self._run.peers)

    def _place(self, call: str) -> str:
        if self._run.joining:
            raise UserError(f"{call}(): this process joins a living run, and is no rank of it before its first batch")
        return f"{call}() after step {self._run.progress.step}"

    def step(self, *, exhausted: bool = False) -> None:
        """One optimizer step is done. Nothing is saved here: that is done when the next batch is asked for."""
        self._boundary.step(exhausted=exhausted)
        if self._firsts:
            self._firsts.stepped(scripts_own(self._run), self.state)
        if self._held and self._held.stepped(self._run):
            self._held = None

    def poll(self) -> None:
        """A place to leave the script in a long evaluation. All ranks call it alike.

        In the rest of an epoch, after its last batch, and before its first one the run leaves here, and a resumed one
        runs that part again. Between two steps it leaves here only if the time is nearly over.
        """
        self._boundary.poll()

    def should_stop(self) -> bool:
        """Whether to leave the batch loop, as the last thing in it: everything is saved then, and this stays true.

        For scripts that end by themselves instead of by the exception that the next batch raises: they get no further
        batch, what they still do has the rest of the exit's time, and their run goes on in the next process. All ranks
        call it alike, after `step()`; false also in the middle of a step's batches, and where this process hands its
        place over to another: that is done at the next batch. UserError before `epochs()`.
        """
        return self._boundary.should_stop()

    def save(self, pin: str | None = None) -> None:
        """Wants a checkpoint: it is made when the next batch is asked for, or when the epoch's body is done; with `pin`
        behind the last loop, too, at the script's end.

        With `pin`, a name of at most 32 characters, it is kept whatever `checkpoint.keep` says, until another commit is
        saved under that name: `perdure.load(root, pin="best")`. There may be 16 names. All ranks call it alike, and
        rank 0's name counts. UserError for what is no name, or one too many. A save that the store fails is said, and
        pins nothing.
        """
        self._boundary.mark(pin)

    def report(self, **values: Any) -> None:
        """Tells how the training goes: `session.report(loss=loss, rate=0.01)`. It is not collective.

        Values are numbers, strings, None, or tensors and arrays of one element. Rank 0's are said in a line, each
        rank's are in its trace and go to its `reported` hooks. UserError for anything else.
        """
        self._run.report(values)

    def report_every(self, seconds: float, report: Callable[[], Mapping[str, Any] | None]) -> None:
        """Has `report()` called every so many seconds, at the next `step()` or `poll()`; what it gives is reported.

        It is called once more when this process has done its part: complete, leaving, or failed. Each rank has a clock
        of its own, so it must not be collective. What it draws is not drawn, and one that fails is reported.
        """
        self._run.reports.add(seconds, report)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The script's work is done, or has failed: what is told is what counts, whatever the script does with it."""
        if isinstance(error, Exit) or exit_status(error) == 0:
            self._finish()
            self.close()
        elif error:
            clear = self._explained(error)
            self._tell_error(clear)
            tell_failed(self._run)
            self._report_last()
            if clear is not error:
                raise clear from error

    def close(self) -> None:
        """Gives back signals, hooks and its process groups; the interpreter's end does it by itself."""
        run = self._run
        current.closed(self)
        atexit.unregister(self._at_exit)
        if hasattr(run, "pulse"):  # else it has met nobody
            run.pulse.stop()
        run.requests.before_first_step(None)
        run.requests.release()
        run.images.end()
        for looks in (self._firsts, self._held):
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
        if not self._run.reporter.ended:
            self._loops.finish(status)

    def _report_last(self) -> None:
        """What counts is told by then: nobody waits for what the script still has to say."""
        if not self._run.joining and not self._preview:  # else it has trained nothing
            self._run.reports.end()

    def _explained(self, error: BaseException) -> BaseException:
        return explained(error) if self._run.joining else error

    def _tell_error(self, error: BaseException) -> ExitKind:
        run = self._run
        if classify(error)[0] is ExitKind.PEER_LOST:
            run.images.leave()
        kind = ExitKind.HANDOVER_FAILED if run.joining else ExitKind.FAILED
        asked_early = (lambda: False) if run.joining else run.requests.came_early
        return tell_error(run.reporter, lambda: run.ending(kind), error, asked_early)

    def _at_exit(self) -> None:
        """The interpreter's end: a script without `with` has done its work, unless it has failed."""
        self._watch.tell_last_error()
        if self._watch.status == 0:
            try:
                known = self._main is None or has_ended(self._main) or self._watch.exited
                self._finish(Status.EXPECTED if known else Status.UNKNOWN)
            except BaseException as error:  # noqa: BLE001 - nobody else would tell
                sys.excepthook(type(error), error, error.__traceback__)
        if self._watch.status:
            tell_failed(self._run)
        self._report_last()
        self.close()

    def _leave_to_child(self) -> None:
        """A forked child is no rank: how it ends is nobody's outcome."""
        atexit.unregister(self._at_exit)
        self._watch.stop()
