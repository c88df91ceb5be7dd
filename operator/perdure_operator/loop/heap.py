"""Python's cyclic garbage collector kept from stopping the event loop.

A cluster of thousands of pods is some hundred thousand objects that live for hours. A resync allocates enough to start
full collections again and again, each looks at all of them, and the loop stands still meanwhile: 0.1 to 0.25 s with
4,000 pods, which is nearly all that a resync keeps others waiting (`python -m e2e.bench scale`). Knows nothing of the
operator. Used by `operator`.
"""

from __future__ import annotations

import gc


class Heap:
    """What lives long is set aside after each resync, and is looked at again once it has doubled."""

    def __init__(self) -> None:
        self._looked_at = 0
        """Objects that were set aside when all of them were last looked at."""

    def settle(self) -> None:
        """Collects what has come since the last call, and sets aside what is left of it.

        What is set aside is still freed when nobody refers to it any more, but for cycles: they wait until all of it is
        looked at.
        """
        all_of_it = gc.get_freeze_count() >= 2 * self._looked_at
        if all_of_it:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        if all_of_it:
            self._looked_at = gc.get_freeze_count()
