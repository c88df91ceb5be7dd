"""Writes a rank's part under the name of its save, which another process may have written before, or writes now.

A save has one name and one content. Nothing is overwritten: an equal object that exists counts as written by this save.
A part whose bytes differ from those that were copied is not written at all. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.manifest import ShardObject, write_index
from perdure.checkpoint.upload import BLOCK_BYTES, Staged, combine, index_of, summed
from perdure.errors import Corrupt
from perdure.log.objects import index_key, shard_key
from perdure.log.position import Position
from perdure.store import KeyExists, NoSuchKey, Store


def put_shard(
    store: Store, folder: str, staged: Staged, expected: str, moves: Callable[[], None] = lambda: None
) -> tuple[str, ...]:
    """Write the shard, whose bytes must have the `expected` checksum. Returns the checksums of its blocks. Calls
    `moves` whenever the store has taken another block.

    Corrupt if they have another one, or if another shard is there.
    """
    key = shard_key(folder, staged.rank, staged.world)
    sums: list[str] = []
    try:
        store.put_stream(key, _verified(staged, sums, expected, moves), staged.size, if_absent=True)
    except KeyExists:
        _compare(store, ShardObject(key, staged.size, expected, BLOCK_BYTES, tuple(sums), staged.items))
    return tuple(sums)


def put_index(store: Store, folder: str, staged: Staged, sums: Sequence[str], *, run: int, position: Position) -> None:
    """Write the index of a shard that is written. Corrupt if another index is there."""
    index = index_of(staged, shard_key(folder, staged.rank, staged.world), sums)
    key, text = index_key(folder, staged.rank), write_index(index, run, position)
    try:
        store.put(key, text, if_absent=True)
    except KeyExists:
        try:
            found = store.get(key, length=len(text) + 1)
        except NoSuchKey:
            found = b""
        if found != text:
            raise Corrupt(f"{key} exists already, with another index than this save's") from None


def _verified(staged: Staged, sums: list[str], expected: str, moves: Callable[[], None]) -> Iterator[memoryview]:
    """The blocks; the last one only if all of them sum up to what is expected, so that no object appears otherwise."""
    left = staged.size
    for block in summed(staged.blocks(), sums):
        left -= len(block)
        if not left and (found := combine(sums, staged.size, BLOCK_BYTES)) != expected:
            raise Corrupt(f"what was copied has changed since: its checksum is {found}, {expected} was copied")
        yield block
        moves()


def _compare(store: Store, shard: ShardObject) -> None:
    """Corrupt unless this very shard is in the store. Reads it where the store knows no checksums."""
    info = store.head(shard.key)
    if info is None or info.size != shard.size or (info.crc or shard.crc) != shard.crc:
        raise Corrupt(f"{shard.key} exists already, with another shard than this save's")
    if info.crc is None:
        for _ in read_blocks(store, shard):
            pass
