"""Refuses what a Session cannot resume exactly, before the training begins, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities.model_helpers import is_overridden

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


def live_obstacle(trainer: Any) -> str:
    """Why no new member can take a living one's place in this training; "" if one can."""
    if names := _forgetful(trainer):
        return (
            f"callbacks that save no values by themselves, and keep some: {', '.join(names)}: a new member's would "
            f"begin without them"
        )
    if any(isinstance(one, Timer) and one.time_remaining() is not None for one in trainer.callbacks):
        return "max_time: the others' clock is not a new member's, and Lightning compares it before the first batch"
    if trainer.check_val_every_n_epoch != 1:
        return "check_val_every_n_epoch: between two validations a new member does not know the results of the last one"
    if trainer._val_check_time_interval is not None:
        return "val_check_interval is a time: a new member's clock would start at zero, and it would validate alone"
    datamodule, module = trainer.datamodule, trainer.lightning_module
    if (datamodule is not None and is_overridden("prepare_data", datamodule)) or is_overridden("prepare_data", module):
        return (
            "prepare_data: a new member would prepare the data while the others read it, and wait for them: prepare it "
            "before the training"
        )
    return ""


def _forgetful(trainer: Any) -> list[str]:
    """The user's callbacks with attributes whose own class saves none. What Lightning's part of the class saves does
    not count: it knows nothing of the rest."""
    kinds = [type(callback) for callback in trainer.callbacks if vars(callback).keys() - _ATTACHED]
    theirs = filter(_is_users, kinds)
    return [kind.__name__ for kind in theirs if not any(_saves(part) for part in filter(_is_users, kind.__mro__))]


def _is_users(kind: type) -> bool:
    return not kind.__module__.startswith(("lightning.", "perdure.", "builtins"))


def _saves(kind: type) -> bool:
    return not vars(kind).keys().isdisjoint({"state_dict", "on_save_checkpoint"})


def check_share(size: int, batch_size: int, world: int, *, drop_last: bool) -> None:
    """Raise UserError if a rank would get an empty batch, for which it would log NaN."""
    rest = 0 if drop_last else size % batch_size
    least = min(batch_size, rest) if rest else batch_size
    if least < world:
        raise UserError(
            f"loader: {world} ranks share a batch of {least} samples, and some get none: "
            + ("pass drop_last=True, or another batch_size" if rest and batch_size >= world else "a larger batch_size")
        )
