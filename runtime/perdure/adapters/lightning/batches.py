"""What Lightning iterates for training: a Session's loader, behind the little that Lightning asks of a dataloader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class TrainingPosition(Protocol):
    """Who knows where the training stands (perdure.adapters.lightning.driver)."""

    def begin_epoch(self) -> None:
        """Lightning begins an epoch: the one before is over, with all that its hooks do."""
        ...

    def next_batch(self, batches: Batches) -> Any:
        """The next batch of the epoch that is on. Here the run may save, and leave."""
        ...


class Batches:
    """The training batches of this rank.

    Lightning makes its iterator before the first epoch, and never asks for more than there is; so an iterator opens
    nothing, and the driver closes what it has opened.
    """

    def __init__(self, loader: Any, driver: TrainingPosition) -> None:
        self.loader = loader
        self._driver = driver
        self.sampler = _EpochTold(driver.begin_epoch)
        """Lightning tells a sampler's `set_epoch` that an epoch begins, and it is the first that hears of it."""

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return _Walk(lambda: self._driver.next_batch(self))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the Session keeps the position. Lightning warns of loaders that have none of these two."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `state_dict`."""


class _EpochTold:
    """What looks like a sampler to Lightning."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def set_epoch(self, _: int) -> None:
        """An epoch begins."""
        self._begin()


class _Walk(Iterator[Any]):
    """One pass, as long as the driver gives batches."""

    def __init__(self, following: Callable[[], Any]) -> None:
        self._following = following

    def __next__(self) -> Any:
        return self._following()
