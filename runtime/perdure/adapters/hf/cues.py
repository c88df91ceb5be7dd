"""Forwards the Trainer's events to the adapter, before any other callback, so that those see up-to-date values."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import TrainerCallback


class TrainerEvents(Protocol):
    """Receives the Trainer's events."""

    def train_begins(self) -> None:
        """The Trainer is set up. No other callback has run yet."""

    def epoch_begins(self) -> None:
        """An epoch is about to begin."""

    def micro_batch_done(self) -> None:
        """A batch of an update is done, but not its last one."""

    def update_done(self) -> None:
        """An optimizer step is done."""

    def batches_done(self) -> None:
        """The batches of an epoch are done, or the Trainer skips the rest."""


class Cues(TrainerCallback):
    """The first of the Trainer's callbacks."""

    def __init__(self, events: TrainerEvents) -> None:
        self._events = events

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerEvents."""
        self._events.train_begins()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerEvents."""
        self._events.epoch_begins()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerEvents."""
        self._events.micro_batch_done()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerEvents."""
        self._events.update_done()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See TrainerEvents."""
        self._events.batches_done()
