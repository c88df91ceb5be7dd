"""A training with the Hugging Face Trainer, as the tests of the adapter play it; imported by their nursery.

Its arithmetic is exact without dropout (integers and powers of two, in float64), so its weights are the same bit for
bit on any number of ranks. The model itself notes which samples it is trained on, and the order of the dataset is what
the Session makes of it.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, SequentialSampler
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from perdure import Session
from perdure.adapters.hf import Trainer

EXAMPLE = Path(__file__).parents[4] / "examples" / "trainer" / "train.py"
CLOCKED = ("runtime", "per_second")


class Numbers(Dataset[dict[str, Tensor]]):
    """Samples of whole numbers."""

    def __init__(self, size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randint(-8, 8, (size, 4), generator=generator).double()
        self.labels = torch.randint(-8, 8, (size, 2), generator=generator).double()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"x": self.inputs[number], "labels": self.labels[number], "number": torch.tensor(number)}


class Plain(nn.Module):
    """A model whose loss is the mean over a batch, as a script would write it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.layer.weight)
        self.dropout = nn.Dropout(dropout)
        self.seen: list[list[int]] = []

    def losses(self, x: Tensor, labels: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.seen.append(number.tolist())
        outputs = self.layer(self.dropout(x))
        return (outputs * labels).sum(1), outputs

    def forward(self, x: Tensor, labels: Tensor, number: Tensor) -> dict[str, Tensor]:
        losses, outputs = self.losses(x, labels, number)
        return {"loss": losses.mean(), "logits": outputs}


class Mean(Plain):
    """The same as models of transformers do it that take the number of items, and do not look at it."""

    def forward(self, x: Tensor, labels: Tensor, number: Tensor, **_: Any) -> dict[str, Tensor]:
        return super().forward(x, labels, number)


class Summed(Plain):
    """The loss as models do it that divide by what all ranks have in the whole update: labels, two a sample."""

    def forward(self, x: Tensor, labels: Tensor, number: Tensor, num_items_in_batch: Any = None, **_: Any) -> Any:
        losses, outputs = self.losses(x, labels, number)
        items = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return {"loss": losses.sum() / items, "logits": outputs}


class Ask(TrainerCallback):
    """SIGTERM for this process when an update is done, as a drain sends it."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at and state.is_world_process_zero:
            os.kill(os.getpid(), signal.SIGTERM)


class Kill(TrainerCallback):
    """Ends the process in the evaluation of an epoch's end, as when time is over."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        os._exit(3)


class Stream(IterableDataset[dict[str, Tensor]]):
    """Samples without numbers."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        yield from (Numbers(8)[number] for number in range(8))


class OwnSampler(Trainer):
    """A user's class that orders samples itself."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


class Tally(TrainerCallback, ExportableState):
    """A user's callback that counts, and says so."""

    def __init__(self) -> None:
        self.evaluations = 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"evaluations": self.evaluations}}

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.evaluations += 1


class Draw(TrainerCallback):
    """A user's callback that draws random numbers where the Trainer lets it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.rand(3)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.rand(5)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.rand(7)


def score(prediction: Any) -> dict[str, float]:
    """Falls, whatever is learnt, if labels are large."""
    return {"score": float((prediction.predictions * prediction.label_ids).sum())}


MODELS = {"plain": Plain, "mean": Mean, "summed": Summed}


def arguments(**named: Any) -> TrainingArguments:
    """Without what takes time, or a network."""
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "max_grad_norm": 0}
    rates = {"optim": "sgd", "learning_rate": 0.5, "per_device_train_batch_size": 8, "logging_steps": 3}
    folder = tempfile.mkdtemp(prefix="hf-", dir=os.environ["FOLDER"])
    return TrainingArguments(**{"output_dir": folder, **quiet, **rates, **named})


def train(
    root: str,
    *,
    model: str = "mean",
    dropout: float = 0.0,
    samples: int = 44,
    terminate: int = 0,
    batch_size: int | None = 8,
    patience: int = 0,
    kill: bool = False,
    data: str = "numbers",
    resume: bool = False,
    own: str = "",
    **named: Any,
) -> dict[str, Any]:
    """Trains to the end, or leaves where it is asked to; returns its knowledge then."""
    told: dict[str, Any] = {"left": True}
    if own == "release":
        transformers.Trainer._determine_best_metric = lambda self, figures: False
    with Session.from_env(root, deterministic=True) as session:
        args = arguments(**named)
        net, tally = MODELS[model](dropout), Tally()
        stopping = [EarlyStoppingCallback(early_stopping_patience=patience)] if patience else []
        trainer = (OwnSampler if own == "sampler" else Trainer)(
            session=session,
            batch_size=batch_size,
            model=net,
            args=args,
            train_dataset=Stream() if data == "stream" else Numbers(samples),
            eval_dataset=Numbers(32, seed=1),
            compute_metrics=score,
            callbacks=[Ask(terminate), tally, Draw(), *stopping, *([Kill()] if kill else [])],
        )
        try:
            outcome = trainer.train(resume_from_checkpoint=resume or None)
            if own == "again":
                trainer.train()
            told = {"left": False, "loss": outcome.training_loss, "evaluated": trainer.evaluate()}
        except SystemExit:
            told |= {"step": session.steps_done}
        told |= known(trainer, net) | {"evaluations": tally.evaluations, "rank": session.rank}
    return told


def train_without(**named: Any) -> dict[str, Any]:
    """The same model and data in the Trainer of transformers alone."""
    net = Mean(0.0)
    trainer = transformers.Trainer(model=net, args=arguments(**named), train_dataset=Numbers(44))
    return {"loss": trainer.train().training_loss} | known(trainer, net)


def example(root: str, folder: str, words: list[str]) -> dict[str, Any]:
    """The example as `python train.py` plays it; what it exports, if it comes to that."""
    Path(folder).mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ["PERDURE_ROOT"] = f"file://{root}"
    sys.argv = ["train.py", *words]
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    except SystemExit:
        return {"left": True}
    return {"left": False, "exported": hashlib.sha256(Path("export/model.safetensors").read_bytes()).hexdigest()}


def page(block: str, root: str) -> dict[str, Any]:
    """A block of the page, with what stands above it in a script."""
    os.chdir(tempfile.mkdtemp(dir=os.environ["FOLDER"]))
    os.environ["PERDURE_ROOT"] = f"file://{root}"
    names = {"torch": torch, "model": Mean(0.0), "train_set": Numbers(44), "test_set": Numbers(20)}
    names |= {"TrainingArguments": partial(TrainingArguments, save_strategy="no", report_to="none")}
    exec(compile(block, "frameworks.md", "exec"), names)  # noqa: S102 - it is our own page
    return {"saved": sorted(path.name for path in Path("trained").iterdir())}


def known(trainer: Any, net: Plain) -> dict[str, Any]:
    """Its result, except for values that depend on clocks."""
    history = [
        {name: value for name, value in entry.items() if not any(word in name for word in CLOCKED)}
        for entry in trainer.state.log_history
    ]
    return {
        "weights": hashlib.sha256(net.layer.weight.detach().numpy().tobytes()).hexdigest(),
        "values": net.layer.weight.flatten().tolist(),
        "seen": net.seen,
        "history": history,
        "steps": trainer.state.global_step,
        "best": trainer.state.best_global_step,
    }
