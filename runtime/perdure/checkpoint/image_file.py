"""An image as bytes: a state, or a part of one, in a file, laid out like a shard, with a commit's text beside it.

    magic (8) · FORMAT (8) · size of the body (8) · size of the header (8) · checksum of the header (8) · body ·
    header (JSON)

The magic is written last, so a file that begins with it is complete. A second image may follow behind the first, of the
next step (perdure.loop.last_step). Knows no tensors. Written by a session that has lost a peer, read by the next one.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from awscrt.checksums import crc64nvme

from perdure.checkpoint.manifest import Item, read_item
from perdure.checkpoint.upload import BLOCK_BYTES, Staged, combine, head_of
from perdure.errors import Corrupt
from perdure.log.entry import checksum
from perdure.log.images import ImageOffer, Stamp
from perdure.log.position import Position
from perdure.wire.channel import IMAGE_MAGIC

FORMAT: Final = 2
"""An agent outlives its trainers, and the next one may be of another version."""

_NUMBERS: Final = struct.Struct("<QQQQ")
_BODY: Final = len(IMAGE_MAGIC) + _NUMBERS.size


@dataclass(frozen=True)
class Label:
    """What an image says about itself, beside its state."""

    stamp: Stamp
    position: Position
    crc: str
    """Checksum of what is equal on all ranks that hold the same part."""
    alike: tuple[str, ...]
    """Random generators that drew the same numbers on all ranks at the beginning."""
    of_lost: Any
    """What a rank continues with whose own state is lost, as far as this rank knows; encoded."""
    ranks: tuple[Any, ...] = ()
    """Each rank's own state, encoded, if the ranks had exchanged it at that place: then none of it is lost."""
    part: int = 0
    """Which part of the state it is: perdure.log.images.ImageOffer."""
    parts: int = 1
    """How many there are."""
    layout: str = ""
    """Checksum of how the whole state is laid out."""
    bound: bool = False
    """Whether a rank's own state counts on as many ranks alone, and only with that of all others: open accumulators."""


def write_image(
    path: Path, label: Label, staged: Staged, stands: Callable[[], bool], begin: int = 0, *, whole: str = ""
) -> int:
    """Writes an image to the path, replacing its content from `begin` on: 0, or where another image ends. Returns where
    this one ends; 0 if it is not left. OSError if there is no room.

    Calls `stands` after reading everything. If the state has changed meanwhile, nothing is left; also if `whole` is
    given and the body has another checksum. The image is never complete before that, because the writer may be killed
    at any moment. Only the kernel reads the state: memory that the script frees meanwhile is EFAULT, and kills nobody.
    """
    file = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(file, begin)
        at = begin + _BODY
        for piece in staged.pieces():
            at = _put(file, piece, at)
        sums = _sums(file, begin + _BODY, at)
        body = {**asdict(label), "items": [asdict(item) for item in staged.items], "blocks": sums}
        header = json.dumps({**body, "objects": staged.objects, "state": staged.state}).encode()
        end = _put(file, memoryview(header), at)
        numbers = _NUMBERS.pack(FORMAT, staged.size, len(header), crc64nvme(header))
        _put(file, memoryview(numbers), begin + len(IMAGE_MAGIC))
        if not stands() or whole not in ("", combine(sums, staged.size, BLOCK_BYTES)):
            os.ftruncate(file, begin)
            return 0
        _put(file, memoryview(IMAGE_MAGIC), begin)
        return end
    finally:
        os.close(file)


@dataclass(frozen=True)
class ImageTensor:
    """A tensor of an image, or a box of one."""

    key: str
    """Its name in the body, a safetensors file."""
    entry: Mapping[str, Any]
    """What the body's header says of it."""
    item: Item
    data: memoryview

    @property
    def width(self) -> int:
        """The bytes of an element. Those with the widest come first in a safetensors file, so that all are aligned."""
        count: int = math.prod(self.entry["shape"])
        return self.item.size // max(1, count)


class Image:
    """An image that was left, verified."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        """`begin` is where it begins in the file. Corrupt if it was changed, is incomplete, or has another format;
        OSError if it cannot be read."""
        file = os.open(path, os.O_RDONLY)
        try:
            self._bytes = memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))[begin:]
        except ValueError:
            raise Corrupt(f"the image at {path} is empty") from None
        finally:
            os.close(file)
        if bytes(self._bytes[: len(IMAGE_MAGIC)]) != IMAGE_MAGIC or len(self._bytes) < _BODY:
            raise Corrupt(f"the image at {path} is not whole")
        number, self.size, length, crc = _NUMBERS.unpack_from(self._bytes, len(IMAGE_MAGIC))
        if number != FORMAT:
            raise Corrupt(f"the image at {path} has format {number}, and this version of perdure reads {FORMAT}")
        header = self._bytes[_BODY + self.size : _BODY + self.size + length]
        if crc64nvme(header) != crc:
            raise Corrupt(f"the header of the image at {path} was changed after it was written")
        body = json.loads(bytes(header))
        stamp, position, ranks = Stamp(**body["stamp"]), Position(**body["position"]), tuple(body["ranks"])
        whose = body["part"], body["parts"], body["layout"], body.get("bound", False)
        self.label = Label(stamp, position, body["crc"], tuple(body["alike"]), body["of_lost"], ranks, *whose)
        self.items = tuple(map(read_item, body["items"]))
        self.objects: Any = body["objects"]
        """Encoded."""
        self.state: Any = body["state"]
        """The own state of the image's rank, encoded."""
        self.end = begin + _BODY + self.size + length
        """Where it ends in the file."""
        if [checksum(block) for block in self.blocks()] != body["blocks"]:
            raise Corrupt(f"the image at {path} was changed after it was written")

    def offer(self, holder: int) -> ImageOffer:
        """The image as the next run's choice sees it."""
        label = self.label
        return ImageOffer(holder, label.stamp, label.crc, label.part, label.parts, label.layout, label.bound)

    def tensors(self) -> Iterator[ImageTensor]:
        """What the body holds, in order."""
        body = self._bytes[_BODY : _BODY + self.size]
        length = int.from_bytes(body[:8], "little")
        header = json.loads(bytes(body[8 : 8 + length]))
        header.pop("__metadata__")
        for (key, entry), item in zip(header.items(), self.items, strict=True):
            yield ImageTensor(key, entry, item, body[item.start : item.end])

    def blocks(self) -> Iterator[memoryview]:
        """The body, as a shard's blocks."""
        end = _BODY + self.size
        for at in range(_BODY, end, BLOCK_BYTES):
            yield self._bytes[at : min(at + BLOCK_BYTES, end)]


def joined(images: Sequence[Image]) -> tuple[int, tuple[Item, ...], Callable[[], Iterable[memoryview]]]:
    """The bodies of images of different parts as one shard: its size, its items, and a way to read its bytes."""
    if len(images) == 1:
        return images[0].size, images[0].items, images[0].blocks
    found = [one for image in images for one in image.tensors()]
    found.sort(key=lambda one: -one.width)
    header, end = dict[str, Any](), 0
    for one in found:
        start, end = end, end + one.item.size
        header[one.key] = {**one.entry, "data_offsets": [start, end]}
    head = head_of(header)
    items = tuple(replace(one.item, start=len(head) + header[one.key]["data_offsets"][0]) for one in found)
    return len(head) + end, items, lambda: [memoryview(head), *(one.data for one in found)]


def read_images(path: Path) -> Iterator[Image]:
    """The images that a process has left there: one, or two of different steps. Corrupt and OSError as above, at the
    first one; whatever follows counts only if it is complete."""
    image = Image(path)
    yield image
    if path.stat().st_size > image.end:
        with suppress(Corrupt):
            yield Image(path, image.end)


def _sums(file: int, begin: int, end: int) -> list[str]:
    """The checksums of the blocks between these places of the file."""
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        return [checksum(view[at : min(at + BLOCK_BYTES, end)]) for at in range(begin, end, BLOCK_BYTES)]


def _put(file: int, data: memoryview, at: int) -> int:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
    return at
