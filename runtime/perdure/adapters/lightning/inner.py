"""What Lightning has no public name for: its loops' progress, and its signal handlers. The metrics need some, too.

Read with Lightning 2.6. Each name that is missing in another release fails when this module is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from perdure.errors import UserError


class _EpochLoop(_TrainingEpochLoop):
    """Lightning's own, which goes on right where it is restored: where the next batch is asked for.

    Lightning's checkpoints are made by callbacks, within a batch, so its loop looks again for what that batch had due.
    Here all of it was done, the validation too.
    """

    def advance(self, data_fetcher: Any) -> None:
        if self.restarting:
            self._restarting = False
            if self.batch_progress.current.ready:  # else what is accumulated in the epoch would begin anew
                self.trainer._logger_connector._first_loop_iter = False  # it asks that
        super().advance(data_fetcher)


class _NoSignals(_SignalConnector):
    """The Session hears signals. Lightning's handlers would call collectives in them, and leave without a save."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False


def take_over(trainer: Any) -> None:
    """Has the trainer's loops go on where they are restored, and leaves signals to the Session."""
    loop = trainer.fit_loop.epoch_loop
    if type(loop) not in (_TrainingEpochLoop, _EpochLoop):
        raise UserError(f"the trainer's epoch loop is a {type(loop).__name__}: leave Lightning's own")
    loop.__class__ = _EpochLoop
    trainer._signal_connector = _NoSignals(trainer)


def restore_loops(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Puts the loops where they were: in the middle of an epoch, or between two."""
    fit = trainer.fit_loop
    fit.load_state_dict(dict(saved))
    progress = fit.epoch_progress.current
    _Loop.restarting.fset(fit, progress.started > progress.processed)
    fit.epoch_loop.val_loop._restarting = True  # or the sanity check would run, and reset its progress


def is_ahead(trainer: Any) -> bool:
    """Whether Lightning asks for a batch before all is done for the one before."""
    done = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(done.ready != done.completed)
