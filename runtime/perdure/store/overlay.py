"""A store as it would be if this process wrote to it: writes stay in memory, and the store below does not change.

For code that needs to know what a run would find, without starting one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perdure.errors import StorageError
from perdure.store.protocol import KeyExists, NoSuchKey, ObjectInfo, Store, every_key


class Overlay:
    """`below`, with this process's objects on top; see perdure.store.Store. For small objects, and one thread."""

    def __init__(self, below: Store) -> None:
        self._below = below
        self._own: dict[str, bytes] = {}
        self._gone: set[str] = set()
        """Keys that were deleted here, and may still be below."""

    @property
    def uri(self) -> str:
        return self._below.uri

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        if if_absent and self.head(key):
            raise KeyExists(f"{key} exists already")
        self._own[key] = bytes(data)

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        data = b"".join(bytes(block) for block in blocks)
        if len(data) != size:
            raise StorageError(f"cannot write {key}: {len(data)} bytes came instead of {size}")
        self.put(key, data, if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        if key in self._own:
            return self._own[key][start : None if length is None else start + length]
        if key in self._gone:
            raise NoSuchKey(f"no {key}")
        return self._below.get(key, start=start, length=length)

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        data = self.get(key, start=start, length=len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def head(self, key: str) -> ObjectInfo | None:
        if key in self._own:
            return ObjectInfo(len(self._own[key]), None)
        return None if key in self._gone else self._below.head(key)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        below = self._below.list(prefix, after=after, limit=None if limit is None else limit + len(self._gone))
        own = {key for key in self._own if key.startswith(prefix) and key > after}
        return sorted(own | (set(below) - self._gone))[:limit]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._own.pop(key, None)
            self._gone.add(key)

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:  # noqa: ARG002
        return 0
