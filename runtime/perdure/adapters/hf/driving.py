"""One call of train(): the Session's epochs and steps along the Trainer's.

The Trainer's loop is a loop over epochs, and of each over updates. Before an update it fetches all batches of it, and
that is where the Session saves and leaves. What is done in between belongs to the update: the schedule, what callbacks
do, an evaluation, a checkpoint that the Trainer wants.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from torch.nn.parallel import DistributedDataParallel

from perdure.adapters.hf.batches import Batches
from perdure.adapters.hf.cues import Cues
from perdure.adapters.hf.limits import forgetful
from perdure.adapters.hf.trainer_progress import TrainerProgress
from perdure.console import say
from perdure.session.driven import (
    Env,
    drive,
    get_generators,
    keep,
    mean_in_rank_order,
    offers_hand_over,
    root,
    set_generators,
    sums_in_rank_order,
)
from perdure.session.functions import gather, progress, restore
from perdure.session.session import Session

TRAINER: Final = "the Hugging Face Trainer"


class Driving:
    """What drives the epochs of one training."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer = trainer
        self._session = session
        self._batches: Batches = trainer.get_train_dataloader()
        begun = time.monotonic()
        self._standing = TrainerProgress(trainer, partial(gather, session), lambda: time.monotonic() - begun)
        self._epochs: Iterator[int] = iter(())
        self._epoch = 0
        self._draws: dict[str, Any] | None = None
        """Where the generators stood when the first epoch was to begin, if an earlier run has trained those before."""
        self.resumed = False
        """Whether an earlier run has taken a step."""

    @property
    def root(self) -> str:
        """Where the checkpoints are."""
        return root(self._session)

    @property
    def seconds_before(self) -> float:
        """How long earlier runs have trained."""
        return self._standing.seconds_before

    # What the Trainer does, in the order in which it does it.

    def begin(self, model: Any, epochs: int) -> int:
        """Restores everything. The first epoch that is to be trained; if none is, that behind the last."""
        session, trainer = self._session, self._trainer
        drive(session, TRAINER)
        self._say_what_may_be_missing()
        if isinstance(model, DistributedDataParallel) and sums_in_rank_order(session):
            model.register_comm_hook(None, mean_in_rank_order)
        self._register()
        restore(session)
        self.resumed = trainer.state.global_step > 0
        self._standing.check_batch()
        trainer.compute_loss = partial(trainer.losses.of_script, trainer.compute_loss)
        trainer.callback_handler.callbacks.insert(0, Cues(self))
        self._epochs = session.epochs(epochs)
        first = next(self._epochs, None)
        if first is None:
            self._standing.check_goal()
            return epochs
        if first and not progress(session).epoch_resumed:
            self._draws = get_generators()
        self._epoch = first
        return first

    def train_begins(self) -> None:
        """The Trainer has set up everything, and has not called anybody."""
        self._standing.begin()

    def epoch_begins(self) -> None:
        """Other callbacks have drawn random numbers in a process that resumes, which nobody has in one that goes on."""
        if self._draws is not None:
            set_generators(self._draws)
            self._draws = None

    def run_epoch(self, train: Callable[..., None], about: Mapping[str, Any]) -> None:
        """What is left of an epoch: the Trainer counts from there, and `update_done` puts right what it tells."""
        left = self._batches.loader.remaining
        if left:
            updates = math.ceil(left / self._trainer.args.gradient_accumulation_steps)
            train(**{**about, "steps_in_epoch": left, "num_update_steps_per_epoch": updates})
        else:
            self._end_begun(about)
        self._batches.close()
        self._end_epoch(about["epoch"])

    def micro_batch_done(self) -> None:
        """One of the batches of an update is done, and not the last one."""
        self._batches.trained()

    def update_done(self) -> None:
        """An optimizer step is done; nothing is saved here."""
        self._batches.trained()
        self._trainer.state.epoch = self._epoch + self._batches.done / len(self._batches)
        self._session.step()

    def batches_done(self) -> None:
        """The batches of an epoch are done, or the rest of them is not wanted."""
        self._batches.end()

    def reported(self, grad_norm: Any, learning_rate: float | None) -> None:
        """What the Trainer would log of the last update."""
        self._standing.last = [None if grad_norm is None else float(grad_norm), learning_rate]

    # Parts of that.

    def _register(self) -> None:
        trainer, session = self._trainer, self._session
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate has wrapped it
        session.register(model=trainer.model, optimizer=optimizer, scheduler=trainer.lr_scheduler)
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            session.register(scaler=scaler)
        keep(session, "trainer", self._standing, self._standing.put_together)

    def _end_begun(self, about: Mapping[str, Any]) -> None:
        """An earlier run has trained on all batches of the epoch, and has done nothing that stands below them."""
        trainer = self._trainer
        for _ in self._batches:
            raise RuntimeError("an epoch without batches has handed out one")
        grad_norm, rate = self._standing.last
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        names = ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
        waiting = trainer._tr_loss
        trainer._maybe_log_save_evaluate(
            waiting, grad_norm, **{name: about[name] for name in names}, learning_rate=rate
        )

    def _end_epoch(self, epoch: int) -> None:
        """The epoch's body is done, and the next one begins where there is one."""
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
                f"callbacks that keep values of their own: {', '.join(names)}: they are in no checkpoint, so a resumed "
                f"run begins with new ones; let them be ExportableState (transformers.trainer_callback), too"
            )
        if offers_hand_over(self._session):
            say(
                f"the Trainer keeps the ranks it began with: give the pods the variable {Env.LIVE}=no, then no drain "
                f"waits for a hand-over that cannot be"
            )
