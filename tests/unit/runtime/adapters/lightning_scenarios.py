"""What ranks do in the tests of the Lightning adapter: small trainings with Lightning's own features, and a SIGTERM."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import runpy
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from perdure.adapters.lightning import SessionStrategy
from perdure.loop.leaving import Exit
from perdure.session.session import Session

SAMPLES, BATCH = 40, 8
DOCS = Path(__file__).parents[4] / "docs" / "frameworks.md"
EXAMPLE = Path(__file__).parents[4] / "examples" / "lightning" / "train.py"
QUIET: Mapping[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
warnings.simplefilter("ignore")


def samples(count: int = SAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.arange(count))


class Module(lightning.LightningModule):
    """Dropout, a normalisation, two schedulers, means and a metric of the epoch, and a state in a checkpoint hook."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = self.network()
        self.mean = MeanMetric()
        self.seen: list[Any] = []
        self.counted = 0

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))

    def loss(self, batch: Any) -> Tensor:
        return (self.net(batch[0]) - 1).square().mean()  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.counted += 1
        self.mean.update(loss.detach())
        self.log("train", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("mean", self.mean, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.seen.append([self.current_epoch, batch_idx, sorted(batch[1].tolist())])
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val", self.loss(batch), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["counted"] = self.counted

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.counted = checkpoint["counted"]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [
            {"scheduler": steps, "interval": "step"},
            {"scheduler": plateau, "monitor": "train_epoch"},
        ]


class Plain(Module):
    """The same for any number of ranks, but for rounding."""

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


class Twin(Module):
    """Two optimizers, stepped by hand: the second one every other batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first, second = self.optimizers()
        loss = self.loss(batch)
        first.zero_grad()
        self.manual_backward(loss + 0 * sum(part.sum() for part in self.other.parameters()))
        first.step()
        if batch_idx % 2:
            again = (self.other(batch[0]) + self.net(batch[0]).detach()).square().mean()
            second.zero_grad()
            self.manual_backward(again + 0 * sum(part.sum() for part in self.net.parameters()))
            second.step()
        self.seen.append([self.current_epoch, batch_idx, sorted(batch[1].tolist())])
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.net, self.other)]


class Told(Callback):
    """What the callbacks see, and a SIGTERM to this rank in one step."""

    def __init__(self, stop: int | None) -> None:
        self.stop = stop
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_epoch_end(self, trainer: Any, _: Any) -> None:
        found = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        self.epochs.append({"epoch": trainer.current_epoch, **found})


def trained(
    root: str,
    *,
    stop: int | None = None,
    stopped_rank: int = 0,
    module: str = "Module",
    size: int = SAMPLES,
    callbacks: Callable[[Path], list[Callback]] = lambda _: [],
    **options: Any,
) -> dict[str, Any]:
    session = Session.from_env(Path(root) / "checkpoints")
    told = Told(stop if session.rank == stopped_rank else None)
    net = {"Module": Module, "Plain": Plain, "Twin": Twin}[module]()
    try:
        with session:
            strategy = SessionStrategy(session)
            chosen = {"max_epochs": 2, "enable_checkpointing": False, **QUIET, **options}
            trainer = lightning.Trainer(strategy=strategy, callbacks=[told, *callbacks(Path(root))], **chosen)
            trainer.fit(net, strategy.loader(samples(size), BATCH), DataLoader(samples(16), 4))
            return result("completed", net, trainer, told)
    except Exit:
        return result("left", net, trainer, told)
    finally:
        session.close()


def result(how: str, net: Any, trainer: Any, told: Told) -> dict[str, Any]:
    state = net.state_dict()
    return {
        "how": how,
        "weights": hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest(),
        "values": [round(value, 4) for value in net.net[0].weight.flatten().tolist()],
        "steps": trainer.global_step,
        "epoch": trainer.current_epoch,
        "batches_that_stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "rates": [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups],
        "schedules": [repr(found.scheduler.state_dict()) for found in trainer.lr_scheduler_configs],
        "counted": net.counted,
        "seen": net.seen,
        "epochs": told.epochs,
    }


def early(root: str, **arguments: Any) -> dict[str, Any]:
    """With callbacks that decide by the validation, and write files where a logger says, in each run elsewhere."""
    found: list[Any] = []

    def callbacks(folder: Path) -> list[Callback]:
        found[:] = [
            EarlyStopping("val", patience=2, min_delta=0.2),
            ModelCheckpoint(dirpath=None, monitor="val", save_top_k=2, save_last=True),
        ]
        return found

    arguments |= {"logger": CSVLogger(root)}
    ended = trained(
        root, callbacks=callbacks, enable_checkpointing=True, default_root_dir=root, max_epochs=9, **arguments
    )
    stopping, checkpoint = found
    best = sorted([Path(path).name, float(score)] for path, score in checkpoint.best_k_models.items())
    return ended | {"waited": stopping.wait_count, "stopped": stopping.stopped_epoch, "best": best}


def scheduled(root: str, **arguments: Any) -> dict[str, Any]:
    """Accumulation that changes with the epoch."""
    return trained(root, callbacks=lambda _: [GradientAccumulationScheduler({0: 1, 1: 2})], **arguments)


def example(root: str, *arguments: str) -> list[str]:
    """What the example prints in the end; nothing where it was asked to leave."""
    Path(root).mkdir(exist_ok=True)
    printed = io.StringIO()
    with contextlib.chdir(root), contextlib.redirect_stdout(printed):
        sys.argv = ["train.py", *arguments]
        with contextlib.suppress(Exit):
            runpy.run_path(str(EXAMPLE), run_name="__main__")
    return printed.getvalue().splitlines()


def drained(root: str, at: int | None, accumulate: int = 1) -> list[str]:
    """The example, asked to leave in one step, as a drain would."""
    os.environ.pop("PERDURE_EXIT_AT_STEP", None)
    if at is not None:
        os.environ["PERDURE_EXIT_AT_STEP"] = str(at)
    try:
        return example(root, "--epochs", "2", "--batch", "256", "--accumulate", str(accumulate))
    finally:
        os.environ.pop("PERDURE_EXIT_AT_STEP", None)


class Documented(Module):
    """With the documented name of the validated metric."""

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)


def documented(root: str, at: int | None) -> dict[str, Any]:
    """The document's script, and its datamodule's method in the place of the loader."""
    page = DOCS.read_text().partition("## Lightning")[2].partition("\n## ")[0]
    before, after, method = (
        textwrap.dedent(found) for found in re.findall(r"^ *```python\n(.*?)^ *```", page, re.M | re.S)
    )
    names: dict[str, Any] = {"lightning": lightning, "DataLoader": DataLoader, "EarlyStopping": EarlyStopping}
    nets: list[Any] = []

    def net() -> Documented:
        nets.append(Documented())
        return nets[-1]  # type: ignore[no-any-return]

    names |= {"Net": net, "train_set": samples(640), "val_set": samples(16)}
    Path(root).mkdir(exist_ok=True)
    os.environ.update({} if at is None else {"PERDURE_EXIT_AT_STEP": str(at)})
    with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exit):
        compile(before, "before", "exec")
        exec(after.replace("max_epochs=10", "max_epochs=2"), names)  # noqa: S102 - it is the document's
    os.environ.pop("PERDURE_EXIT_AT_STEP", None)
    session = names["session"]
    session.close()
    exec(method, names)  # noqa: S102 - see above
    of_method = names["train_dataloader"](_Holder(names["strategy"], names["train_set"]))
    weights = [value.item() for value in nets[-1].net[0].weight.flatten()]
    return {"steps": session.steps_done, "weights": weights, "method": [len(of_method), len(names["train"])]}


class _Holder:
    """A module or datamodule, as far as the method looks at it."""

    def __init__(self, strategy: SessionStrategy, train_set: Any) -> None:
        self.trainer = type("Trainer", (), {"strategy": strategy})
        self.train_set = train_set


def refused(root: str, what: str) -> str:
    """How the training is refused."""
    try:
        REFUSED[what](root)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "not refused"


def _fit(
    root: str,
    train: Any = None,
    fit: Mapping[str, Any] | None = None,
    module: Callable[[], Module] = Module,
    **options: Any,
) -> None:
    session = Session.from_env(Path(root) / "checkpoints")
    try:
        with session:
            strategy = SessionStrategy(session)
            trainer = lightning.Trainer(strategy=strategy, max_epochs=1, enable_checkpointing=False, **QUIET, **options)
            loaders = train(strategy) if train else strategy.loader(samples(), BATCH)
            trainer.fit(module(), loaders, **fit or {})
    finally:
        session.close()


def _fit_twice(root: str) -> None:
    session = Session.from_env(Path(root) / "checkpoints")
    try:
        with session:
            strategy = SessionStrategy(session)
            trainer = lightning.Trainer(strategy=strategy, max_epochs=1, enable_checkpointing=False, **QUIET)
            for _ in range(2):
                trainer.fit(Module(), strategy.loader(samples(), BATCH))
    finally:
        session.close()


class Fetching(Module):
    """Fetches its batches itself."""

    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        batch, _, _ = next(dataloader_iter)
        return self.loss(batch)


class Sharded(Module):
    """As Lightning's ModelParallelStrategy wants it."""

    def configure_model(self) -> None:
        fully_shard(self.net, mesh=init_device_mesh("cpu", (self.trainer.world_size,)))


def two(strategy: SessionStrategy) -> Any:
    return [strategy.loader(samples(), BATCH), strategy.loader(samples(16), BATCH, name="other")]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(samples())


REFUSED: Mapping[str, Callable[[str], None]] = {
    "a DataLoader": lambda root: _fit(root, lambda _: DataLoader(samples(), BATCH)),
    "a stream": lambda root: _fit(root, lambda strategy: strategy.loader(Stream(), BATCH)),
    "two loaders": lambda root: _fit(root, two),
    "a loop that fetches": lambda root: _fit(root, module=Fetching),
    "a file": lambda root: _fit(root, fit={"ckpt_path": "some.ckpt"}),
    "fast_dev_run": lambda root: _fit(root, fast_dev_run=True),
    "overfit_batches": lambda root: _fit(root, overfit_batches=2),
    "reload": lambda root: _fit(root, reload_dataloaders_every_n_epochs=1),
    "averaging": lambda root: _fit(root, callbacks=[lightning.pytorch.callbacks.StochasticWeightAveraging(0.01)]),
    "a second fit": _fit_twice,
    "shards": lambda root: _fit(root, module=Sharded),
    "empty shares": lambda root: _fit(root, lambda strategy: strategy.loader(samples(BATCH + 1), BATCH)),
}
