"""What the Trainer iterates for training: a Session's loader, behind the few things that it asks of a DataLoader.

The Trainer's own DataLoader is wrapped by accelerate, which reads one batch ahead, and gives every rank as many samples
by taking the first ones twice. This one hands out what it is asked for: the Trainer fetches all batches of an update
together, so right before the first of them nothing waits anywhere, and there the run may save, and leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from perdure.session.driven import Loader


class Held:
    """A collated batch that the Session's loader passes on as it is, also to a rank that has no sample of it: models
    take no batch without samples."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def pin_memory(self) -> Held:
        """As torch's DataLoader asks for it."""
        return Held(pin_memory(self.value))


class Collate:
    """The Trainer's collator, its batches held."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, items: list[Any]) -> Held:
        return Held(self._collate(items))


class Batches:
    """The training batches of this rank: at most one pass is on."""

    def __init__(self, loader: Loader, dataset: Any, batch_size: int) -> None:
        self.loader = loader
        self.dataset = dataset
        self.batch_size = batch_size
        """Samples of one batch, over all ranks."""
        self._walk: Iterator[Any] = iter(())
        self._weights: deque[float] = deque()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
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
        """Whether all of so many ranks have as many samples of every batch."""
        plan = self.loader.plan
        return plan.batch % world == 0 and plan.end % plan.batch % world == 0

    @property
    def weight(self) -> float:
        """What this rank's mean loss counts for in the batch that is trained on, of all that were fetched for it."""
        return self._weights[0] if self._weights else 1.0

    def trained(self) -> None:
        """That batch is done."""
        if self._weights:
            self._weights.popleft()

    @property
    def done(self) -> int:
        """Batches of this epoch that were handed out, by all runs."""
        return len(self.loader) - self.loader.remaining

    def end(self) -> None:
        """The epoch's body is about to do what stands below its batches."""
        if not self.loader.remaining:
            next(self._walk, None)

    def close(self) -> None:
        """The pass is over, also where the Trainer has left it."""
        self._walk = iter(())


class Placeholder(dict[str, Any]):
    """The batch of a rank that has no sample: another rank's, which counts for nothing."""


def placeholder(batch: Any) -> Any:
    """The same, so marked, if it has names."""
    return Placeholder(batch) if isinstance(batch, Mapping) else batch
