"""Checksums the old ranks' state while it is sent; the vote compares them, so that differing ranks never hand over.

Each old rank reads its whole state for that, which takes about as long as sending it over a fast link; run in parallel,
both cost the time of one. Used by perdure.live.effects; Bridge.vote compares the sums.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from torch import Tensor

from perdure.checkpoint import tensors

SUM_BITS: Final = 48
"""Bits of a checksum that the vote uses, so that the sum over tens of thousands of ranks fits into an int64."""


class Summing:
    """Context manager that checksums tensors in a thread; its exit waits for the sum and raises the thread's error."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._named = named
        self._sum = 0
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._add_up, name="perdure-handover-sum", daemon=True)

    @property
    def sum(self) -> int:
        """The checksum of all tensors, after the block."""
        return self._sum & ((1 << SUM_BITS) - 1)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error:
            self._stopped.set()
        self._thread.join()
        if self._error and not error:
            raise self._error

    def _add_up(self) -> None:
        try:
            sums: dict[str, int] = {}
            for name, tensor in self._named.items():
                if self._stopped.is_set():
                    return
                sums[name] = tensors.checksum(tensor)
            self._sum = tensors.digest(sums)
        except Exception as error:  # noqa: BLE001 - `__exit__` raises it
            self._error = error
