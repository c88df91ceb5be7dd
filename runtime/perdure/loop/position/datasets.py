"""What identifies the loaders' datasets, so that a run with another dataset reports it.

Part of each checkpoint. Facts about loaders that this script has not made yet wait for them, and are saved again.
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
    """The datasets of one process."""

    def __init__(self) -> None:
        self._loaders: dict[str, Loader] = {}
        self._recalled: dict[str, Any] = {}
        """What the checkpoint holds, by the loader's name."""

    def place(self, source: Source[Any]) -> None:
        """A loader is placed: gives it its part of the checkpoint."""
        if isinstance(source, Loader):
            self._loaders[source.name] = source
            source.recall(self._recalled.pop(source.name, {}))

    def state_dict(self) -> dict[str, Any]:
        """The facts of each loader."""
        found = self._recalled | {name: loader.facts() for name, loader in self._loaders.items()}
        return {STATE: found} if found else {}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores them."""
        self._recalled = dict(saved.get(STATE, {}))

    def facts_of_this_rank(self) -> dict[str, Any]:
        """What this rank tells the others: the length and the digests of a few samples, by the loader's name."""
        return {name: [loader.plan.samples, loader.facts()["samples"]] for name, loader in self._loaders.items()}

    def compare(self, by_rank: Sequence[dict[str, Any]]) -> None:
        """Reports each loader whose dataset differs between ranks, once. UserError if lengths differ."""
        for name, words in between_ranks(by_rank).items():
            self._loaders[name].differs(words)
