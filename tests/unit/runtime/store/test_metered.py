"""A metered store tells every byte that passes, and is otherwise the store below."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import StorageError
from perdure.store import open_store
from perdure.store.metered import metered


def test_every_byte_is_told_once(tmp_path: Path) -> None:
    told: list[int] = []
    with metered(told.append):
        store = open_store(f"file://{tmp_path}", {})
    store.put("a", b"0123456789")
    store.put_stream("b", iter([memoryview(b"01"), memoryview(b"234")]), 5)
    store.get("a", start=8, length=100)
    store.get_into("a", memoryview(bytearray(4)), start=7)
    store.list("")
    store.head("a")
    assert told == [10, 2, 3, 2, 3]


def test_a_store_that_is_opened_outside_tells_nobody(tmp_path: Path) -> None:
    told: list[int] = []
    with metered(told.append):
        pass
    open_store(f"file://{tmp_path}", {}).put("a", b"0")
    assert told == []


def test_a_failed_stream_is_an_error_as_ever(tmp_path: Path) -> None:
    with metered(lambda _: None):
        store = open_store(f"file://{tmp_path}", {})
    with pytest.raises(StorageError, match="2 bytes came instead of 3"):
        store.put_stream("a", iter([memoryview(b"01")]), 3)
    assert store.list("") == []
