"""A store in memory, and stores that fail in chosen ways around any other.

`MemoryStore` passes the same contract tests as the real ones (test_contract.py), so tests of code above stores may use
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from perdure.errors import PerdureError, StorageError
from perdure.log.entry import checksum
from perdure.store import KeyExists, NoSuchKey, ObjectInfo, Store, every_key


class MemoryStore:
    """See perdure.store.Store."""

    uri = "memory:"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        with self._lock:
            if if_absent and key in self.objects:
                raise KeyExists(f"{key} exists already")
            self.objects[key] = bytes(data)
            self.written[key] = time.time()

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        data = b"".join(bytes(block) for block in blocks)
        if len(data) != size:
            raise StorageError(f"cannot write {key}: {len(data)} bytes came instead of {size}")
        self.put(key, data, if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        try:
            return self.objects[key][start : None if length is None else start + length]
        except KeyError:
            raise NoSuchKey(f"no {key}") from None

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        data = self.get(key, start=start, length=len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def head(self, key: str) -> ObjectInfo | None:
        data = self.objects.get(key)
        return None if data is None else ObjectInfo(len(data), checksum(data), self.written.get(key))

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix) and key > after)[:limit]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:  # noqa: ARG002
        return 0


class UnorderedStore(MemoryStore):
    """Lists in no order, as directory buckets do."""

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        keys = super().list(prefix, after=after)
        return [*keys[1::2], *keys[0::2]][:limit]


class CarelessStore(MemoryStore):
    """Ignores If-None-Match, as some S3 servers do."""

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:  # noqa: ARG002
        super().put(key, data)


class Died(BaseException):
    """The process ended here."""


class WatchedStore:
    """Any store; `around` sees every call and decides whether and when it is made."""

    def __init__(self, inner: Store, around: Callable[[str, str, Callable[[], Any]], Any]) -> None:
        self._inner = inner
        self._around = around
        self.uri = inner.uri

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self._around("put", key, lambda: self._inner.put(key, data, if_absent=if_absent))

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        self._around("put", key, lambda: self._inner.put_stream(key, blocks, size, if_absent=if_absent))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        data: bytes = self._around("get", key, lambda: self._inner.get(key, start=start, length=length))
        return data

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        read: int = self._around("get", key, lambda: self._inner.get_into(key, buffer, start=start))
        return read

    def head(self, key: str) -> ObjectInfo | None:
        info: ObjectInfo | None = self._around("head", key, lambda: self._inner.head(key))
        return info

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        keys: list[str] = self._around("list", prefix, lambda: self._inner.list(prefix, after=after, limit=limit))
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        self._around("delete", keys[0] if keys else "", lambda: self._inner.delete(keys))

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:
        swept: int = self._around("sweep", "", lambda: self._inner.sweep(older_than, where))
        return swept


def dying(inner: Store, call: int, *, after: bool) -> WatchedStore:
    """Its process dies right before, or right after, its `call`-th call (from 0), and makes none from then on."""
    made = 0

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        nonlocal made
        number, made = made, made + 1
        if number < call:
            return act()
        if number == call and after:
            with suppress(PerdureError):
                act()
        raise Died

    return WatchedStore(inner, around)


def failing(inner: Store, call: int, *, after: bool) -> WatchedStore:
    """Its `call`-th call (from 0) is a StorageError, although with `after` the store has done it."""
    made = 0

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        nonlocal made
        number, made = made, made + 1
        if number != call:
            return act()
        if after:
            with suppress(PerdureError):
                act()
        raise StorageError(f"cannot {verb} {key}: the answer was lost")

    return WatchedStore(inner, around)
