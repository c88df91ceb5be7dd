"""Where the Trainer itself stands, beside model, optimizer and schedule: its TrainerState, what its callbacks count,
and the losses that wait to be logged. It is saved and restored with the training.

A loss waits on each rank for itself, so what all ranks have is put together where a save reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from transformers.trainer_callback import ExportableState, TrainerControl

from perdure.errors import UserError

COUNTED: Final = ("epoch", "global_step", "num_input_tokens_seen", "total_flos", "best_metric", "best_global_step")
"""What of a TrainerState belongs to the training; the rest follows from the arguments."""


class TrainerProgress:
    """What is saved under the name "trainer"."""

    def __init__(self, trainer: Any, gather: Callable[[Any], list[Any]], seconds: Callable[[], float]) -> None:
        """`seconds`: how long this call of train() has been on."""
        self._trainer = trainer
        self._gather = gather
        self._seconds = seconds
        self.seconds_before = 0.0
        """How long the earlier runs have trained."""
        self.last: list[float | None] = [None, None]
        """The norm of the gradients and the learning rate of the last update, as they are logged."""
        self._of_all: list[list[float]] | None = None
        self._restored: Mapping[str, Any] | None = None
        self._history: tuple[int, str] = (0, "[]")

    def put_together(self) -> None:
        """All ranks are about to save: what waits on each. Collective."""
        self._of_all = self._gather(self._own())

    def _own(self) -> list[float]:
        trainer = self._trainer
        loss = getattr(trainer, "_tr_loss", None)  # there is none before training begins
        return [0.0 if loss is None else loss.item(), float(trainer.current_flos)]

    def state_dict(self) -> dict[str, Any]:
        """As it is now; the losses as they were when they were put together."""
        trainer = self._trainer
        return {
            "state": json.dumps({name: getattr(trainer.state, name) for name in COUNTED}, default=_plain),
            "log_history": self._log_history(),
            "callbacks": json.dumps(self._callbacks(), default=_plain),
            "stopping": bool(trainer.control.should_training_stop),
            "waiting": self._of_all or [self._own()],
            "logged": [getattr(trainer, "_total_loss_scalar", 0.0), getattr(trainer, "_globalstep_last_logged", 0)],
            "last": self.last,
            "max_steps": int(trainer.state.max_steps),
            "batch_size": trainer.global_batch_size,
            "seconds": self.seconds_before + self._seconds(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Goes on from there. Of a training that has not taken a step all is as it is without a checkpoint: what the
        Trainer does before the first one, it does again."""
        counted = json.loads(saved["state"])
        if not counted["global_step"]:
            return
        trainer = self._trainer
        for name, value in counted.items():
            setattr(trainer.state, name, value)
        trainer.state.log_history = json.loads(saved["log_history"])
        for callback, attributes in self._exportable(json.loads(saved["callbacks"])):
            for name, value in attributes.items():
                setattr(callback, name, value)
        self.seconds_before, self.last = saved["seconds"], saved["last"]
        self._restored = saved

    def check_batch(self) -> None:
        """UserError if batches are of another size than they were, and nobody has said so."""
        before = self._restored["batch_size"] if self._restored else self._trainer.global_batch_size
        if self._trainer.global_batch_size != before and not self._trainer.has_own_batch_size:
            each, world = self._trainer.args.train_batch_size, self._trainer.args.world_size
            raise UserError(
                f"the training was begun with batches of {before} samples over all ranks, and {world} ranks with "
                f"per_device_train_batch_size={each} make that {each * world}: give Trainer(batch_size={before}), "
                f"which stays the same whatever the number of ranks"
            )

    def check_goal(self) -> None:
        """UserError if `max_steps` is raised where nothing is left that could be trained."""
        before, state = self._restored["max_steps"] if self._restored else 0, self._trainer.state
        if 0 < before <= state.global_step < state.max_steps:
            raise UserError(
                f"max_steps is {state.max_steps}, and an earlier run has ended with {before} in the same epoch, whose "
                f"rest is not taken up again: raise it into another epoch"
            )

    def begin(self) -> None:
        """The Trainer has set its sums to nothing, and is about to train: what was restored of them is put back."""
        saved, trainer = self._restored, self._trainer
        if saved is None:
            return
        loss, flos = self._own_part(saved["waiting"])
        trainer._tr_loss += loss
        trainer.current_flos = flos
        trainer._total_loss_scalar, trainer._globalstep_last_logged = saved["logged"]
        trainer.control.should_training_stop = saved["stopping"]

    def _own_part(self, waiting: list[list[float]]) -> tuple[float, float]:
        """Of another number of ranks: the mean of the losses, and all operations on one rank."""
        rank, world = self._trainer.args.process_index, self._trainer.args.world_size
        if len(waiting) == world:
            return waiting[rank][0], waiting[rank][1]
        losses, flos = zip(*waiting, strict=True)
        return sum(losses) / len(losses), sum(flos) if rank == 0 else 0.0

    def _log_history(self) -> str:
        """As JSON, made anew when something is logged: it grows all the time."""
        history = self._trainer.state.log_history
        if self._history[0] != len(history):
            self._history = len(history), json.dumps(history, default=_plain)
        return self._history[1]

    def _stateful(self) -> Iterator[Any]:
        """The callbacks that say what they keep."""
        callbacks = self._trainer.callback_handler.callbacks
        return (one for one in callbacks if isinstance(one, ExportableState) and not isinstance(one, TrainerControl))

    def _callbacks(self) -> list[tuple[str, dict[str, Any]]]:
        return [(type(one).__name__, one.state()["attributes"]) for one in self._stateful()]

    def _exportable(self, saved: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Each callback with what it has kept, by its class and its place among those of it."""
        left = list(saved)
        for callback in self._stateful():
            found = next((one for one in left if one[0] == type(callback).__name__), None)
            if found:
                left.remove(found)
                yield callback, found[1]


def _plain(value: Any) -> Any:
    """What metrics functions give: numbers of NumPy and torch."""
    return value.item() if hasattr(value, "item") else str(value)
