"""The loader a script iterates: perdure.data.sampling's plan on top of torch's DataLoader.

Two promises beside the plan's: iterating draws nothing from the global random generators, and the sample ids travel
with the items through dataset, workers and collation, so that what is recorded is what was in the batch.

Made by `Session.loader`; it knows of the session only the `Progress` it is given.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from perdure.data.sampling import BatchIds, BatchShard, SamplingPlan, Shares
from perdure.errors import UserError


class Progress(Protocol):
    """What a loader asks of its session."""

    @property
    def epoch(self) -> int | None:
        """The epoch being trained, or None outside `epochs()`."""
        ...

    def before_first_batch(self) -> None:
        """Called once an iteration is set up and before it fetches anything."""
        ...

    def handed(self, loader: Loader) -> None:
        """Called right before a batch goes to the script."""
        ...


@dataclass(frozen=True)
class _Batch:
    """A collated batch and the ids that came with its items."""

    ids: tuple[int, ...]
    value: Any


class _Numbered(Dataset[tuple[int, Any]]):
    """Hands out (id, item). In a worker it seeds the generators per sample: worker state cannot be saved."""

    def __init__(self, dataset: Dataset[Any], seed: int, epoch: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._epoch = epoch

    def __getitem__(self, number: int) -> tuple[int, Any]:
        sample = number if number >= 0 else ~number
        if get_worker_info() is not None:
            _seed_all(self._seed, self._epoch, sample)
        return number, self._dataset[sample]


def _seed_all(*parts: int) -> None:
    seed = int(np.random.SeedSequence(list(parts)).generate_state(1)[0])
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # the generator that augmentations use


class _Collate:
    """Collates items and keeps their ids; a negative id marks the placeholder of an empty part."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, numbered: list[tuple[int, Any]]) -> _Batch:
        value = self._collate([item for _, item in numbered])
        if numbered[0][0] < 0:
            return _Batch((), _emptied(value))
        return _Batch(tuple(number for number, _ in numbered), value)


def _emptied(value: Any) -> Any:
    """The same structure with no sample in it."""
    if isinstance(value, torch.Tensor):
        return value[:0] if value.dim() else value
    if isinstance(value, dict):
        return {key: _emptied(item) for key, item in value.items()}
    if isinstance(value, tuple):
        parts = [_emptied(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        nested = any(isinstance(item, torch.Tensor | dict | tuple | list) for item in value)
        return [_emptied(item) for item in value] if nested else []
    return value


class Loader:
    """This rank's batches of the current epoch, from where the last committed step left off."""

    def __init__(
        self,
        dataset: Dataset[Any],
        plan: SamplingPlan,
        progress: Progress,
        *,
        rank: int,
        world: int,
        options: dict[str, Any],
    ) -> None:
        self.plan = plan
        self.consumed = 0
        """Samples of this epoch that finished steps have used."""
        self.current: BatchShard | None = None
        """The part that the script is working on."""
        self.ids: list[int] = []
        """Ids found in the batches handed out since the last step."""
        self._dataset = dataset
        self._progress = progress
        self._rank, self._world = rank, world
        self._collate = _Collate(options.pop("collate_fn", None) or default_collate)
        self._options = options
        self._handed = 0
        self._ended_epoch: int | None = None

    def __len__(self) -> int:
        """Global batches that are left of this epoch."""
        return math.ceil((self.plan.end - self.consumed) / self.plan.batch)

    def __iter__(self) -> Iterator[Any]:
        epoch = self._progress.epoch
        if epoch is None:
            raise UserError(f"loader {self.plan.name!r} is iterated outside `for epoch in session.epochs(n)`")
        if self._ended_epoch == epoch:
            raise UserError(
                f"loader {self.plan.name!r} is at the end of epoch {epoch}: one pass an epoch; use a DataLoader of "
                f"your own for evaluation"
            )
        return self._walk(epoch)

    def _walk(self, epoch: int) -> Iterator[Any]:
        shares = self.plan.shares(epoch, self.consumed, self._rank, self._world)
        self._handed = self.consumed
        with torch.device("cpu"):  # the seed it draws, from a generator of this device
            batches = cast("Iterator[_Batch]", iter(self._underneath(epoch, shares)))
        self._progress.before_first_batch()
        for share, batch in zip(shares, batches, strict=True):
            self._handed, self.current = share.stop, share
            self.ids.extend(batch.ids)
            self._progress.handed(self)
            yield batch.value
        self._ended_epoch = epoch

    def _underneath(self, epoch: int, shares: Shares) -> DataLoader[Any]:
        generator = torch.Generator()  # else iterating would draw a seed from the global one
        generator.manual_seed(0)
        return DataLoader(
            _Numbered(self._dataset, self.plan.seed, epoch),
            batch_sampler=BatchIds(shares),
            collate_fn=self._collate,
            generator=generator,
            **self._options,
        )

    def advance(self) -> list[int]:
        """A step is done: what was handed out is consumed. Returns the ids it used."""
        ids, self.ids = self.ids, []
        self.consumed = self._handed
        return ids

    def rewind(self, consumed: int = 0) -> None:
        """To a position in the epoch that comes next."""
        self.consumed = self._handed = consumed
        self.current, self.ids, self._ended_epoch = None, [], None

    def check_end(self) -> None:
        """UserError if the epoch was handed out to its end and no step came after its last batches."""
        if self._handed >= self.plan.end > self.consumed:
            left = math.ceil((self._handed - self.consumed) / self.plan.batch)
            raise UserError(
                f"the epoch ended with {left} batches of loader {self.plan.name!r} after the last step(): call step() "
                f"after the last batch too when gradients are accumulated"
            )

    @property
    def at_end(self) -> bool:
        """Whether finished steps have used the whole epoch."""
        return self.consumed >= self.plan.end
