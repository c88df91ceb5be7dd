"""The Trainer's methods that a Session overrides.

The Trainer calls them. An epoch of the Session is an epoch of the Trainer. It ends after the Trainer has evaluated and
saved; a run that is asked to leave ends there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from perdure.adapters.hf.batches import Collate, Placeholder, TrainerBatches
from perdure.adapters.hf.driving import Driving
from perdure.adapters.hf.limits import check, check_release
from perdure.adapters.hf.losses import Losses
from perdure.adapters.hf.wrapping import let_session_wrap
from perdure.errors import UserError
from perdure.session.driven import say
from perdure.session.loading import load
from perdure.session.session import Session

BEST = "best"
"""The pin of the best model's checkpoint."""


class WithSession:
    """A mixin for transformers.Trainer and its subclasses; it must be the first base class."""

    session: Session
    _driving: Driving | None = None
    _batches: TrainerBatches | None = None

    def __init__(self, *args: Any, session: Session, batch_size: int | None = None, **named: Any) -> None:
        """`batch_size` is the number of samples of a batch over all ranks, on any number of ranks. An update takes
        `gradient_accumulation_steps` batches. The default is `per_device_train_batch_size` times the present number of
        ranks. All other arguments are the Trainer's.

        Raises UserError if the installed release of transformers is not supported.
        """
        check_release()
        super().__init__(*args, **named)
        self.session = session
        self._batch_size = batch_size
        self.losses = Losses(self)

    @property
    def global_batch_size(self) -> int:
        """The number of samples of a batch over all ranks."""
        trainer: Any = self
        return self._batch_size or int(trainer.args.train_batch_size) * self.session.world

    @property
    def has_own_batch_size(self) -> bool:
        """Whether the script has set `batch_size`, so that it does not follow the number of ranks."""
        return self._batch_size is not None

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **named: Any) -> Any:
        """Train from the newest commit on. Does not return if the run is asked to leave.

        If an earlier run has completed the training, returns its result. Raises UserError for what the session cannot
        resume exactly (perdure.adapters.hf.limits).
        """
        check(self, self.session, resume_from_checkpoint, trial)
        if self._driving:
            raise UserError(
                "train() is called twice, and a session drives one training: run the second in a separate script"
            )
        self._driving = Driving(self, self.session)
        return super().train(None, None, *args, **named)  # type: ignore[misc]

    # Called by the Trainer.

    def get_train_dataloader(self) -> TrainerBatches:
        """The session's share of the training data instead of accelerate's."""
        if self._batches is None:
            self._batches = _batches(self, self.session)
        return self._batches

    def get_total_train_batch_size(self, args: Any) -> int:
        """The number of samples of an update over all ranks."""
        return self.global_batch_size * int(args.gradient_accumulation_steps)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:
        """Create everything to restore now, and restore it; the Trainer would create it right after this call."""
        trainer: Any = super()
        trainer._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, None, trial)
        let_session_wrap(self, self.session)
        self._model, _ = trainer._prepare_for_training(max_steps, self.get_train_dataloader(), None)
        return self._at_work.begin(num_train_epochs), 0

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> tuple[Any, Any]:
        """Return what `_init_training_state` has prepared."""
        return self._model, train_dataloader

    def _run_epoch(self, **about: Any) -> None:
        """Train the rest of the present epoch."""
        self._at_work.run_epoch(super()._run_epoch, about)  # type: ignore[misc]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """The number of labels over all ranks, not counting placeholders."""
        counted = [_uncounted(batch) if isinstance(batch, Placeholder) else batch for batch in batch_samples]
        return super()._get_num_items_in_batch(counted, device)  # type: ignore[misc]

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The Trainer's loss, weighted so that it does not depend on the number of ranks."""
        compute = super().compute_loss  # type: ignore[misc]
        return self.losses.of_trainer(compute, model, inputs, return_outputs, num_items_in_batch)

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
        """Skip the evaluation before the first step on a resume."""
        if skip_scheduler and self._at_work.resumed:
            return {}
        with self._at_work.evaluation_before_training() if skip_scheduler else nullcontext():
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)  # type: ignore[misc]

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: Any,
        ignore_keys_for_eval: Any,
        start_time: Any,
        learning_rate: float | None = None,
    ) -> None:
        """Keep the logged values of the update, because a later run may log them."""
        self._at_work.reported(grad_norm, learning_rate)
        super()._maybe_log_save_evaluate(  # type: ignore[misc]
            tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate
        )

    def _determine_best_metric(self, metrics: Any, trial: Any) -> bool:
        """Pin a checkpoint of the best model so far."""
        trainer: Any = self
        best: bool = super()._determine_best_metric(metrics, trial)  # type: ignore[misc]
        if best and trainer.args.load_best_model_at_end:
            self.session.save(pin=BEST)
        return best

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Request a checkpoint of the session instead; it is made when the next update begins."""
        trainer: Any = self
        trainer.store_flos()
        self.session.save()

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        """Report the figures of all runs together."""
        trainer: Any = self
        trainer._initial_global_step = 0
        if trainer.args.load_best_model_at_end and trainer.state.best_global_step:
            self._load_best()
        return super()._finalize_training(  # type: ignore[misc]
            trial, num_train_samples, start_time - self._at_work.seconds_before
        )

    def _load_best(self) -> None:
        trainer: Any = self
        wanted = trainer.state.best_global_step
        try:
            found = load(self._at_work.root, ["model"], pin=BEST)
        except UserError as error:
            self._say(f"the best model, of step {wanted}, is not in the store, so the last one stays: {error}")
            return
        trainer.model.load_state_dict(found["model"])
        if found.commit.step != wanted:
            self._say(
                f"the best model, of step {wanted}, could not be stored: loaded the best that is, of step "
                f"{found.commit.step}"
            )

    def _say(self, words: str) -> None:
        if self.session.rank == 0:
            say(words)

    @property
    def _at_work(self) -> Driving:
        if self._driving is None:
            raise RuntimeError("called by train() alone")
        return self._driving


def _batches(trainer: Any, session: Session) -> TrainerBatches:
    args, dataset, collate = trainer.args, trainer.train_dataset, trainer.data_collator
    if hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns"):  # one of the package `datasets`
        dataset = trainer._remove_unused_columns(dataset, description="Training")
    else:
        collate = trainer._get_collator_with_removed_columns(collate, description="Training")
    workers = {
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
    }
    loader = session.loader(
        dataset,
        batch_size=trainer.global_batch_size,
        shuffle=str(args.train_sampling_strategy) == "random",
        seed=args.seed if args.data_seed is None else args.data_seed,
        drop_last=args.dataloader_drop_last,
        collate_fn=Collate(collate),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
        **(workers if args.dataloader_num_workers else {}),
    )
    return TrainerBatches(loader, dataset, trainer.global_batch_size)


def _uncounted(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with all labels ignored."""
    labels = {
        name: batch[name].new_full(batch[name].shape, -100) for name in ("labels", "shift_labels") if name in batch
    }
    return {**batch, **labels}
