"""A stream of blocks as parts of one size, a few of them on their way at once, in as many buffers and no more.

Several at once because one connection is far from what a server can take; a bounded number because a pod that was
sized for training has no room for its state once more. Knows no S3; used by perdure.store.s3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WrongSize(Exception):
    """The blocks are not as many bytes as was said."""


def whole(blocks: Iterable[memoryview], size: int) -> bytearray:
    """All of a small stream. WrongSize."""
    return next(_filled(blocks, size, Buffers(max(size, 1), 1)), bytearray())


def send(blocks: Iterable[memoryview], size: int, upload: Callable[[int, bytearray], T], buffers: Buffers) -> list[T]:
    """What `upload` returned for each part, in order; it is called with the part's number, from 1, in other threads.

    Raises what `blocks` or the first failing `upload` raises, or WrongSize, once no part is on its way any more.
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
        if len(buffer) == self.size:  # a last part was cut
            self._free.append(buffer)


def _filled(blocks: Iterable[memoryview], size: int, buffers: Buffers) -> Iterator[bytearray]:
    """Full buffers, and what is left in one that is cut to it. Each is the caller's until it gives it back."""
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
