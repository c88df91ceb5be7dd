"""The Trainer's own progress, in addition to model, optimizer and schedule: its TrainerState, the states of its
callbacks, and the losses not logged yet. It is saved and restored with the training.

Each rank has its own losses to log, and its callbacks may have states of their own, so a save first gathers those of
all ranks. A run with another number of ranks gets the callbacks of rank 0 on all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypedDict

from transformers.trainer_callback import ExportableState, TrainerControl

from perdure.errors import UserError

COUNTED: Final = ("epoch", "global_step", "num_input_tokens_seen", "total_flos", "best_metric", "best_global_step")
"""The fields of a TrainerState to save; the others follow from the arguments."""


class _Own(TypedDict):
    """What a rank does not share with the others."""

    waiting: list[float]
    """Its loss and its FLOPs."""
    callbacks: str


class TrainerProgress:
    """The state registered under the name "trainer"."""

    def __init__(
        self, trainer: Any, gather: Callable[[Callable[[], Any]], list[Any]], seconds: Callable[[], float]
    ) -> None:
        """`gather` returns what a function gives on each rank. `seconds` returns the seconds since this call of train()
        began."""
        self._trainer = trainer
        self._gather = gather
        self._seconds = seconds
        self.seconds_before = 0.0
        """Seconds that earlier runs have trained."""
        self.last: list[float | None] = [None, None]
        """Gradient norm and learning rate of the last update, as logged."""
        self._of_all: list[_Own] | None = None
        self._restored: Mapping[str, Any] | None = None
        self._history: tuple[int, str] = (0, "[]")

    def put_together(self) -> None:
        """Gather per-rank state before a save. Collective."""
        self._of_all = self._gather(self._own)

    def _own(self) -> _Own:
        trainer = self._trainer
        loss = getattr(trainer, "_tr_loss", None)  # there is none before training begins
        waiting = [0.0 if loss is None else loss.item(), float(trainer.current_flos)]
        return {"waiting": waiting, "callbacks": json.dumps(self._callbacks(), default=_plain)}

    def state_dict(self) -> dict[str, Any]:
        """The present state, with the losses as last gathered."""
        trainer, of_all = self._trainer, self._of_all or [self._own()]
        callbacks = [own["callbacks"] for own in of_all]
        return {
            "state": json.dumps({name: getattr(trainer.state, name) for name in COUNTED}, default=_plain),
            "log_history": self._log_history(),
            "callbacks": callbacks[0],
            "callbacks_of_ranks": callbacks if len(set(callbacks)) > 1 else [],
            "stopping": bool(trainer.control.should_training_stop),
            "waiting": [own["waiting"] for own in of_all],
            "logged": [getattr(trainer, "_total_loss_scalar", 0.0), getattr(trainer, "_globalstep_last_logged", 0)],
            "last": self.last,
            "max_steps": int(trainer.state.max_steps),
            "batch_size": trainer.global_batch_size,
            "seconds": self.seconds_before + self._seconds(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restore the state. Without a finished step nothing is restored, so that the Trainer repeats what it does
        before the first step."""
        counted = json.loads(saved["state"])
        if not counted["global_step"]:
            return
        trainer = self._trainer
        for name, value in counted.items():
            setattr(trainer.state, name, value)
        trainer.state.log_history = json.loads(saved["log_history"])
        for callback, attributes in self._exportable(json.loads(self._own_callbacks(saved))):
            for name, value in attributes.items():
                setattr(callback, name, value)
        self.seconds_before, self.last = saved["seconds"], saved["last"]
        self._restored = saved

    def check_batch(self) -> None:
        """Raise UserError if the batch size has changed and the script did not set it."""
        before = self._restored["batch_size"] if self._restored else self._trainer.global_batch_size
        if self._trainer.global_batch_size != before and not self._trainer.has_own_batch_size:
            each, world = self._trainer.args.train_batch_size, self._trainer.args.world_size
            raise UserError(
                f"the training has batches of {before} samples over all ranks, and {world} ranks with "
                f"per_device_train_batch_size={each} would make that {each * world}: give "
                f"Trainer(batch_size={before}), which is the same on any number of ranks"
            )

    def check_goal(self) -> None:
        """Raise UserError if `max_steps` is raised within an epoch that has ended already."""
        before, state = self._restored["max_steps"] if self._restored else 0, self._trainer.state
        if 0 < before <= state.global_step < state.max_steps:
            raise UserError(
                f"max_steps is {state.max_steps}, and an earlier run has ended with {before} in the same epoch, which "
                f"cannot be continued: raise it beyond that epoch"
            )

    def begin(self) -> None:
        """Put the restored sums back, which the Trainer has just set to zero."""
        saved, trainer = self._restored, self._trainer
        if saved is None:
            return
        loss, flos = self._own_part(saved["waiting"])
        trainer._tr_loss += loss
        trainer.current_flos = flos
        trainer._total_loss_scalar, trainer._globalstep_last_logged = saved["logged"]
        trainer.control.should_training_stop = saved["stopping"]

    def _own_part(self, waiting: list[list[float]]) -> tuple[float, float]:
        """This rank's loss and FLOPs. After a change of ranks: the mean loss, and all FLOPs on rank 0."""
        rank, world = self._trainer.args.process_index, self._trainer.args.world_size
        if len(waiting) == world:
            return waiting[rank][0], waiting[rank][1]
        losses, flos = zip(*waiting, strict=True)
        return sum(losses) / len(losses), sum(flos) if rank == 0 else 0.0

    def _own_callbacks(self, saved: Mapping[str, Any]) -> str:
        """The states of this rank's callbacks."""
        of_ranks: list[str] = saved.get("callbacks_of_ranks", [])  # older commits have none
        rank, world = self._trainer.args.process_index, self._trainer.args.world_size
        return of_ranks[rank] if len(of_ranks) == world else str(saved["callbacks"])

    def _log_history(self) -> str:
        """The log as JSON, cached until something is logged, because it keeps growing."""
        history = self._trainer.state.log_history
        if self._history[0] != len(history):
            self._history = len(history), json.dumps(history, default=_plain)
        return self._history[1]

    def _stateful(self) -> Iterator[Any]:
        """The callbacks with a state to save."""
        callbacks = self._trainer.callback_handler.callbacks
        return (one for one in callbacks if isinstance(one, ExportableState) and not isinstance(one, TrainerControl))

    def _callbacks(self) -> list[tuple[str, dict[str, Any]]]:
        return [(type(one).__name__, one.state()["attributes"]) for one in self._stateful()]

    def _exportable(self, saved: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Each callback with its saved attributes, matched by class and order."""
        left = list(saved)
        for callback in self._stateful():
            found = next((one for one in left if one[0] == type(callback).__name__), None)
            if found:
                left.remove(found)
                yield callback, found[1]


def _plain(value: Any) -> Any:
    """A plain value for what metrics functions return: numbers of NumPy and torch."""
    return value.item() if hasattr(value, "item") else str(value)
