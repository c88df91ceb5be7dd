"""Refuses the Trainer's features that a Session cannot resume exactly, each with a remedy.

This module only checks; it changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import transformers
from torch.utils.data import IterableDataset
from transformers.trainer_callback import ExportableState

from perdure.errors import UserError
from perdure.session.session import Session

OVERRIDDEN: Final = {
    "_init_training_state": (
        "max_steps",
        "num_update_steps_per_epoch",
        "num_train_epochs",
        "resume_from_checkpoint",
        "trial",
    ),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_run_epoch": (
        "model",
        "epoch",
        "train_dataloader",
        "steps_in_epoch",
        "num_update_steps_per_epoch",
        "trial",
        "ignore_keys_for_eval",
        "start_time",
        "resume_from_checkpoint",
        "epochs_trained",
        "steps_trained_in_current_epoch",
    ),
    "_evaluate": ("trial", "ignore_keys_for_eval", "skip_scheduler"),
    "_maybe_log_save_evaluate": (
        "tr_loss",
        "grad_norm",
        "model",
        "trial",
        "epoch",
        "ignore_keys_for_eval",
        "start_time",
        "learning_rate",
    ),
    "_determine_best_metric": ("metrics", "trial"),
    "_save_checkpoint": ("model", "trial"),
    "_get_num_items_in_batch": ("batch_samples", "device"),
    "_finalize_training": ("trial", "num_train_samples", "start_time"),
}
"""The private methods of the Trainer that the adapter overrides, with their parameters."""

BATCHES: Final = "perdure.adapters.hf.trainer"
"""The module that defines the adapter's get_train_dataloader."""


def check_release() -> None:
    """Raise UserError if the installed Trainer does not have the methods that the adapter overrides."""
    for name, parameters in OVERRIDDEN.items():
        part = getattr(transformers.Trainer, name, None)
        if part is None or tuple(inspect.signature(part).parameters)[1:] != parameters:
            raise UserError(
                f"perdure.adapters.hf supports transformers 5.23, and {name} of {transformers.__version__} differs: "
                f"install transformers 5.23, or a newer perdure"
            )


def check(trainer: Any, session: Session, resume_from_checkpoint: Any, trial: Any) -> None:
    """Raise UserError for the first thing that prevents an exact resume."""
    for why in _reasons(trainer, session, resume_from_checkpoint, trial):
        raise UserError(why)


def _reasons(trainer: Any, session: Session, resume_from_checkpoint: Any, trial: Any) -> Iterator[str]:
    args = trainer.args
    if args.world_size != session.world or args.process_index != session.rank:
        yield (
            f"the Trainer is process {args.process_index} of {args.world_size}, the session rank {session.rank} of "
            f"{session.world}: make the session first; on CPUs give TrainingArguments(use_cpu=True), otherwise each "
            f"process trains by itself"
        )
    if args.n_gpu > 1:
        yield "one process drives several GPUs: start one process for each GPU, with torchrun or processesPerReplica"
    if resume_from_checkpoint:
        yield (
            "train(resume_from_checkpoint=...): the session resumes by itself, from its newest commit: leave it out; "
            "for an earlier one give Session.from_env(resume_from={'step': ...})"
        )
    if trial is not None:
        yield "a hyperparameter search trains many times, and a session trains once: start one script for each trial"
    yield from _sharded(trainer)
    yield from _arguments(args)
    yield from _data(trainer)
    yield from _losses(trainer, session)


def _sharded(trainer: Any) -> Iterator[str]:
    parallelism = getattr(trainer.accelerator, "parallelism_config", None)
    loaded = trainer.is_distributed_loading_by_transformers
    fsdp = trainer.args.fsdp or trainer.is_fsdp_enabled  # on CPUs accelerate ignores it, without a word
    if fsdp or trainer.is_deepspeed_enabled or parallelism is not None or loaded:
        yield (
            "the model is to be sharded over the ranks (FSDP, DeepSpeed, tensor or context parallelism), and with the "
            "Trainer a session saves only models that every rank holds completely: leave it out, use the Trainer's own "
            "checkpoints, or write the loop yourself, with fully_shard"
        )


def _arguments(args: Any) -> Iterator[str]:
    said = {
        "auto_find_batch_size": (
            args.auto_find_batch_size,
            "the batches of a training are the same in every run: give per_device_train_batch_size",
        ),
        "ignore_data_skip": (args.ignore_data_skip, "a resumed run goes on with the very next batch: leave it out"),
        "enable_jit_checkpoint": (args.enable_jit_checkpoint, "the session saves where it is asked to: leave it out"),
        "push_to_hub": (args.push_to_hub, "call trainer.push_to_hub() after train() instead"),
        "dataloader_in_order=False": (
            not args.dataloader_in_order,
            "the order of batches would depend on the workers' speed, and differ in each run: leave it out",
        ),
        "accelerator_config's split_batches": (
            args.accelerator_config.split_batches,
            "give Trainer(batch_size=...), the samples of one batch over all ranks",
        ),
        f"optim={args.optim!s}": (
            "lomo" in str(args.optim).lower() or "layerwise" in str(args.optim).lower(),
            "it updates in the backward pass, and no optimizer holds its state: choose another",
        ),
    }
    yield from (f"TrainingArguments, {name}: {remedy}" for name, (found, remedy) in said.items() if found)


def _data(trainer: Any) -> Iterator[str]:
    args, data = trainer.args, trainer.train_dataset
    own = [
        name
        for name in ("_get_train_sampler", "_get_dataloader")
        if getattr(type(trainer), name) is not getattr(transformers.Trainer, name)
    ]
    if type(trainer).get_train_dataloader.__module__ != BATCHES:
        own.append("get_train_dataloader")
    if own:
        yield f"{type(trainer).__name__}.{own[0]}: the session distributes the samples itself: leave that method out"
    if str(args.train_sampling_strategy) not in ("random", "sequential"):
        yield (
            f"train_sampling_strategy={str(args.train_sampling_strategy)!r}: the session has two orders, 'random' and "
            f"'sequential': sort the dataset, and give 'sequential'"
        )
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        yield (
            f"train_dataset is a {type(data).__name__}, which has no length and no sample by number, so a position in "
            f"it cannot be saved: give a dataset with __len__ and __getitem__"
        )


def _losses(trainer: Any, session: Session) -> Iterator[str]:
    if session.world > 1 and not trainer.args.average_tokens_across_devices:
        yield (
            "average_tokens_across_devices=False: the loss of an update would depend on the number of ranks: leave it "
            "out"
        )


def forgetful(trainer: Any) -> list[str]:
    """The user's callbacks with attributes that no checkpoint holds."""
    return [kind.__name__ for kind in _with_values(trainer) if not issubclass(kind, ExportableState)]


def keeping_more(trainer: Any) -> list[str]:
    """The user's callbacks with attributes whose own class saves none. What a class of transformers saves does not
    count: it knows nothing of the rest."""
    kinds = _with_values(trainer)
    return [
        kind.__name__ for kind in kinds if not any("state" in vars(part) for part in filter(_is_users, kind.__mro__))
    ]


def _with_values(trainer: Any) -> list[type]:
    return [type(one) for one in trainer.callback_handler.callbacks if vars(one) and _is_users(type(one))]


def _is_users(kind: type) -> bool:
    return not kind.__module__.startswith(("transformers.", "perdure."))
