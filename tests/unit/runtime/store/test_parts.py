"""A stream in parts: their order, their number at once, and what happens when one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.store.parts import Buffers, WrongSize, send, whole


def in_one_buffer(data: bytes, lengths: Iterable[int]) -> Iterator[memoryview]:
    """The data as blocks that are valid only until the next is asked for."""
    buffer, start = bytearray(len(data) or 1), 0
    for length in [*lengths, len(data)]:
        block = data[start : start + length]
        start += len(block)
        buffer[: len(block)] = block
        yield memoryview(buffer)[: len(block)]
        buffer[: len(block)] = bytes(len(block))


@settings(deadline=None)
@given(
    data=st.binary(max_size=60),
    lengths=st.lists(st.integers(0, 20), max_size=8),
    part=st.integers(1, 25),
    at_once=st.integers(1, 4),
)
def test_parts_put_together_are_the_stream(data: bytes, lengths: list[int], part: int, at_once: int) -> None:
    sent = send(in_one_buffer(data, lengths), len(data), lambda n, got: (n, bytes(got)), Buffers(part, at_once))
    assert b"".join(got for _, got in sent) == data
    assert [number for number, _ in sent] == list(range(1, len(sent) + 1))
    assert all(len(got) == part for _, got in sent[:-1])
    assert bytes(whole(in_one_buffer(data, lengths), len(data))) == data


def test_no_more_parts_are_on_their_way_than_there_are_buffers() -> None:
    at_once, lock, seen, under_way = 3, threading.Lock(), set[int](), [0, 0]

    def upload(_: int, data: bytearray) -> None:
        with lock:
            seen.add(id(data))
            under_way[0] += 1
            under_way[1] = max(under_way)
        with lock:
            under_way[0] -= 1

    buffers = Buffers(10, at_once)
    send((memoryview(bytes(10)) for _ in range(50)), 500, upload, buffers)
    assert under_way[1] <= at_once
    assert len(seen) <= at_once + 1


def test_a_part_that_fails_ends_the_stream_and_nothing_is_on_its_way_then() -> None:
    running, asked = set[int](), 0

    def upload(number: int, _: bytearray) -> None:
        running.add(number)
        try:
            if number == 2:
                raise OSError("part 2")
        finally:
            running.discard(number)

    def blocks() -> Iterator[memoryview]:
        nonlocal asked
        for _ in range(1000):
            asked += 1
            yield memoryview(bytes(10))

    with pytest.raises(OSError, match="part 2"):
        send(blocks(), 10_000, upload, Buffers(10, 2))
    assert not running
    assert asked < 10


@pytest.mark.parametrize("size", [19, 21])
def test_another_size_than_said_is_an_error(size: int) -> None:
    with pytest.raises(WrongSize, match=f"bytes came instead of {size}"):
        send(in_one_buffer(bytes(20), [7, 7]), size, lambda *_: None, Buffers(8, 2))
