"""Refuses what a Session cannot resume exactly, before the training begins, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lightning.pytorch import Callback

from perdure.errors import UserError

_CALLBACKS: Final = {
    "BaseFinetuning": "it changes the optimizer's groups while it trains: give all groups from the start, and freeze "
    "or unfreeze in on_train_epoch_start by the epoch's number",
    "StochasticWeightAveraging": "it keeps averages and schedulers in no state_dict: average in the module, by "
    "torch.optim.swa_utils.AveragedModel",
    "WeightAveraging": "it keeps its averages in no state_dict: average in the module, by "
    "torch.optim.swa_utils.AveragedModel",
    "ModelPruning": "what it prunes is in no state_dict: prune the module before the training",
    "BatchSizeFinder": "it trains and starts over: find the batch size in a separate script",
    "LearningRateFinder": "it trains and starts over: find the rate in a separate script",
    "OnExceptionCheckpoint": "the Session saves when the training is asked to leave: remove it",
}


_ATTACHED: Final = {"log", "log_dict"}
"""What Lightning itself sets in callbacks."""


def check_trainer(trainer: Any) -> None:
    """Raise UserError for a feature that the Session cannot resume exactly."""
    for what, remedy in _found(trainer):
        raise UserError(f"{what} is not possible with a Session: {remedy}")


def _found(trainer: Any) -> Iterator[tuple[str, str]]:
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__module__.startswith("lightning.") and kind.__name__ in _CALLBACKS:
                yield type(callback).__name__, _CALLBACKS[kind.__name__]
    if trainer.fast_dev_run:
        yield "fast_dev_run", "its few batches would count as the whole training: leave the strategy out for it"
    if trainer.overfit_batches:
        yield "overfit_batches", "give a data set of a few samples instead"
    if trainer.reload_dataloaders_every_n_epochs:
        yield "reload_dataloaders_every_n_epochs", "the order of samples changes with each epoch as it is: remove it"
    if trainer.limit_train_batches == 0:
        yield "limit_train_batches=0", "use trainer.validate()"


def forgetful(trainer: Any) -> list[str]:
    """The user's callbacks with attributes that no checkpoint holds."""
    kinds = [type(callback) for callback in trainer.callbacks if vars(callback).keys() - _ATTACHED]
    theirs = [kind for kind in kinds if not kind.__module__.startswith(("lightning.", "perdure."))]
    hooks = ("state_dict", "on_save_checkpoint")
    return [kind.__name__ for kind in theirs if all(getattr(kind, hook) is getattr(Callback, hook) for hook in hooks)]


def check_share(size: int, batch_size: int, world: int, *, drop_last: bool) -> None:
    """Raise UserError if a rank would get an empty batch, for which it would log NaN."""
    rest = 0 if drop_last else size % batch_size
    least = min(batch_size, rest) if rest else batch_size
    if least < world:
        raise UserError(
            f"loader: {world} ranks share a batch of {least} samples, and some get none: "
            + ("pass drop_last=True, or another batch_size" if rest and batch_size >= world else "a larger batch_size")
        )
