"""Whether the old ranks hold the same state: each sums up its own while it is sent, and the vote compares.

Every old rank reads all of it for that, which takes about as long as sending it over a fast link: beside each other
they cost one of the two. Used by perdure.live.effects; what the sums are compared by is Bridge.vote.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from awscrt.checksums import crc64nvme
from torch import Tensor

from perdure.checkpoint import tensors

SUM_BITS: Final = 48
"""So many bits of a sum are told: those of tens of thousands of ranks add up in one number."""


class Summing:
    """Sums up tensors in a thread while the block runs, which ends with the sum, or with the error there was."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._named = named
        self._sum = 0
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._add_up, name="perdure-handover-sum", daemon=True)

    @property
    def sum(self) -> int:
        """Of all tensors, once the block is over."""
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
            for name, tensor in sorted(self._named.items()):
                if self._stopped.is_set():
                    return
                self._sum = int(crc64nvme(f"{name} {tensors.checksum(tensor)} ".encode(), self._sum))
        except Exception as error:  # noqa: BLE001 - raised where the sum is wanted
            self._error = error
