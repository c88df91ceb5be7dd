"""Weights each rank's loss, so that the training does not depend on the number of ranks.

Gradients are averaged over the ranks. The Trainer passes a model the number of labels in the whole update, over all
ranks, and multiplies the loss by the number of ranks. That is right if the model divides its loss by that number of
labels. Some models, such as BERT, take the mean over the rank's own batch instead. Their loss would be too large by the
number of ranks, and a rank with few samples would count as much as one with many. The graph of the first loss shows
which kind a model is. In an evaluation the factor would double the loss on two ranks, and might change which model is
best.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perdure.adapters.hf.batches import TrainerBatches
from perdure.errors import UserError


class Losses:
    """The losses of one rank."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._divided: bool | None = None
        """Whether the model divides by the labels of the whole update; None before the first loss."""
        self._weighted = False
        """Whether the present loss is weighted already."""

    def of_trainer(self, compute: Callable[..., Any], model: Any, inputs: Any, outputs: bool, items: Any) -> Any:
        """The loss as the Trainer computes it, weighted."""
        ranks = self._trainer.accelerator.num_processes
        multiplied = ranks > 1 and self._is_multiplied(items)
        if multiplied and self._divided is None:
            items = items.float().requires_grad_()
            with torch.enable_grad():  # in an evaluation, too
                result = compute(model, inputs, outputs, items)
            self._divided = depends(_loss(result), items)
        else:
            result = compute(model, inputs, outputs, items)
        mean = not (multiplied and self._divided)
        factor = 1 / ranks if multiplied and mean else 1.0
        if not self._trains(model):
            return _times(result, factor)
        self._weighted = True
        weight = self._batches.weight
        return _times(result, factor * weight if mean or not weight else factor)

    def of_script(self, compute: Callable[..., Any], model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """The weighted loss of the script's compute_loss. UserError if it is unknown which mean the loss is."""
        self._weighted = False
        result = compute(model, inputs, *args, **named)
        if self._weighted or not self._trains(model):
            return result
        scaled = self._trainer.loss_is_scaled_for_ga
        if scaled is None and not self._batches.even(self._trainer.args.world_size):
            raise UserError(
                f"{type(self._trainer).__name__}.compute_loss: ranks have different numbers of samples in some "
                f"batches, and it is unknown what the loss is the mean of: set loss_is_scaled_for_ga = False in "
                f"the class if it is the mean over a batch; or choose a batch_size that the number of ranks divides, "
                f"with dataloader_drop_last=True"
            )
        return _times(result, self._batches.weight if not scaled or not self._batches.weight else 1.0)

    @property
    def _batches(self) -> TrainerBatches:
        batches: TrainerBatches = self._trainer.get_train_dataloader()
        return batches

    def _trains(self, model: Any) -> bool:
        return bool(model.training and self._trainer.is_in_train)

    def _is_multiplied(self, items: Any) -> bool:
        """Whether the Trainer multiplies the loss by the number of ranks."""
        trainer = self._trainer
        takes_items = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        return bool(trainer.args.average_tokens_across_devices and takes_items and items is not None)


def depends(loss: Tensor, value: Tensor) -> bool:
    """Whether `loss` was computed from `value`, a leaf of the graph."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", None) is value:
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


def _loss(result: Any) -> Tensor:
    loss: Tensor = result[0] if isinstance(result, tuple) else result
    return loss


def _times(result: Any, factor: float) -> Any:
    if factor == 1.0:
        return result
    loss = _loss(result)
    counted = loss * factor if factor else torch.nan_to_num(loss) * 0.0
    return (counted, *result[1:]) if isinstance(result, tuple) else counted
