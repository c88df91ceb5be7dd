"""Connects Lightning's loop, which trains, with the Session's epochs, which count and save.

When Lightning fetches a batch, the previous one is completed: its hooks, the schedulers, a validation, the callbacks'
checkpoints. The Session saves and leaves there. The driver checks that, because a release of Lightning that fetches
ahead would break it. An epoch of the Session ends when Lightning begins the next one, or ends the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from lightning.pytorch import Callback

from perdure.adapters.lightning.batches import LightningBatches
from perdure.adapters.lightning.checks import check_trainer, live_obstacle
from perdure.adapters.lightning.inner import is_ahead, take_over
from perdure.adapters.lightning.state import TrainerState
from perdure.errors import UserError
from perdure.session.driven import keep, own_collectives
from perdure.session.functions import progress, restore
from perdure.session.session import Session

ONE_RANK: Final = "Lightning changes its ranks live among two and more"


class SessionDriver(Callback):
    """Drives one trainer with one session. It is a callback, to learn when a step and the training are done."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._trainer: Any = None
        self._state: TrainerState | None = None
        self._batches: LightningBatches | None = None
        self._pass: Iterator[Any] | None = None
        self._epochs: Iterator[int] | None = None
        self._steps = 0
        self._over = False
        """Whether Lightning has ended the training."""
        self._sanity_check = ExitStack()

    def begin(self, trainer: Any) -> None:
        """Restore the training; the trainer is set up. UserError for what cannot be resumed exactly."""
        if self._trainer is not None:
            raise UserError(
                "fit() is called twice, and a Session drives one training: run the second in a separate script"
            )
        check_trainer(trainer)
        self._trainer = trainer
        take_over(trainer)
        self._register(trainer)
        restore(self._session)
        self._steps = trainer.global_step

    def _register(self, trainer: Any) -> None:
        session, self._state = self._session, TrainerState(trainer, self._session)
        schedulers = [found.scheduler for found in trainer.lr_scheduler_configs]
        session.register(model=trainer.lightning_module)
        session.register(**_numbered("optimizer", trainer.optimizers), **_numbered("scheduler", schedulers))
        keep(session, "trainer", self._state, self._state.put_together)

    # Batches and epochs.

    def obstacle(self) -> str:
        """Why the ranks cannot change while Lightning trains; "" if they can."""
        if self._session.world == 1:
            return ONE_RANK
        return "" if self._trainer is None else live_obstacle(self._trainer)

    def take(self, batches: LightningBatches) -> None:
        """Set the training batches. UserError for a second loader."""
        if self._batches not in (None, batches):
            raise UserError(
                "there are several training loaders: one position is saved, so give one strategy.loader(dataset, …) "
                "of a data set whose items hold what each of them gives"
            )
        self._batches = batches

    def begin_epoch(self) -> None:
        """Lightning begins an epoch."""
        if self._state:
            self._state.begin_epoch()
        self._finish_epoch()
        while self._next_epoch() and not self._left:
            self._finish_epoch()  # an earlier run has trained all of it, and was killed before it ended it

    def next_batch(self, batches: LightningBatches) -> Any:
        """The next batch of the epoch. The run may save and leave here."""
        if is_ahead(self._trainer):
            raise UserError(
                "Lightning fetches a batch before the previous one is done, so no checkpoint could hold its position: "
                "write training_step(batch, batch_idx), without dataloader_iter"
            )
        if self._pass is None:
            if self._state:
                self._state.begin_batches()
            self._pass = iter(batches.loader)
        return next(self._pass)

    @property
    def _left(self) -> int:
        return self._batches.loader.remaining if self._batches else 0

    def _finish_epoch(self) -> None:
        """End the Session's pass, at its end or where Lightning has left it."""
        walk, self._pass = self._pass, None
        if walk is None:
            return
        if self._left:
            walk.close()  # type: ignore[attr-defined]
        else:
            next(walk, None)

    def _next_epoch(self) -> bool:
        if self._epochs is None:
            limits = self._trainer.fit_loop
            epochs, steps = (None if limit == -1 else limit for limit in (limits.max_epochs, limits.max_steps))
            self._epochs = self._session.epochs(epochs, max_steps=steps, stop=[self.trainer_has_stopped])
        return next(self._epochs, None) is not None

    def trainer_has_stopped(self) -> bool:
        """Whether Lightning has ended the training before its limits. Its name is recorded as the reason."""
        limits = self._trainer.fit_loop
        epochs = progress(self._session).finished_epochs + 1
        reached = self._trainer.global_step == limits.max_steps or epochs == limits.max_epochs
        return self._over and not reached

    # Called by Lightning.

    def on_sanity_check_start(self, *_: Any) -> None:
        """Only the first run makes the sanity check, so a newcomer need not make its collectives."""
        self._sanity_check.enter_context(own_collectives(self._session))

    def on_sanity_check_end(self, *_: Any) -> None:
        """See `on_sanity_check_start`."""
        self._sanity_check.close()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A batch is done. Lightning's step count shows whether a step is, too."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._session.step()

    def on_fit_end(self, trainer: Any, _: Any) -> None:
        """Commit the end of the training, which this run or an earlier one has reached."""
        self._over = True
        self._finish_epoch()
        if self._next_epoch():
            raise UserError(
                f"the trainer has ended after {trainer.current_epoch} epochs, {trainer.global_step} steps, and the "
                f"Session has not: the checkpoint belongs to a different training: use another root"
            )


def _numbered(name: str, things: Any) -> dict[str, Any]:
    """`things` by name, numbered if there are several."""
    return {name if len(things) == 1 else f"{name}{number}": thing for number, thing in enumerate(things)}
