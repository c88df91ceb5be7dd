"""The trainers' scripts in test_live: the Hugging Face Trainer and Lightning, whose ranks change while they train.

Callbacks have no attributes, or save them: what others keep would keep the ranks from changing live.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import ExportableState

from perdure.adapters.hf import Trainer
from perdure.adapters.lightning import SessionStrategy
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.adapters.hf_trainings import MODELS, Draw, Numbers, Tally, arguments, known, score
from tests.unit.runtime.adapters.lightning_scenarios import QUIET, Module, Twin, samples
from tests.unit.runtime.live.scripts import await_exit, dies, take_part

warnings.simplefilter("ignore")
BATCH = 12
LONG = 3600.0


def hf(
    root: str,
    *,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    leaves_at: int | None = None,
    die: str = "",
    model: str = "mean",
    keeps: str = "",
    early: bool = False,
    **named: Any,
) -> dict[str, Any]:
    """A training by the Trainer, with an evaluation each epoch, dropout, and losses that are logged every third step.

    One that `keeps` has a callback with a value of its own; one that is `early` makes a collective before it trains.
    `die` is where it kills itself.
    """
    torch.set_num_threads(1)
    offers, objects = dict(again), list[list[int]]()
    with Session.from_env(root, deterministic=True) as session:
        chosen = {"num_train_epochs": 3, "eval_strategy": "epoch", "metric_for_best_model": "score", **named}
        args = arguments(**chosen)
        if early:
            dist.barrier()
        net, tally = MODELS[model](0.3), Tally()
        adds = Adds(net)

        class Meets(TrainerCallback):
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                objects.append(ids())
                take_part(session, wait_at, offers)
                await_exit(session, leaves_at)

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                dies(die, "restored")

        class Keeps(TrainerCallback):
            def __init__(self) -> None:
                self.value = 0

        class Clocked(TrainerCallback):
            """It ends the training when its time is over."""

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.begun = time.monotonic()

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = time.monotonic() - self.begun > LONG

        class StopsEarlyAndKeeps(EarlyStoppingCallback):
            """What it inherits saves the patience, and not its value."""

            def __init__(self) -> None:
                super().__init__(9)
                self.value = 0

        kept = {"": (), "value": (Keeps,), "clock": (Clocked,), "more": (StopsEarlyAndKeeps,)}[keeps]
        trainer = Trainer(
            session=session,
            batch_size=BATCH,
            model=net,
            args=args,
            train_dataset=Numbers(100),
            eval_dataset=Numbers(20, seed=1),
            compute_metrics=score,
            callbacks=[tally, adds, Draw(), Meets(), EarlyStoppingCallback(9), *(kind() for kind in kept)],
        )

        def ids() -> list[int]:
            parts = (trainer.model, trainer.model_wrapped, trainer.optimizer, trainer.lr_scheduler, trainer.state)
            return list(map(id, parts))

        try:
            loss = trainer.train().training_loss
        except Exit:
            return {"left": session.steps_done, "seen": net.seen}
        state = {name: value for name, value in vars(trainer.state).items() if isinstance(value, int | float)}
        return known(trainer, net) | {
            "rank": session.rank,
            "loss": loss,
            "state": state,
            "evaluations": tally.evaluations,
            "sum": adds.sum,
            "optimizer": digest(trainer.optimizer.state_dict()["state"]),
            "random": digest({"torch": torch.get_rng_state()}),
            "last evaluation": trainer.evaluate()["eval_loss"],
            "same objects": len(set(map(tuple, objects))) == 1,
        }


def pl(
    root: str,
    *,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    leaves_at: int | None = None,
    die: str = "",
    module: str = "Module",
    keeps: str = "",
    early: str = "",
    prepares: bool = False,
    checkpoints: Mapping[str, Any] | None = None,
    count: int = 100,
    **named: Any,
) -> dict[str, Any]:
    """A training by Lightning, with a validation each epoch, a normalisation, and metrics that an epoch accumulates.

    `early`: how it makes a collective in its setup. With `checkpoints` it has a ModelCheckpoint with these options.
    `count` samples are an epoch.
    """
    torch.set_num_threads(1)
    offers, objects, epochs = dict(again), list[list[int]](), list[dict[str, float]]()
    with Session.from_env(root, deterministic=True) as session:
        net: Any = (Prepares if prepares else {"Module": Module, "Twin": Twin}[module])()
        strategy = SessionStrategy(session)
        chosen = {"max_epochs": 3, "enable_checkpointing": False, **QUIET, **named}
        callbacks: list[Callback] = [Early() if early else Callback(), *(kind() for kind in KEEPING[keeps])]
        callbacks += [EarlyStopping("val", patience=9)] if module == "Module" else []
        files = Path(f"{root}-files")
        if checkpoints is not None:
            callbacks.append(ModelCheckpoint(files, **checkpoints))
            chosen["enable_checkpointing"] = True

        def meet(trainer: Any) -> None:
            parts = (trainer.lightning_module, *trainer.optimizers, trainer.fit_loop, trainer.strategy)
            objects.append([*map(id, parts)])
            take_part(session, wait_at, offers)
            await_exit(session, leaves_at)

        callbacks.append(meeting(meet, epochs, lambda: dies(die, "restored")))
        os.environ["EARLY"] = early
        trainer = lightning.Trainer(strategy=strategy, callbacks=callbacks, **chosen)
        try:
            trainer.fit(net, strategy.loader(samples(count), BATCH, drop_last=True), DataLoader(samples(20), 4))
        except Exit:
            return {"left": session.steps_done, "seen": net.seen, "epochs": epochs}
        return {
            "rank": session.rank,
            "weights": digest(net.state_dict()),
            "optimizer": digest({str(n): one.state_dict()["state"] for n, one in enumerate(trainer.optimizers)}),
            "random": digest({"torch": torch.get_rng_state()}),
            "steps": trainer.global_step,
            "epoch": trainer.current_epoch,
            "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
            "counted": net.counted,
            "seen": net.seen,
            "epochs": epochs,
            "schedules": [repr(found.scheduler.state_dict()) for found in trainer.lr_scheduler_configs],
            "validated": trainer.validate(net, DataLoader(samples(20), 4), verbose=False),
            "files": sorted(path.name for path in files.iterdir()) if checkpoints is not None else [],
            "same objects": len(set(map(tuple, objects))) == 1,
        }


class Adds(TrainerCallback, ExportableState):
    """It adds up numbers of this rank's samples, and saves the sum."""

    def __init__(self, net: Any) -> None:
        self.net, self.sum = net, 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"sum": self.sum}}

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.sum += self.net.seen[-1][0]


class KeepsValue(Callback):
    """It has a value that no checkpoint holds."""

    def __init__(self) -> None:
        self.value = 0


class StopsEarlyAndKeepsValue(EarlyStopping):
    """What it inherits saves the patience, and not its value."""

    def __init__(self) -> None:
        super().__init__("val", patience=9)
        self.value = 0


KEEPING: Mapping[str, tuple[Callable[[], Callback], ...]] = {
    "": (),
    "value": (KeepsValue,),
    "more": (StopsEarlyAndKeepsValue,),
}


class Prepares(Module):
    """Lightning waits after its preparation, with all ranks and without a limit of time."""

    def prepare_data(self) -> None:
        pass


class Early(Callback):
    """It makes a collective before the first batch, by torch or by the strategy, as EARLY says."""

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        if os.environ["EARLY"] == "torch":
            dist.barrier()
        else:
            trainer.strategy.barrier()


def meeting(meet: Callable[[Any], None], epochs: list[dict[str, float]], restored: Callable[[], None]) -> Callback:
    """A callback that meets the other members in a step, and notes what each epoch comes to."""

    class Meets(Callback):
        def on_fit_start(self, *_: Any) -> None:
            restored()

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            meet(trainer)

        def on_train_epoch_start(self, *_: Any) -> None:
            torch.rand(3)

        def on_train_epoch_end(self, trainer: Any, _: Any) -> None:
            found = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
            epochs.append({"epoch": trainer.current_epoch, **found})

    return Meets()


def digest(tensors: Any) -> str:
    """A hash of all tensors in it."""
    found = hashlib.sha256()

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                visit(value[key])

    visit(tensors)
    return found.hexdigest()[:16]
