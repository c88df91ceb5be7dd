"""The content of an arena, and how the trainer that fills it and the process that uploads from it read it.

    label (a page) · the shard's bytes · the rest of the part (JSON)

The label is magic (8) · FORMAT (8) · size of the seal (8) · checksum of the seal (8) · seal (JSON). A label stands in
it only while it holds a whole part. No torch, no NumPy: the process that uploads has neither.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from awscrt.checksums import crc64nvme

from perdure.checkpoint.manifest import read_item, write_item
from perdure.checkpoint.upload import BLOCK_BYTES, Staged
from perdure.errors import Corrupt
from perdure.log.entry import checksum
from perdure.log.position import Position

PAGE_BYTES: Final = 4096
"""Size of the label, so that a shard begins on its own page."""

FORMAT: Final = 1

_MAGIC: Final = b"PERDUREA"
_NUMBERS: Final = struct.Struct("<QQQ")
_LABEL: Final = len(_MAGIC) + _NUMBERS.size


@dataclass(frozen=True)
class Seal:
    """What an arena says of the part that it holds."""

    uid: str
    run: int
    name: str
    """The save's, equal on all ranks."""
    step: int
    rank: int
    world: int
    size: int
    """Size of the shard in bytes."""
    checksum: str
    """Checksum of the shard's bytes as they were copied."""
    rest: int
    """Size of the rest of the part in bytes."""
    rest_checksum: str


def write_label(seal: Seal) -> bytes:
    text = json.dumps(asdict(seal)).encode()
    label = _MAGIC + _NUMBERS.pack(FORMAT, len(text), crc64nvme(text)) + text
    if len(label) > PAGE_BYTES:
        raise ValueError(f"the label of save {seal.name} has {len(label)} bytes, there is room for {PAGE_BYTES}")
    return label.ljust(PAGE_BYTES, b"\0")


def write_rest(staged: Staged, position: Position) -> bytes:
    """Not by `asdict`, which takes as long as a copy of a small model."""
    body = {"items": [write_item(item) for item in staged.items], "state": staged.state, "objects": staged.objects}
    where = {**vars(position), "cursors": dict(position.cursors)}
    return json.dumps({**body, "position": where}, separators=(",", ":"), allow_nan=False).encode()


def read_seal(fd: int) -> Seal | None:
    """What an arena holds; None for nothing. Corrupt if it is of another format."""
    page = os.pread(fd, PAGE_BYTES, 0)
    if len(page) < PAGE_BYTES or not page.startswith(_MAGIC):
        return None
    number, length, crc = _NUMBERS.unpack_from(page, len(_MAGIC))
    if number != FORMAT:
        raise Corrupt(f"the arena has format {number}, and this version of perdure reads {FORMAT}")
    text = page[_LABEL : _LABEL + length]
    if crc64nvme(text) != crc:
        return None
    return Seal(**json.loads(text))


def read_part(fd: int, seal: Seal) -> tuple[Staged, Position]:
    """The part in an arena, and its position. Its pieces are blocks, each valid until the next one.

    Each block is copied before it is summed up, so that its checksum is of the bytes that are sent. Corrupt if the rest
    of the part is not what the seal says; the caller knows the checksum of the shard's bytes.
    """
    rest = bytearray(seal.rest)
    if (
        _read(fd, memoryview(rest), PAGE_BYTES + seal.size) != seal.rest
        or checksum(memoryview(rest)) != seal.rest_checksum
    ):
        raise Corrupt(f"the arena of save {seal.name} was changed after it was sealed: the rest of its part differs")
    body = json.loads(rest)
    items = tuple(map(read_item, body["items"]))

    def blocks() -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(BLOCK_BYTES, seal.size)))
        for at in range(0, seal.size, BLOCK_BYTES):
            block = buffer[: min(BLOCK_BYTES, seal.size - at)]
            if _read(fd, block, PAGE_BYTES + at) != len(block):
                raise Corrupt(f"the arena of save {seal.name} was cut short after it was sealed")
            yield block

    staged = Staged(seal.rank, seal.world, seal.size, items, body["state"], body["objects"], blocks)
    return staged, Position(**body["position"])


def _read(fd: int, buffer: memoryview, at: int) -> int:
    filled = 0
    while filled < len(buffer) and (read := os.preadv(fd, [buffer[filled:]], at + filled)):
        filled += read
    return filled
