"""Keeps Python's cyclic garbage collector from stopping the event loop.

Thousands of pods are some hundred thousand objects that live for hours. A resync allocates enough to trigger full
collections again and again. Each visits all objects and stops the loop for 0.1 to 0.25 s with 4,000 pods, nearly all of
a resync's delay for others (`python -m e2e.bench scale`). Knows nothing of the operator. Used by `operator`.
"""

from __future__ import annotations

import gc


class Heap:
    """Freezes long-lived objects after each resync, and collects them again once their number has doubled."""

    def __init__(self) -> None:
        self._looked_at = 0
        """Frozen objects after the last full collection."""

    def settle(self) -> None:
        """Collects the objects that are new since the last call, and freezes the survivors.

        Reference counting still frees frozen objects. Frozen cycles wait for the next full collection.
        """
        all_of_it = gc.get_freeze_count() >= 2 * self._looked_at
        if all_of_it:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        if all_of_it:
            self._looked_at = gc.get_freeze_count()
