"""The iterable that the Trainer trains on: a Session's loader with the DataLoader attributes that the Trainer uses.

accelerate wraps the Trainer's own DataLoader: it reads one batch ahead, and repeats the first samples so that all ranks
have equally many. This class reads nothing ahead. The Trainer fetches all batches of an update together, so before the
first of them no batch is pending, and the run can save and leave there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from perdure.session.driven import Loader


class CollatedBatch:
    """Wraps a collated batch, so that the Session's loader passes it on unchanged.

    A rank without samples gets a whole batch too, because models accept no empty batch.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def pin_memory(self) -> CollatedBatch:
        """Called by torch's DataLoader."""
        return CollatedBatch(pin_memory(self.value))


class Collate:
    """The Trainer's collator; wraps each batch in a CollatedBatch."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, items: list[Any]) -> CollatedBatch:
        return CollatedBatch(self._collate(items))


class TrainerBatches:
    """The training batches of this rank. Only one pass is active at a time."""

    def __init__(self, loader: Loader, dataset: Any, batch_size: int) -> None:
        self.loader = loader
        self.dataset = dataset
        self.batch_size = batch_size
        """The number of samples of a batch over all ranks."""
        self._walk: Iterator[Any] = iter(())
        self._weights: deque[float] = deque()

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._walk = iter(self.loader)
        self._weights.clear()
        return self

    def __next__(self) -> Any:
        held = next(self._walk)
        share = self.loader.current
        self._weights.append(share.weight if share else 1.0)
        return placeholder(held.value) if share and not share.ids else held.value

    def even(self, world: int) -> bool:
        """Whether `world` ranks get equally many samples of every batch."""
        plan = self.loader.plan
        return plan.batch % world == 0 and plan.end % plan.batch % world == 0

    @property
    def weight(self) -> float:
        """The weight of this rank's mean loss in the present batch."""
        return self._weights[0] if self._weights else 1.0

    def trained(self) -> None:
        """The present batch is done."""
        if self._weights:
            self._weights.popleft()

    @property
    def done(self) -> int:
        """The number of batches of this epoch that were handed out so far, over all runs."""
        return len(self.loader) - self.loader.remaining

    def end(self) -> None:
        """End the pass if all batches are handed out: the code after the epoch's batches is about to run."""
        if not self.loader.remaining:
            next(self._walk, None)

    def close(self) -> None:
        """End the pass, even if batches are left."""
        self._walk = iter(())


class Placeholder(dict[str, Any]):
    """Another rank's batch with weight 0, for a rank without samples."""


def placeholder(batch: Any) -> Any:
    """The batch as a Placeholder if it is a mapping, otherwise unchanged."""
    return Placeholder(batch) if isinstance(batch, Mapping) else batch
