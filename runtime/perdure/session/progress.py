"""Where training stands: steps, epochs, each loader's position, and the random state that waits to be applied.

It is what a commit calls a position, and what a resumed run begins from. It does no I/O and talks to no other rank.
Owned by the session; the loaders tell it what they hand out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from perdure.checkpoint.state import Position
from perdure.data.loader import Loader
from perdure.errors import UserError
from perdure.session import rng


class Progress:
    """One rank's progress; equal on all ranks, but for the random state."""

    def __init__(self) -> None:
        self.step = 0
        """Optimizer steps done."""
        self.epochs_done = 0
        self.epoch: int | None = None
        """The epoch being trained, or None outside `epochs()`."""
        self.saved = False
        """Whether a commit holds exactly this position."""
        self._loaders: dict[str, Loader] = {}
        self._resumed: dict[str, Any] = {}
        self._current: Loader | None = None
        self._random: Callable[[], None] | None = None

    def add(self, loader: Loader) -> None:
        """One more loader, put where the checkpoint says. UserError if its name is taken."""
        name = loader.plan.name
        if name in self._loaders:
            raise UserError(f"loader {name!r} exists already: give each loader a name of its own")
        self._loaders[name] = loader
        self._place(loader)

    def resume(self, position: Position, random_state: Callable[[], None]) -> None:
        """Goes on from a commit; `random_state` is called when the generators are to be as they were then."""
        self.step, self.epochs_done, self.saved = position.step, position.epoch, True
        self._resumed = dict(position.cursors)
        self._random = random_state
        for loader in self._loaders.values():
            self._place(loader)

    def position(self) -> Position:
        """What a commit made now records."""
        made = {name: loader.plan.cursor(self.epochs_done, loader.consumed) for name, loader in self._loaders.items()}
        return Position(self.step, self.epochs_done, self._resumed | made)

    def random_state(self) -> dict[str, Any]:
        """The generators' states that training goes on with, also where they are not applied yet."""
        now = rng.capture()
        if self._random is None:
            return now
        try:
            self._random()
            return rng.capture()
        finally:
            rng.apply(now)

    def begin_epoch(self) -> int:
        """The next epoch begins."""
        self.epoch = self.epochs_done
        if not any(self._in_epoch(cursor) for cursor in self.position().cursors.values()):
            self.before_first_batch()
        return self.epoch

    def finish_epoch(self) -> None:
        """The epoch is over, however much of it was used. UserError if it was walked to the end but not stepped."""
        for loader in self._loaders.values():
            loader.check_end()
        self.epochs_done += 1
        self.epoch, self.saved, self._resumed = None, False, {}
        for loader in self._loaders.values():
            loader.rewind()

    def finish_step(self) -> list[int]:
        """A step is done with all batches handed out since the last one; returns their sample ids."""
        self._check_cursors()
        self.step += 1
        self.saved = False
        return [sample for loader in self._loaders.values() for sample in loader.advance()]

    def at_goal(self, goal: int | None) -> bool:
        """Whether the step that has just finished was the last one of epoch number `goal`."""
        return goal is not None and self.epochs_done == goal - 1 and self.at_epochs_end

    @property
    def at_epochs_end(self) -> bool:
        """Whether all that the body of an epoch may still do is to end."""
        loaders = self._loaders.values()
        return self.epoch is not None and bool(loaders) and all(loader.at_end for loader in loaders)

    def weighted(self, loss: Tensor) -> Tensor:
        """The loss as it counts in the batch that was handed out last: nothing for a rank without a sample."""
        share = self._current.current if self._current else None
        weight = share.weight if share else 1.0
        if weight == 1.0:
            return loss
        return loss * weight if weight else torch.nan_to_num(loss) * 0.0

    def before_first_batch(self) -> None:
        """A loader is set up: from here on random numbers count."""
        restore, self._random = self._random, None
        if restore:
            restore()

    def handed(self, loader: Loader) -> None:
        """`loader` hands out a batch."""
        self._current = loader

    def _place(self, loader: Loader) -> None:
        cursor = self._resumed.get(loader.plan.name)
        if cursor is not None:
            loader.rewind(loader.plan.resume(cursor, self.epochs_done))

    def _check_cursors(self) -> None:
        for name, cursor in self._resumed.items():
            if name not in self._loaders and self._in_epoch(cursor):
                raise UserError(
                    f"the checkpoint was made in the middle of epoch {self.epochs_done} of loader {name!r}, which the "
                    f"script has not made: keep its name, or use another root"
                )

    def _in_epoch(self, cursor: Mapping[str, Any]) -> bool:
        return bool(cursor.get("consumed")) and cursor.get("epoch") == self.epochs_done


def random_state(saved: Any, *, same_world: bool, seed: int, step: int, rank: int) -> Callable[[], None]:
    """How this rank's generators go on from a commit: as they were, or drawn anew in another world."""
    if same_world and saved is not None:
        return lambda: rng.apply(saved["rng"])
    return lambda: rng.derive(seed, step, rank)
