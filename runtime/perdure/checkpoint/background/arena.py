"""Memory of its own for a rank's part of a commit, which is uploaded from there while training goes on.

    label (a page) · the shard's bytes · the rest of the part (JSON)

It is an anonymous file that is only written and read, never mapped: a forked worker of a data loader gets no page
tables of it, and a reader of one that was cut short finds less, and is not killed. A label stands in it only while it
holds a whole part: it is taken off before the first byte is overwritten, and written last, at once. So whoever is
killed between leaves nothing, and two steps are never mixed.

No torch: the process that uploads reads it, too. The trainer fills it at a hand-out.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Final

from awscrt.checksums import combine_crc64nvme, crc64nvme

from perdure.checkpoint.manifest import read_item
from perdure.checkpoint.upload import BLOCK_BYTES, Staged
from perdure.errors import Corrupt
from perdure.host.memory import free_memory
from perdure.log.entry import checksum
from perdure.log.position import Position

PAGE_BYTES: Final = 4096
"""Of the label, so that a shard begins on a page of its own."""
STROKE_BYTES: Final = 256 * 1024
"""How much is summed up and then copied: it is still in a core's cache when it is copied."""
STROKE_PIECES: Final = 512
"""At most so many small tensors in one stroke; the kernel takes 1024."""
PREPARED_BYTES: Final = 4 * 1024 * 1024
"""How much is allocated at once in the background: a copy that begins waits for no more than that."""
MARGIN_BYTES: Final = 256 * 1024 * 1024
"""What is left to the trainer and to the process that uploads, beside the arena."""

_MAGIC: Final = b"PERDUREA"
_NUMBERS: Final = struct.Struct("<QQ")
_LABEL: Final = len(_MAGIC) + _NUMBERS.size
_LEAST: Final = 10
"""The priority of the thread that allocates."""


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
    """Of the shard's bytes, as they were when they were copied."""
    rest: int
    """Size of the rest of the part in bytes."""
    rest_checksum: str


@dataclass(frozen=True)
class Filled:
    """A part that was copied: the seal, and what its index is made of, without another look at the arena."""

    seal: Seal
    staged: Staged
    sums: tuple[str, ...]
    """Checksums of the shard's blocks."""


def room_for(size: int, held: int = 0) -> int:
    """How many bytes are missing for an arena of `size` that has `held` already; 0: there is room, or nobody knows."""
    free = free_memory()
    return 0 if free is None else max(size - held + MARGIN_BYTES - free, 0)


class Arena:
    """The trainer's side: fills it, one part at a time. For one thread."""

    def __init__(self) -> None:
        """Takes no memory yet. OSError if there is no place for a file without a name."""
        self.fd = _nameless()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        _open.add(self)

    @property
    def size(self) -> int:
        """How far it reaches."""
        return os.fstat(self.fd).st_size

    @property
    def held(self) -> int:
        """Bytes of memory that it takes."""
        return os.fstat(self.fd).st_blocks * 512

    def missing(self, staged: Staged) -> int:
        """Bytes of memory that are missing to hold this part; 0 if there is room, or if nobody knows."""
        return room_for(PAGE_BYTES + staged.size, self.held)

    def prepare(self, size: int) -> None:
        """Allocate memory for a shard of `size` in a thread, because new memory costs a copy several times its time.

        Does nothing if there is no room. Returns at once.
        """
        self._end_preparing()
        end = PAGE_BYTES + size
        if not hasattr(os, "posix_fallocate") or room_for(end, self.held):
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._allocate, args=(end,), name="perdure-arena", daemon=True)
        self._thread.start()

    def _allocate(self, end: int) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST)
        for at in range(0, end, PREPARED_BYTES):
            if self._stop.is_set():
                return
            try:
                os.posix_fallocate(self.fd, at, min(PREPARED_BYTES, end - at))
            except OSError:
                return  # filling it will say so

    def _end_preparing(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def prepared(self) -> None:
        """Wait until the thread has allocated everything."""
        if self._thread is not None:
            self._thread.join()

    def fill(self, staged: Staged, *, uid: str, run: int, name: str, position: Position, threads: int = 1) -> Filled:
        """Copy a staged live state, sum it up on the way, and seal it. Returns once training may change the state.

        `threads` copy at once. OSError if there is no memory or no disk for it; after any error the arena holds
        nothing.
        """
        self._end_preparing()
        self.unseal()
        sums = _Sums(staged.size)
        _copy(self.fd, staged.pieces(), PAGE_BYTES, sums, threads)
        whole, blocks = sums.result()
        rest = _rest(staged, position)
        _put(self.fd, [memoryview(rest)], PAGE_BYTES + staged.size)
        place = (position.step, staged.rank, staged.world)
        seal = Seal(uid, run, name, *place, staged.size, whole, len(rest), checksum(rest))
        _put(self.fd, [memoryview(_label(seal))], 0)
        return Filled(seal, replace(staged, pieces=_gone), blocks)

    def unseal(self) -> None:
        """Take the label off: the arena holds nothing. Its memory stays, for the next part."""
        _put(self.fd, [memoryview(bytes(PAGE_BYTES))], 0)

    def shrink(self, size: int) -> None:
        """Give back the memory beyond a shard of `size`. Only after the part in it is released."""
        self._end_preparing()
        self.unseal()
        os.ftruncate(self.fd, min(self.size, PAGE_BYTES + size))

    def close(self) -> None:
        """Give all memory back, once no other process has it."""
        self._end_preparing()
        _open.discard(self)
        os.close(self.fd)
        self.fd = -1


def read_seal(fd: int) -> Seal | None:
    """What an arena holds; None for nothing."""
    page = os.pread(fd, PAGE_BYTES, 0)
    if len(page) < PAGE_BYTES or not page.startswith(_MAGIC):
        return None
    length, crc = _NUMBERS.unpack_from(page, len(_MAGIC))
    text = page[_LABEL : _LABEL + length]
    if crc64nvme(text) != crc:
        return None
    return Seal(**json.loads(text))


def read_part(fd: int, seal: Seal) -> tuple[Staged, Position]:
    """The part in an arena, and its position. Its pieces are blocks, each valid until the next one.

    What was read is what was summed up: the bytes are copied once before they are. Corrupt if the rest of the part is
    not what the seal says; of the shard's bytes the caller knows the checksum.
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


class _Sums:
    """The checksums of a stream's blocks, from those of its parts, which never cross a block's end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: list[str] = []
        self._whole = self._block = 0
        self._total = self._filled = 0

    def add(self, crc: int, length: int) -> None:
        self._whole = combine_crc64nvme(self._whole, crc, length)
        self._block = combine_crc64nvme(self._block, crc, length)
        self._total, self._filled = self._total + length, self._filled + length
        if self._filled == BLOCK_BYTES:
            self._end_block()

    def _end_block(self) -> None:
        self._blocks.append(f"{self._block:016x}")
        self._block = self._filled = 0

    def result(self) -> tuple[str, tuple[str, ...]]:
        """Of everything, and of each block."""
        if self._total != self._size:
            raise Corrupt(
                f"{self._total} bytes were staged instead of {self._size}: the state changed while it was read"
            )
        if self._filled:
            self._end_block()
        return f"{self._whole:016x}", tuple(self._blocks)


def _copy(fd: int, pieces: Iterable[memoryview], start: int, sums: _Sums, threads: int) -> None:
    def copy(views: list[memoryview], at: int) -> tuple[int, int]:
        total = size = 0
        for stroke, offset in _strokes(views, STROKE_BYTES):
            for view in stroke:
                total, size = crc64nvme(view, total), size + len(view)
            _put(fd, stroke, start + at + offset)
        return total, size

    if threads < 2:
        for views, at in _strokes(pieces, BLOCK_BYTES):
            sums.add(*copy(views, at))
        return
    waiting: deque[Future[tuple[int, int]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="perdure-copy") as pool:
        for views, at in _strokes(pieces, BLOCK_BYTES):
            waiting.append(pool.submit(copy, views, at))
            if len(waiting) > 2 * threads:  # what comes from a device lies in memory until it is copied
                sums.add(*waiting.popleft().result())
        while waiting:
            sums.add(*waiting.popleft().result())


def _strokes(pieces: Iterable[memoryview], most: int) -> Iterator[tuple[list[memoryview], int]]:
    """The bytes in lists of at most `most`, each with its place; none crosses the end of a block."""
    views: list[memoryview] = []
    at = length = 0
    for piece in pieces:
        left = piece
        while left:
            taken = min(len(left), most - length, BLOCK_BYTES - (at + length) % BLOCK_BYTES)
            views.append(left[:taken])
            left, length = left[taken:], length + taken
            if length == most or not (at + length) % BLOCK_BYTES or len(views) == STROKE_PIECES:
                yield views, at
                views, at, length = [], at + length, 0
    if views:
        yield views, at


def _rest(staged: Staged, position: Position) -> bytes:
    """Not by `asdict`, which takes as long as a copy of a small model."""
    body = {"items": [vars(item) for item in staged.items], "state": staged.state, "objects": staged.objects}
    where = {**vars(position), "cursors": dict(position.cursors)}
    return json.dumps({**body, "position": where}, separators=(",", ":"), allow_nan=False).encode()


def _label(seal: Seal) -> bytes:
    text = json.dumps(asdict(seal)).encode()
    label = _MAGIC + _NUMBERS.pack(len(text), crc64nvme(text)) + text
    if len(label) > PAGE_BYTES:
        raise ValueError(f"the label of save {seal.name} has {len(label)} bytes, there is room for {PAGE_BYTES}")
    return label.ljust(PAGE_BYTES, b"\0")


def _gone() -> Iterable[memoryview]:
    raise RuntimeError("the live state is not read any more: its copy is in the arena")


def _put(fd: int, views: list[memoryview], at: int) -> None:
    while views:
        written = os.pwritev(fd, views, at)
        at += written
        while views and written >= len(views[0]):
            written -= len(views[0])
            views = views[1:]
        if written:
            views = [views[0][written:], *views[1:]]


def _read(fd: int, buffer: memoryview, at: int) -> int:
    filled = 0
    while filled < len(buffer) and (read := os.preadv(fd, [buffer[filled:]], at + filled)):
        filled += read
    return filled


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("perdure-arena", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="perdure-arena-")
    os.unlink(path)  # noqa: PTH108 - a path of mkstemp's
    return fd


_open: weakref.WeakSet[Arena] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked process would keep the memory when its parent has ended."""
    for arena in list(_open):
        os.close(arena.fd)
        arena.fd = -1


os.register_at_fork(after_in_child=_leave_to_parent)
