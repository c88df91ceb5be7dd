"""What the loaders' datasets are known by, so that a run which gets another one says so.

Kept in each checkpoint; what one holds of loaders that this script has not made yet waits for them, and is kept on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.loop.data.fingerprint import between_ranks
from perdure.loop.data.loader import Loader
from perdure.loop.data.source import Source

STATE: Final = "datasets"
"""The name of the value in a checkpoint."""


class Datasets:
    """Of one process."""

    def __init__(self) -> None:
        self._loaders: dict[str, Loader] = {}
        self._recalled: dict[str, Any] = {}
        """What the checkpoint holds, by the loader's name."""

    def place(self, source: Source[Any]) -> None:
        """It stands where it was left."""
        if isinstance(source, Loader):
            self._loaders[source.name] = source
            source.recall(self._recalled.pop(source.name, {}))

    def state_dict(self) -> dict[str, Any]:
        """Of each loader."""
        found = self._recalled | {name: loader.facts() for name, loader in self._loaders.items()}
        return {STATE: found} if found else {}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """From that."""
        self._recalled = dict(saved.get(STATE, {}))

    def told(self) -> dict[str, Any]:
        """What this rank tells the others: the length, and what is known of a few samples, by the loader's name."""
        return {name: [loader.plan.samples, loader.facts()["seen"]] for name, loader in self._loaders.items()}

    def compare(self, by_rank: Sequence[dict[str, Any]]) -> None:
        """Says once, of each loader, where its dataset is not the same on all ranks. UserError if lengths differ."""
        for name, words in between_ranks(by_rank).items():
            self._loaders[name].differs(words)
