"""Private parts of Lightning that the adapter needs: its loops' progress and its signal handlers.

Written for Lightning 2.6. If another release lacks a name, importing this module fails. metrics.py uses more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from perdure.errors import UserError

_DECISIVE: Final = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""The values by which a ModelCheckpoint decides whether to save, in no state_dict. All ranks have to decide alike."""


class _EpochLoop(_TrainingEpochLoop):
    """Lightning's epoch loop, but a resume continues with the next batch.

    Lightning's own checkpoints are made by callbacks, within a batch, so its loop repeats the end of that batch after a
    resume. A Session saves between batches, when all of it is done, including a validation.
    """

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the Session handles signals. A newcomer has no other ranks here yet."""

    def advance(self, data_fetcher: Any) -> None:
        if self.restarting:
            self._restarting = False
            self.trainer.fit_loop._restarting = False  # else schedules that wait for a plateau miss this epoch
            if self.batch_progress.current.ready:  # else the epoch's accumulated metrics would be reset
                self.trainer._logger_connector._first_loop_iter = False  # which resets them
        super().advance(data_fetcher)


class _NoSignals(_SignalConnector):
    """Leaves signals to the Session. Lightning's handlers would call collectives, and exit without a save."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False


def take_over(trainer: Any) -> None:
    """Replace the trainer's epoch loop and signal handlers. UserError if the epoch loop is not Lightning's."""
    loop = trainer.fit_loop.epoch_loop
    if type(loop) not in (_TrainingEpochLoop, _EpochLoop):
        raise UserError(f"the trainer's epoch loop is a {type(loop).__name__}: keep Lightning's own")
    loop.__class__ = _EpochLoop
    trainer._signal_connector = _NoSignals(trainer)


def restore_loops(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Restore the loops' progress, in an epoch or between two."""
    fit = trainer.fit_loop
    fit.load_state_dict(dict(saved))
    progress = fit.epoch_progress.current
    _Loop.restarting.fset(fit, progress.started > progress.processed)
    fit.epoch_loop.val_loop._restarting = True  # or the sanity check would run, and reset its progress


def read_checkpoints(trainer: Any) -> dict[str, dict[str, Any]]:
    """The values by which each ModelCheckpoint decides, beside its state_dict."""
    return {found.state_key: {name: getattr(found, name) for name in _DECISIVE} for found in _checkpoints(trainer)}


def restore_checkpoints(trainer: Any, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore these values. Callbacks without saved ones stay as they are."""
    for found in _checkpoints(trainer):
        for name, value in saved.get(found.state_key, {}).items():
            setattr(found, name, value)


def _checkpoints(trainer: Any) -> list[Any]:
    return [found for found in trainer.callbacks if isinstance(found, ModelCheckpoint)]


def has_just_begun(trainer: Any) -> bool:
    """Whether an epoch has begun, with its hooks, and has no batch yet. A resume does not call these hooks again."""
    fit = trainer.fit_loop
    progress = fit.epoch_progress.current
    return bool(progress.started > progress.processed and not fit.epoch_loop.batch_progress.current.ready)


def is_ahead(trainer: Any) -> bool:
    """Whether Lightning fetches a batch before the previous one is completed."""
    done = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(done.ready != done.completed)
