"""What every store does: a few calls over keys relative to its root. Callers import these names from perdure.store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.errors import PerdureError


class KeyExists(PerdureError):
    """`put(if_absent=True)` found an object under that key and left it unchanged."""


class NoSuchKey(PerdureError):
    """`get` found no object under that key."""


def every_key(_key: str) -> bool:
    """For `sweep`."""
    return True


@dataclass(frozen=True)
class ObjectInfo:
    """What a store says about an object without sending it."""

    size: int
    crc: str | None
    """CRC64NVME of the whole object, 16 hex digits; None if the store keeps none."""
    modified: float | None = None
    """When it was written, in seconds since the epoch by the store's clock; None if unknown."""


class Store(Protocol):
    """Objects under one root. Every failure is a StorageError, or a StorageRefused if the same call cannot succeed
    until something is changed. Its message names object, cause and remedy.

    A `put` that raised StorageError may still have happened, now or a little later. All calls may come from any thread.
    """

    @property
    def uri(self) -> str:
        """The root, for messages."""
        ...

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Writes a whole object, never a part of it. KeyExists if `if_absent` and there is one already."""
        ...

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        """Writes one object of exactly `size` bytes, never a part of it. KeyExists if `if_absent` and there is one
        already, which may be found only after the last block.

        A block is valid only until the next one is requested, because one buffer is behind all of them. Errors of
        `blocks` pass through, and no object appears.
        """
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The object's bytes from `start`, at most `length` of them (past the end: fewer). NoSuchKey."""
        ...

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        """Fills the buffer with the object's bytes from `start`. Returns how many there were (past the end: fewer).
        NoSuchKey.

        After an error the buffer may hold anything.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Size and checksum, or None if there is no such object."""
        ...

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Keys that start with `prefix` and come after `after`, in the store's order: bytewise in almost all stores."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; a missing key is no error."""
        ...

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:
        """Removes what killed writers left incomplete more than `older_than` seconds ago, of keys that `where` chooses.
        Returns how many pieces it was.

        None of it is an object yet: temporary files, parts of uploads that were never completed. A writer that lives
        fails if its own is removed.
        """
        ...
