"""Writes a staged snapshot to the store. Knows bytes and blocks, no tensors: nothing here needs torch.

Staging defines the bytes. This module writes them, and computes each block's checksum on the way. So a thread or
process other than the training one can write a staged snapshot. Called by save.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from awscrt.checksums import combine_crc64nvme

from perdure.checkpoint.manifest import Index, Item, ShardObject, index_body, refer_to, write_index, write_manifest
from perdure.log.entry import ManifestRef, checksum
from perdure.log.objects import index_key, manifest_key, shard_key
from perdure.log.position import Position
from perdure.store import Store

BLOCK_BYTES: Final = 8 * 1024 * 1024
_ALIGNMENT: Final = 8


def head_of(tensors: Mapping[str, Any]) -> bytes:
    """The beginning of a safetensors file, before its data: `tensors` has type, shape and offsets of each, by name."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


_EMPTY: Final = head_of({})


@dataclass(frozen=True)
class Staged:
    """One rank's part of a commit, ready to be written: plain values, and a way to read the shard's bytes."""

    rank: int
    world: int
    size: int
    """Size of the shard in bytes."""
    items: tuple[Item, ...]
    state: Any
    """This rank's own state, encoded."""
    objects: Any
    """Other state, encoded; rank 0's only."""
    pieces: Callable[[], Iterable[memoryview]]
    """The shard's bytes, in order, in pieces of any size. Those of a live state are valid while it does not change."""

    def blocks(self) -> Iterator[memoryview]:
        """The shard's bytes in blocks of BLOCK_BYTES, the last may be shorter. A block is valid until the next one."""
        return in_blocks(self.pieces(), max(1, min(BLOCK_BYTES, self.size)))


def without_tensors(rank: int, world: int, state: Any, objects: Any = None) -> Staged:
    """The part of a rank whose tensors another rank writes; `state` and `objects` are encoded."""
    return Staged(rank, world, len(_EMPTY), (), state, objects, lambda: [memoryview(_EMPTY)])


def put_part(store: Store, folder: str, staged: Staged, run: int, position: Position) -> dict[str, Any]:
    """Writes one rank's shard and index object. Returns the index, for the manifest."""
    key = shard_key(folder, staged.rank, staged.world)
    sums: list[str] = []
    store.put_stream(key, summed(staged.blocks(), sums), staged.size)
    index = index_of(staged, key, sums)
    store.put(index_key(folder, staged.rank), write_index(index, run, position))
    return index


def index_of(staged: Staged, key: str, sums: Sequence[str]) -> dict[str, Any]:
    """The index of a part whose shard is written under `key`, and whose blocks have these checksums."""
    crc = combine(sums, staged.size, BLOCK_BYTES)
    shard = ShardObject(key, staged.size, crc, BLOCK_BYTES, tuple(sums), staged.items)
    return index_body(Index(staged.rank, shard, staged.state, staged.objects))


def put_manifest(
    store: Store, folder: str, indexes: Sequence[dict[str, Any]], run: int, position: Position
) -> ManifestRef:
    """Writes the manifest of all ranks' parts. Returns the reference for the log entry."""
    data, key = write_manifest(indexes, run, position), manifest_key(folder)
    store.put(key, data)
    return refer_to(key, data)


def in_blocks(pieces: Iterable[memoryview], block_bytes: int) -> Iterator[memoryview]:
    """The same bytes in full blocks: views of the pieces where one holds a block, otherwise gathered in one buffer."""
    buffer = memoryview(bytearray(block_bytes))
    filled = 0
    for piece in pieces:
        left = piece
        while left:
            if not filled and len(left) >= len(buffer):
                yield left[: len(buffer)]
                left = left[len(buffer) :]
                continue
            taken = min(len(left), len(buffer) - filled)
            buffer[filled : filled + taken] = left[:taken]
            left, filled = left[taken:], filled + taken
            if filled == len(buffer):
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


def combine(blocks: Sequence[str], size: int, block_bytes: int) -> str:
    """The checksum of the whole object, computed from those of its blocks."""
    total, left = 0, size
    for block in blocks:
        length = min(block_bytes, left)
        total, left = combine_crc64nvme(total, int(block, 16), length), left - length
    return f"{total:016x}"


def summed(blocks: Iterable[memoryview], sums: list[str]) -> Iterator[memoryview]:
    """The blocks; adds the checksum of each to `sums` before it is taken."""
    for block in blocks:
        sums.append(checksum(block))
        yield block
