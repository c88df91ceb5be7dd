"""Reads the bytes of a commit's shards, verified block by block. Needs no torch; called by load and by inspect."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from perdure.checkpoint.manifest import ShardObject
from perdure.checkpoint.upload import combine
from perdure.errors import Corrupt
from perdure.log.entry import checksum
from perdure.store import NoSuchKey, Store

AHEAD: Final = 3
"""How many blocks are requested ahead, because a distant store answers after a while."""


class Span(Protocol):
    """A range of a shard's bytes."""

    @property
    def start(self) -> int:
        """The first one."""
        ...

    @property
    def end(self) -> int:
        """The first one behind it."""
        ...


def read_blocks(
    store: Store, shard: ShardObject, spans: Iterable[Span] | None = None
) -> Iterator[tuple[int, memoryview]]:
    """The start and bytes of each block, in order. The bytes are valid until the next block is requested.

    With `spans`, only blocks that hold a byte of any of them. Corrupt names what is damaged, with the found
    and expected value.
    """
    every = range(0, shard.size, shard.block_bytes)
    if len(every) != len(shard.blocks):
        raise Corrupt(f"{shard.key}: its manifest has {len(shard.blocks)} block checksums instead of {len(every)}")
    if (found := combine(shard.blocks, shard.size, shard.block_bytes)) != shard.crc:
        raise Corrupt(f"{shard.key}: its checksum in the manifest is {shard.crc}, that of its blocks {found}")
    starts = every if spans is None else [every[number] for number in _holding(shard, spans)]
    # As many buffers as are ever in use, which are reused: memory that is new to the process is slower than a disk.
    room = min(shard.size, shard.block_bytes) + 1  # one byte more, because the object may have grown
    buffers = [memoryview(bytearray(room)) for _ in range(min(len(starts), AHEAD + 1))]
    if len(starts) < 2:
        yield from ((start, _block(store, shard, start, buffers[0])) for start in starts)
        return
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="perdure-read") as pool:
        waiting: deque[tuple[int, Future[memoryview]]] = deque()
        try:
            for number, start in enumerate(starts):
                buffer = buffers[number % len(buffers)]
                waiting.append((start, pool.submit(_block, store, shard, start, buffer)))
                if len(waiting) > AHEAD:
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        finally:
            for _, future in waiting:
                future.cancel()


def _holding(shard: ShardObject, spans: Iterable[Span]) -> list[int]:
    """The numbers of the blocks that hold a byte of any of them."""
    size = shard.block_bytes
    return sorted({number for span in spans for number in range(span.start // size, -(-span.end // size))})


def _first(waiting: deque[tuple[int, Future[memoryview]]]) -> tuple[int, memoryview]:
    start, future = waiting.popleft()
    return start, future.result()


def _block(store: Store, shard: ShardObject, start: int, buffer: memoryview) -> memoryview:
    length = min(shard.block_bytes, shard.size - start)
    last = start + length == shard.size
    try:
        read = store.get_into(shard.key, buffer[: length + last], start=start)
    except NoSuchKey:
        raise Corrupt(f"{shard.key} is missing") from None
    if read != length:
        size = f"{start + read} bytes" if read < length else f"more than {shard.size} bytes"
        raise Corrupt(f"{shard.key} has {size} instead of {shard.size}")
    data = buffer[:length]
    expected, found = shard.blocks[start // shard.block_bytes], checksum(data)
    if found != expected:
        raise Corrupt(
            f"{shard.key} is damaged in the block that begins at byte {start}: its checksum is {found}, {expected} was "
            f"written; it holds {_names(shard, start, start + length)}"
        )
    return data


def _names(shard: ShardObject, start: int, end: int) -> str:
    names = [item.name for item in shard.items if item.start < end and item.end > start]
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names) or "no tensor"
