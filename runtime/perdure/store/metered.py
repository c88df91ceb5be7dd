"""A store wrapper that counts bytes, for progress bars.

`open_store` takes the meter from the context, because what opens the store is often far below the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from perdure.store.protocol import ObjectInfo, Store, every_key

Meter = Callable[[int], None]
"""Called with a byte count, from any thread, after a read or before a write."""

_METER: Final[ContextVar[Meter | None]] = ContextVar("perdure_store_meter", default=None)


@contextmanager
def metered(moved: Meter) -> Iterator[None]:
    """Stores that are opened inside tell `moved` what they move."""
    token = _METER.set(moved)
    try:
        yield
    finally:
        _METER.reset(token)


def with_meter(store: Store) -> Store:
    """The store, with the context's meter if there is one."""
    meter = _METER.get()
    return Metered(store, meter) if meter else store


class Metered:
    """`below`, whose bytes are counted; see perdure.store.Store."""

    def __init__(self, below: Store, moved: Meter) -> None:
        self._below = below
        self._moved = moved

    @property
    def uri(self) -> str:
        return self._below.uri

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self._below.put(key, data, if_absent=if_absent)
        self._moved(len(data))

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        self._below.put_stream(key, self._counted(blocks), size, if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        data = self._below.get(key, start=start, length=length)
        self._moved(len(data))
        return data

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        count = self._below.get_into(key, buffer, start=start)
        self._moved(count)
        return count

    def head(self, key: str) -> ObjectInfo | None:
        return self._below.head(key)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        return self._below.list(prefix, after=after, limit=limit)

    def delete(self, keys: Sequence[str]) -> None:
        self._below.delete(keys)

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:
        return self._below.sweep(older_than, where)

    def _counted(self, blocks: Iterable[memoryview]) -> Iterator[memoryview]:
        for block in blocks:
            self._moved(len(block))
            yield block
