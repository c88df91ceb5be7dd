"""What the Trainer tells of its loop, before any other callback, so that they find everything as it ought to be."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import TrainerCallback


class Told(Protocol):
    """Who is told."""

    def train_begins(self) -> None:
        """The Trainer has set up everything, and has not called anybody."""

    def epoch_begins(self) -> None:
        """An epoch is about to begin."""

    def micro_batch_done(self) -> None:
        """One of the batches of an update is done, and not the last one."""

    def update_done(self) -> None:
        """An optimizer step is done."""

    def batches_done(self) -> None:
        """The batches of an epoch are done, or the rest of them is not wanted."""


class Cues(TrainerCallback):
    """The first of the Trainer's callbacks."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See Told."""
        self._told.train_begins()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See Told."""
        self._told.epoch_begins()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See Told."""
        self._told.micro_batch_done()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See Told."""
        self._told.update_done()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See Told."""
        self._told.batches_done()
