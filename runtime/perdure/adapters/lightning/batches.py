"""The iterable that Lightning trains on: a Session's loader with the DataLoader attributes that Lightning uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class TrainingPosition(Protocol):
    """Keeps the training's position (perdure.adapters.lightning.driver)."""

    def begin_epoch(self) -> None:
        """Lightning begins an epoch. The previous one is over, including its hooks."""
        ...

    def next_batch(self, batches: LightningBatches) -> Any:
        """The next batch of the present epoch. The run may save and leave here."""
        ...


class LightningBatches:
    """The training batches of this rank.

    Lightning creates its iterator before the first epoch, and never reads it to the end. So the iterator opens nothing;
    the driver opens and closes the passes.
    """

    def __init__(self, loader: Any, driver: TrainingPosition) -> None:
        self.loader = loader
        self._driver = driver
        self.sampler = _EpochSampler(driver.begin_epoch)
        """Lightning calls a sampler's `set_epoch` first when an epoch begins."""

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return _Walk(lambda: self._driver.next_batch(self))

    def state_dict(self) -> dict[str, Any]:
        """Empty: the Session keeps the position. Lightning warns if a loader lacks this method."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `state_dict`."""


class _EpochSampler:
    """A sampler for Lightning that only reports the beginning of an epoch."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def set_epoch(self, _: int) -> None:
        """An epoch begins."""
        self._begin()


class _Walk(Iterator[Any]):
    """One pass: the batches that the driver returns."""

    def __init__(self, following: Callable[[], Any]) -> None:
        self._following = following

    def __next__(self) -> Any:
        return self._following()
