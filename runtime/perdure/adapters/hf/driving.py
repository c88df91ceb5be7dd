"""Runs the Session's epochs and steps alongside the Trainer's, for one call of train().

The Trainer loops over epochs, and in each over updates. Before an update it fetches all of its batches; there the
Session saves and leaves. Everything until the next fetch belongs to the update: the schedule, callbacks, an evaluation
or a checkpoint of the Trainer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from perdure.adapters.hf.batches import TrainerBatches
from perdure.adapters.hf.cues import Cues
from perdure.adapters.hf.limits import forgetful, keeping_more
from perdure.adapters.hf.trainer_progress import TrainerProgress
from perdure.session.driven import (
    Framework,
    drive,
    get_generators,
    joins,
    keep,
    of_all_ranks,
    own_collectives,
    root,
    say,
    set_generators,
)
from perdure.session.functions import progress, restore
from perdure.session.session import Session

TRAINER: Final = "the Hugging Face Trainer"
KEEPING: Final = "callbacks that keep values"


class Driving:
    """Drives the epochs of one training."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer = trainer
        self._session = session
        self._batches: TrainerBatches = trainer.get_train_dataloader()
        begun = time.monotonic()
        self._progress = TrainerProgress(
            trainer, partial(of_all_ranks, session, "trainer"), lambda: time.monotonic() - begun
        )
        self._epochs: Iterator[int] = iter(())
        self._epoch = 0
        self._draws: dict[str, Any] | None = None
        """The generators' states at the start of the first epoch, if earlier runs trained the epochs before it."""
        self.resumed = False
        """Whether an earlier run has taken a step."""

    @property
    def root(self) -> str:
        """The root of the checkpoints."""
        return root(self._session)

    @property
    def seconds_before(self) -> float:
        """How long earlier runs have trained."""
        return self._progress.seconds_before

    # Called by the Trainer, in this order.

    def begin(self, epochs: int) -> int:
        """Restore the training, and return the first epoch to train; `epochs` if none is left."""
        session, trainer = self._session, self._trainer
        drive(session, Framework(TRAINER, self._obstacle))
        self._say_what_may_be_missing()
        self._register()
        self._restore()
        self.resumed = trainer.state.global_step > 0
        self._progress.check_batch()
        trainer.compute_loss = partial(trainer.losses.of_script, trainer.compute_loss)
        trainer.callback_handler.callbacks.insert(0, Cues(self))
        self._epochs = session.epochs(epochs)
        first = next(self._epochs, None)
        if first is None:
            self._progress.check_goal()
            return epochs
        if first and not progress(session).epoch_resumed:
            self._draws = get_generators()
        self._epoch = first
        return first

    def train_begins(self) -> None:
        """The Trainer is set up. No other callback has run yet."""
        self._progress.begin()

    def epoch_begins(self) -> None:
        """Put the generators back: callbacks of a resuming process may have drawn numbers since."""
        if self._draws is not None:
            set_generators(self._draws)
            self._draws = None

    def run_epoch(self, train: Callable[..., None], about: Mapping[str, Any]) -> None:
        """Train the rest of an epoch. The Trainer counts from there; `update_done` corrects its epoch number."""
        left = self._batches.loader.remaining
        if left:
            updates = math.ceil(left / self._trainer.args.gradient_accumulation_steps)
            train(**{**about, "steps_in_epoch": left, "num_update_steps_per_epoch": updates})
        else:
            self._end_begun(about)
        self._batches.close()
        self._end_epoch(about["epoch"])

    def micro_batch_done(self) -> None:
        """A batch of an update is done, but not its last one."""
        self._batches.trained()

    def update_done(self) -> None:
        """An optimizer step is done; nothing is saved here."""
        self._batches.trained()
        self._trainer.state.epoch = self._epoch + self._batches.done / len(self._batches)
        self._session.step()

    def batches_done(self) -> None:
        """The batches of an epoch are done, or the Trainer skips the rest."""
        self._batches.end()

    def reported(self, grad_norm: Any, learning_rate: float | None) -> None:
        """Keep what the Trainer would log of the last update."""
        self._progress.last = [None if grad_norm is None else float(grad_norm), learning_rate]

    def evaluation_before_training(self) -> AbstractContextManager[None]:
        """Around the evaluation before the first step, which a process that joins a living run skips."""
        return own_collectives(self._session)

    # Helpers.

    def _obstacle(self) -> str:
        """Why the ranks cannot change while the Trainer trains; "" if they can."""
        if self._session.world == 1:
            return f"{TRAINER} on one rank has a process group of accelerate's own"
        if names := keeping_more(self._trainer):
            return f"{KEEPING}: {', '.join(names)}: a new member's would begin without them"
        return ""

    def _restore(self) -> None:
        begun, live = time.monotonic(), joins(self._session)
        restore(self._session)
        if live:  # meanwhile the others have trained
            self._progress.seconds_before -= time.monotonic() - begun

    def _register(self) -> None:
        trainer, session = self._trainer, self._session
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate has wrapped it
        session.register(model=trainer.model, optimizer=optimizer, scheduler=trainer.lr_scheduler)
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            session.register(scaler=scaler)
        keep(session, "trainer", self._progress, self._progress.put_together)

    def _end_begun(self, about: Mapping[str, Any]) -> None:
        """Run the end of an epoch whose batches an earlier run has trained."""
        trainer = self._trainer
        for _ in self._batches:
            raise RuntimeError("an epoch without batches has handed out one")
        grad_norm, rate = self._progress.last
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        names = ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
        waiting = trainer._tr_loss
        trainer._maybe_log_save_evaluate(
            waiting, grad_norm, **{name: about[name] for name in names}, learning_rate=rate
        )

    def _end_epoch(self, epoch: int) -> None:
        """Finish the epoch, and begin the next one if there is one."""
        trainer, session = self._trainer, self._session
        if trainer.control.should_training_stop and epoch + 1 < trainer.state.num_train_epochs:
            at_the_end = trainer.state.global_step >= trainer.state.max_steps
            session.stop("max_steps" if at_the_end else "should_training_stop")
        following = next(self._epochs, None)
        if following is None:
            trainer.control.should_training_stop = True
        else:
            self._epoch = following

    def _say_what_may_be_missing(self) -> None:
        if self._session.rank:
            return
        if names := forgetful(self._trainer):
            say(
                f"{KEEPING}: {', '.join(names)}: no checkpoint holds these values, so a "
                f"resumed run starts without them; derive the callbacks from ExportableState, too "
                f"(transformers.trainer_callback)"
            )
