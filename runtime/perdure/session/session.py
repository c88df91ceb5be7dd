"""What a training script touches: `Session`. What it needs more rarely are functions: perdure.session.functions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perdure.errors import UserError
from perdure.loop.adapting.adapt import Adapt
from perdure.loop.data.loader import Loader
from perdure.loop.hooks import HookName, read_name
from perdure.loop.position.counting import Steps
from perdure.loop.position.stopping import Limit, StopCondition, read_goal
from perdure.session.acting import micro
from perdure.session.core import Asks, Core, join
from perdure.session.late import register
from perdure.session.options import checked
from perdure.session.sources import LoaderExtras, Passes, loader_of, steps_of
from perdure.session.weighting import weighted
from perdure.state import wrapping
from perdure.state.merging import Merge
from perdure.state.shards import refuse_sharded
from perdure.state.userstate import UserState

COLLECTIVE_SECONDS: Final = 1800.0
"""How long a collective may wait for a rank; a rank that died is noticed at once."""

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Session:
    """One process's part in one run of a training job. Use it as a context manager, from one thread."""

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
        """Joins the run that this process was started for. Returns when all ranks are connected.

        A process group that exists already is used, and stays with its owner.

        Args:
            root: Where checkpoints live if the environment does not say: a folder or a URI.
            deterministic: Makes a resumed run equal bit for bit with more than two ranks too, at some cost.
            seed: For the order of samples, and for random states that cannot be resumed.
            timeout_seconds: How long a collective call waits for a rank that hangs.
            exit_signals: Signals that request the run to save and leave. SIGTERM and Ctrl-C always do.
            exit_file: A JSON file that requests the same while its key `GracefulExit` equals 1. It is enough if one
                rank sees it. A missing or malformed file requests nothing.
            max_save_failures: Training ends with StorageError when so many periodic saves fail in a row. None: never.
            resume_from: Where to begin instead of at the newest commit: one of `epoch`, `step`, `seq` and `pin`, and
                `uri` for a commit of another root. It counts once: a later run with the same value resumes
                normally.

        Raises:
            UserError: For a signal that cannot be caught, a limit below 1, or a commit that does not exist.
        """
        asks = Asks(exit_signals, exit_file, max_save_failures)
        return cls(join(root, resume_from, asks, deterministic=deterministic, seed=seed, timeout=timeout_seconds))

    def __init__(self, core: Core) -> None:
        """Scripts call `from_env`."""
        self._core = core

    @property
    def rank(self) -> int:
        """This process's number in the run."""
        return self._core.run.rank

    @property
    def world(self) -> int:
        """How many processes the run has."""
        return self._core.run.world

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._core.device

    @property
    def steps_done(self) -> int:
        """Optimizer steps done, of all runs together."""
        return self._core.run.progress.step

    @property
    def state(self) -> UserState:
        """Values of your own, by name. They are saved and restored with the training; rank 0's values count.
        UserError when a value is set that a checkpoint cannot hold.
        """
        return self._core.run.user_state

    @property
    def result(self) -> dict[str, Any] | None:
        """What the training has achieved, in a few figures: a JSON object of at most 1 KiB, or None.

        In a cluster it appears in the job's `status.result` when the run ends. It is saved and restored with the
        training; rank 0's counts. Reading it gives a copy, so set it whole. UserError for a value that does not fit.
        """
        return self._core.run.result.value

    @result.setter
    def result(self, value: Mapping[str, Any] | None) -> None:
        self._core.run.set_result(value)

    @overload
    def on(self, name: str) -> Callable[[Hook], Hook]: ...

    @overload
    def on(self, name: str, hook: Hook) -> Hook: ...

    def on(self, name: str, hook: Callable[..., Any] | None = None) -> Any:
        """Calls `hook` at a moment of the training. Without `hook` this is a decorator.

        `perdure.loop.hooks.HookName` lists the moments and what hooks are called with. A hook that fails is reported;
        in `init`, `collect` and `exit` it fails the script. UserError for an unknown name, or one whose moment is over.
        """
        if read_name(name) in (HookName.INIT, HookName.RESUMED, HookName.RANKS) and self._core.run.opening:
            raise UserError(f"on({name!r}): training is restored already: give this hook before epochs()")
        return partial(self._core.add_hook, name) if hook is None else self._core.add_hook(name, hook)

    @checked(DistributedDataParallel)
    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        """The model as training calls it: through DistributedDataParallel if there are several ranks.

        `options` go to DistributedDataParallel. Your model is the wrapper's `module`. UserError for a sharded model,
        which averages its gradients by itself, and on every rank if the ranks' parameters differ in shape or strides.
        """
        refuse_sharded(model)
        replica = wrapping.Replica(model, deterministic=self._core.deterministic, options=options)
        self._core.run.take_replica(replica)
        return replica

    def register(
        self,
        *,
        absent: Literal["refuse", "keep"] | None = None,
        rename: Mapping[str, str] | None = None,
        merge: Mapping[str, Merge] | None = None,
        **things: Any,
    ) -> None:
        """Adds to the state of training: modules, optimizers, schedulers, anything with a state_dict.

        Objects registered after `perdure.restore`, or within an epoch, get their part of the checkpoint at once. A
        resumed run must register them again before its first step. All ranks register the same names.

        Args:
            absent: `"keep"`: objects and tensors that the checkpoint lacks stay as the script made them, and the log
                names them. `"refuse"`: they are an error, also for late objects, which otherwise begin as they are.
            rename: New names for what older checkpoints call otherwise: objects, or parts of a module with all
                below them, `{"net": "model", "model.fc": "model.head"}`.
            merge: For objects of which each rank has its own state, at most 256 KiB: `{"meter": fn}`. Each rank gets
                its own state back. With another number of ranks each one loads what `fn(states, rank, world)` makes
                of the old ranks' state_dicts. Not for modules and optimizers.
            things: The objects by the names that they have in the checkpoint.

        Raises:
            UserError: For a name that is taken, an object without state, or a `merge` that is invalid or too late.
        """
        register(self._core.run, things, absent=absent, rename=rename or {}, merge=merge or {})

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
        mesh: DeviceMesh | None = None,
        adapt: Adapt | None = None,
        **options: Any,
    ) -> Loader:
        """This rank's share of every global batch, in an order that no interruption changes.

        Called again with the same name and arguments it returns the same loader.

        Args:
            dataset: A map-style dataset, the same one on every rank and in every run.
            batch_size: Samples in a *global* batch, of all ranks together.
            name: What the checkpoint calls this loader's position.
            train: False for an evaluation: no step consumes its batches, any number of passes is allowed, and each
                pass below or above the batch loop resumes where it was interrupted.
            shuffle: By default the value of `train`.
            seed: By default the session's.
            drop_last: Leaves out the last batch if it is smaller.
            per_epoch: Samples of one epoch, of all ranks together: the first ones of its order.
            rewind: False: an epoch begins where the one before stopped. Then give the loader's `exhausted` to `stop`.
            fingerprint: Hashes a few samples per epoch, to tell when ranks or runs read different data.
            mesh: The mesh dimensions whose ranks get different samples, such as `mesh["dp"]`; by default all ranks do.
                Ranks that differ in other dimensions only, as in tensor parallelism, get the same samples.
            adapt: Lets the global batch change while the job trains; a batch may come in several parts (`micro`).
            options: Go to torch's DataLoader: `num_workers`, `collate_fn`, `pin_memory` and so on.

        Raises:
            UserError: For data that has no position that could be saved.
        """
        return loader_of(
            self._core,
            dataset,
            (name, batch_size, seed, shuffle, drop_last),
            Passes(train=train, per_epoch=per_epoch, rewind=rewind),
            LoaderExtras(fingerprint, mesh, adapt),
            options=options,
        )

    def steps(self, count: int) -> Steps:
        """The numbers from 0 to `count`-1, for your own samples. A resumed epoch continues where it was."""
        return steps_of(self._core, count)

    @checked()
    def epochs(
        self,
        count: int | None = None,
        *,
        stop: Sequence[StopCondition | Limit] = (),
        max_steps: int | None = None,
        max_seconds: float | None = None,
        max_progress: float | None = None,
    ) -> Iterator[int]:
        """The epochs of this loop that are left. The first call restores the newest checkpoint.

        It ends after `count` epochs, or the first after which a condition of `stop` is true on any rank or a limit is
        reached: `max_steps`, `max_progress` (perdure.progress) of all runs, `max_seconds` of training. One is needed.
        """
        limits = {"max_steps": max_steps, "max_seconds": max_seconds, "max_progress": max_progress}
        return self._core.loops.epochs(read_goal(count, stop, **limits), stop)

    def stop(self, reason: str) -> None:
        """Ends the present loop with the present epoch, on all ranks. UserError outside of an epoch."""
        if self._core.run.progress.epoch is None:
            raise UserError(f"stop({reason!r}) is called outside of `for epoch in session.epochs(...)`")
        self._core.run.stopping.ask(reason)

    def weighted(self, loss: Tensor, n: float | Tensor | None = None, *, of: float | Tensor | None = None) -> Tensor:
        """The mean loss of this rank's batch, weighted so that the mean over ranks is that of the global batch.

        A rank without samples contributes nothing. The result has the shape of `loss`.

        Args:
            loss: This rank's mean.
            n: How many items the mean is over, if samples have different numbers of items, such as tokens. Then the
                call is collective: all ranks make it equally often.
            of: This rank's items in the whole step, if gradients accumulate. UserError on all ranks if it is no number.
        """
        return weighted(self._core.run, loss, n, of)

    def micro(self) -> AbstractContextManager[bool]:
        """A block around forward and backward: True for a batch, or for the last part of one that has several.

        The ranks average the gradients of all parts with the last one: step the optimizer and the session then.
        """
        return micro(self._core.run)

    def step(self, *, exhausted: bool = False) -> None:
        """Marks one optimizer step as done. Saves happen later, when the script requests its next batch."""
        self._core.step(exhausted=exhausted)

    def save(self, pin: str | None = None) -> None:
        """Requests a checkpoint, for the next request for a batch or the end of the epoch's body. All ranks call it.

        After the last loop only a pinned one is made, at the script's end. A commit with a `pin` (a name of at most 32
        characters, 16 names at most) is kept until another one takes the name. If the store fails the save, that is
        reported, and nothing is pinned. UserError for a bad name, or one too many.
        """
        self._core.boundary.mark(pin)

    def close(self) -> None:
        """Restores signal handlers and frees process groups. The end of `with`, or of the interpreter, does so, too."""
        self._core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Completes the job, or tells that it has failed."""
        self._core.end(error)


def core_of(session: Session) -> Core:
    """For the modules of this package that add to a session."""
    return session._core  # noqa: SLF001 - the one door
