"""Sends a stream of blocks as parts of one size, several at once, with a limited number of buffers.

Several at once, because one connection is far from what a server can take. A limited number, because a pod sized for
training has no memory for a second copy of its state. Knows no S3; used by perdure.store.s3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WrongSize(Exception):
    """The blocks have another number of bytes than expected."""


def whole(blocks: Iterable[memoryview], size: int) -> bytearray:
    """All of a small stream. Raises WrongSize."""
    return next(_filled(blocks, size, Buffers(max(size, 1), 1)), bytearray())


def send(blocks: Iterable[memoryview], size: int, upload: Callable[[int, bytearray], T], buffers: Buffers) -> list[T]:
    """Calls `upload` for each part, with the part's number from 1, in other threads. Returns the results in order.

    Raises the error of `blocks` or of the first failing `upload`, or WrongSize, once no upload is running any more.
    """
    done: list[T] = []
    under_way: deque[tuple[Future[T], bytearray]] = deque()

    def finish_oldest() -> None:
        future, part = under_way.popleft()
        done.append(future.result())
        buffers.give_back(part)

    with ThreadPoolExecutor(buffers.count, thread_name_prefix="perdure-upload") as pool:
        for number, part in enumerate(_filled(blocks, size, buffers), start=1):
            under_way.append((pool.submit(upload, number, part), part))
            while len(under_way) >= buffers.count:
                finish_oldest()
        while under_way:
            finish_oldest()
    return done


class Buffers:
    """At most `count` buffers of `size` bytes, made when they are needed."""

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = count
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(self.size)

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) == self.size:  # the last part was shortened
            self._free.append(buffer)


def _filled(blocks: Iterable[memoryview], size: int, buffers: Buffers) -> Iterator[bytearray]:
    """Full buffers, and a shortened one with the rest. The caller gives each back."""
    buffer, filled, total = buffers.take(), 0, 0
    for block in blocks:
        total += len(block)
        if total > size:
            raise WrongSize(f"{total} bytes came instead of {size}")
        left = block
        while left:
            taken = min(len(left), buffers.size - filled)
            memoryview(buffer)[filled : filled + taken] = left[:taken]
            left, filled = left[taken:], filled + taken
            if filled == buffers.size:
                yield buffer
                buffer, filled = buffers.take(), 0
    if total != size:
        raise WrongSize(f"{total} bytes came instead of {size}")
    if filled:
        del buffer[filled:]
        yield buffer
