"""What every store promises: the one in memory, a folder, and a real S3 server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from perdure.errors import StorageError
from perdure.log.entry import checksum
from perdure.store import KeyExists, NoSuchKey, Store


def test_an_object_is_read_as_it_was_written(store: Store) -> None:
    store.put("data/1/a", b"0123456789")
    assert store.get("data/1/a") == b"0123456789"


def test_a_memoryview_is_written_like_bytes(store: Store) -> None:
    store.put("a", memoryview(b"xx0123456789")[2:])
    assert store.get("a") == b"0123456789"


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", b"")
    info = store.head("empty")
    assert store.get("empty") == b""
    assert info
    assert info.size == 0


def test_a_stream_is_written_block_by_block_out_of_one_buffer(store: Store) -> None:
    buffer = bytearray(4)

    def blocks() -> Iterator[memoryview]:
        for text in (b"0123", b"4567", b"89"):
            buffer[: len(text)] = text
            yield memoryview(buffer)[: len(text)]

    store.put_stream("data/1/a", blocks(), 10)
    assert store.get("data/1/a") == b"0123456789"
    info = store.head("data/1/a")
    assert info
    assert (info.size, info.crc) in ((10, None), (10, checksum(b"0123456789")))


def test_an_empty_stream_is_an_object(store: Store) -> None:
    store.put_stream("empty", iter(()), 0)
    assert store.get("empty") == b""


@pytest.mark.parametrize("size", [3, 5])
def test_a_stream_of_another_length_than_said_leaves_no_object(store: Store, size: int) -> None:
    with pytest.raises(StorageError, match="4 bytes came instead of"):
        store.put_stream("a", iter([memoryview(b"0123")]), size)
    assert store.head("a") is None
    assert store.list("") == []


def test_a_stream_that_breaks_off_leaves_no_object(store: Store) -> None:
    def blocks() -> Iterator[memoryview]:
        yield memoryview(b"0123")
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        store.put_stream("a", blocks(), 8)
    assert store.head("a") is None
    assert store.list("") == []


def test_head_tells_when_an_object_was_written(store: Store) -> None:
    before = time.time()
    store.put("a", b"")
    info = store.head("a")
    assert info
    assert info.modified is None or abs(info.modified - before) < 3600


def test_what_is_being_written_is_not_swept_before_its_time(store: Store) -> None:
    store.put("a", b"x")
    assert store.sweep(3600) == 0
    assert store.get("a") == b"x"


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 4, b"0123"), (3, 2, b"34"), (8, 100, b"89"), (4, None, b"456789"), (10, 5, b""), (50, None, b""), (3, 0, b"")],
)
def test_a_range_is_cut_like_a_slice(store: Store, start: int, length: int | None, expected: bytes) -> None:
    store.put("a", b"0123456789")
    assert store.get("a", start=start, length=length) == expected


@pytest.mark.parametrize(
    ("start", "room", "expected"), [(0, 4, b"0123"), (8, 100, b"89"), (10, 5, b""), (50, 2, b""), (3, 0, b"")]
)
def test_a_buffer_is_filled_as_far_as_the_object_reaches(store: Store, start: int, room: int, expected: bytes) -> None:
    store.put("a", b"0123456789")
    buffer = bytearray(b"\xff" * room)
    read = store.get_into("a", memoryview(buffer), start=start)
    assert (read, bytes(buffer)) == (len(expected), expected + b"\xff" * (room - len(expected)))


def test_no_buffer_is_filled_from_an_object_that_is_missing(store: Store) -> None:
    with pytest.raises(NoSuchKey, match="nothing"):
        store.get_into("nothing", memoryview(bytearray(1)))


def test_a_missing_object_is_distinguished_from_a_failure(store: Store) -> None:
    assert store.head("data/nothing") is None
    with pytest.raises(NoSuchKey, match="data/nothing"):
        store.get("data/nothing")
    with pytest.raises(NoSuchKey):
        store.get("data/nothing", start=3)


def test_head_tells_size_and_if_it_can_the_checksum(store: Store) -> None:
    store.put("a", b"0123456789")
    info = store.head("a")
    assert info
    assert info.size == 10
    assert info.crc in (None, checksum(b"0123456789"))


def test_a_plain_put_replaces(store: Store) -> None:
    store.put("a", b"old")
    store.put("a", b"new")
    assert store.get("a") == b"new"


def test_a_conditional_put_leaves_what_is_there(store: Store) -> None:
    store.put("log/1", b"first", if_absent=True)
    with pytest.raises(KeyExists, match="log/1"):
        store.put("log/1", b"second", if_absent=True)
    assert store.get("log/1") == b"first"


@pytest.mark.parametrize("size", [10, 9 * 1024 * 1024], ids=["small", "in parts"])
def test_a_conditional_stream_leaves_what_is_there(store: Store, size: int) -> None:
    store.put_stream("a", iter([memoryview(b"1" * size)]), size, if_absent=True)
    with pytest.raises(KeyExists, match="a"):
        store.put_stream("a", iter([memoryview(b"2" * size)]), size, if_absent=True)
    assert store.get("a") == b"1" * size
    assert store.list("") == ["a"]


def test_a_plain_stream_replaces(store: Store) -> None:
    store.put("a", b"old")
    store.put_stream("a", iter([memoryview(b"new")]), 3)
    assert store.get("a") == b"new"


def test_of_several_conditional_puts_at_once_exactly_one_wins(store: Store) -> None:
    writers = 6
    start = threading.Barrier(writers)
    for turn in range(3):
        winners: list[bytes] = []

        def write(content: bytes, key: str, winners: list[bytes]) -> None:
            start.wait(timeout=60)
            try:
                store.put(key, content, if_absent=True)
            except KeyExists:
                return
            winners.append(content)

        key = f"log/{turn}"
        threads = [threading.Thread(target=write, args=(b"%d" % n * 100, key, winners)) for n in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert [store.get(key)] == winners


def test_listing_is_sorted_and_honours_prefix_after_and_limit(store: Store) -> None:
    for name in ("log/3", "log/1", "log/2", "logs", "data/1/x"):
        store.put(name, b"")
    assert store.list("log/") == ["log/1", "log/2", "log/3"]
    assert store.list("log/", limit=1) == ["log/1"]
    assert store.list("log/", after="log/1", limit=1) == ["log/2"]
    assert store.list("log/", after="log/3") == []
    assert store.list("data/1/") == ["data/1/x"]
    assert store.list("nothing/") == []
    assert store.list("") == ["data/1/x", "log/1", "log/2", "log/3", "logs"]


def test_deleting_takes_what_is_there_and_nothing_else(store: Store) -> None:
    for name in ("data/1/a/x", "data/1/a/y", "data/1/b"):
        store.put(name, b"")
    store.delete(["data/1/a/x", "data/1/a/y", "data/1/never"])
    assert store.list("") == ["data/1/b"]
    store.delete([])


def test_a_deleted_object_can_be_written_again(store: Store) -> None:
    store.put("a/b/c", b"1", if_absent=True)
    store.delete(["a/b/c"])
    store.put("a/b/c", b"2", if_absent=True)
    assert store.get("a/b/c") == b"2"
