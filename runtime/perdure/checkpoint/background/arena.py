"""Separate memory for a rank's part of a commit, which is uploaded from there while training goes on.

It is an anonymous file. The trainer maps what it has allocated of it, because a copy takes half the time of a write.
The process that uploads only reads it: what it sums up is what it sends, and a file that was cut short does not kill
it. It has a label only while it holds a whole part: the label is removed before the first byte is overwritten, and
written last, in one write. So a process killed in between leaves nothing, and two steps are never mixed.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from awscrt.checksums import combine_crc64nvme, crc64nvme

from perdure.checkpoint.background.sealed import PAGE_BYTES, Seal, write_label, write_rest
from perdure.checkpoint.upload import BLOCK_BYTES, Staged
from perdure.errors import Corrupt
from perdure.host.descriptors import above_standard
from perdure.host.memory import free_memory
from perdure.log.entry import checksum
from perdure.log.position import Position

STROKE_BYTES: Final = 256 * 1024
"""Bytes that are summed up and then copied: few enough to be in a core's cache still."""
STROKE_PIECES: Final = 512
"""The most small tensors in one call; the kernel takes 1024."""
FEW_PIECES: Final = 16
"""Up to this many are copied one by one; more cost less in one call of the kernel."""
PREPARED_BYTES: Final = 4 * 1024 * 1024
"""Bytes allocated at once in the background: a copy that begins waits for no more than that."""
MARGIN_BYTES: Final = 256 * 1024 * 1024
"""Memory that stays for the trainer and for the process that uploads, beside the arena."""

_LEAST: Final = 10
"""The priority of the thread that allocates."""
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python's mmap does not name yet."""


_CHANGED: Final = "the state has changed, or has got other memory, while it was copied"


class StateChanged(Corrupt):
    """The state changed while it was copied during training."""


@dataclass(frozen=True)
class Filled:
    """A copied part: the seal, and all that its index needs, so that the arena is not read again."""

    seal: Seal
    staged: Staged
    sums: tuple[str, ...]
    """Checksums of the shard's blocks."""

    @property
    def size(self) -> int:
        """Size of the shard in bytes."""
        return self.seal.size

    @property
    def checksum(self) -> str:
        """Checksum of the shard."""
        return self.seal.checksum


def need_for(size: int, held: int) -> tuple[int, int | None]:
    """Bytes that an arena of `size` that has `held` already needs beyond them, with the margin; and how many are free,
    None if unknown."""
    return max(size - held, 0) + MARGIN_BYTES, free_memory()


def room_for(size: int, held: int = 0) -> int:
    """How many bytes are missing for an arena of `size` that has `held` already; 0 if there is room, or if that is
    unknown."""
    free = free_memory()
    return 0 if free is None else max(size - held + MARGIN_BYTES - free, 0)


class Arena:
    """The trainer's side: fills it, one part at a time. For one thread."""

    def __init__(self) -> None:
        """Takes no memory yet. OSError if there is no place for a file without a name."""
        self.fd = above_standard(_nameless())
        self._mapped: mmap.mmap | None = None
        self._allocated = 0
        """Up to which byte the mapping has memory: a write beyond could end this process."""
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
        """Bytes of memory that are missing to hold this part; 0 if there is room, or if that is unknown."""
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
        if sys.platform == "linux":  # where each thread has a priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST)
        with suppress(OSError):  # no room among this process's addresses: what is not mapped is written
            self._map(end)
        for at in range(0, end, PREPARED_BYTES):
            if self._stop.is_set():
                return
            size = min(PREPARED_BYTES, end - at)
            try:
                os.posix_fallocate(self.fd, at, size)
            except OSError:
                return  # filling it will say so
            if self._mapped is not None and at + size > self._allocated:
                _populate(self._mapped, at, size)
                self._allocated = at + size

    def _map(self, end: int) -> None:
        if self._mapped is None or len(self._mapped) < end:
            self._unmap()
            os.ftruncate(self.fd, max(self.size, end))
            self._mapped = mmap.mmap(self.fd, end)

    def _unmap(self) -> None:
        mapped, self._mapped, self._allocated = self._mapped, None, 0
        if mapped is not None:
            mapped.close()

    def _write(self, views: list[memoryview], at: int) -> None:
        end = at + sum(map(len, views))
        if self._mapped is None or end > self._allocated or len(views) > FEW_PIECES:
            _put(self.fd, views, at)
            return
        whole = np.frombuffer(self._mapped, np.uint8)
        for view in views:
            whole[at : at + len(view)] = np.frombuffer(view, np.uint8)
            at += len(view)

    def _sum_and_write(self, views: list[memoryview], at: int, total: int) -> int:
        """Returns the checksum `total` with that of these."""
        for view in views:
            total = crc64nvme(view, total)
        self._write(views, at)
        return total

    def _take(self, views: list[memoryview], at: int, total: int) -> int:
        """Copy and sum up memory that the script may free meanwhile. Only the kernel reads it, because it reports
        missing memory instead of ending this process."""
        size = sum(map(len, views))
        try:
            _put(self.fd, views, at)
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise StateChanged(_CHANGED) from error
            raise
        if self._mapped is not None and at + size <= len(self._mapped):
            with memoryview(self._mapped) as mapped, mapped[at : at + size] as arrived:
                return int(crc64nvme(arrived, total))
        return int(crc64nvme(os.pread(self.fd, size, at), total))

    def _end_preparing(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def prepared(self) -> None:
        """Wait until the thread has allocated everything."""
        if self._thread is not None:
            self._thread.join()

    def fill(
        self,
        staged: Staged,
        *,
        uid: str,
        run: int,
        name: str,
        position: Position,
        threads: int = 1,
        whole: str = "",
    ) -> Filled:
        """Copy a staged live state, sum it up on the way, and seal it. Returns once training may change the state.

        `threads` copy at once. `whole`: the checksum of the state where training goes on meanwhile: StateChanged if the
        copy has another one. OSError if there is no memory or no disk for it; after any error the arena holds nothing.
        """
        self._end_preparing()
        self.unseal()
        sums = _Sums(staged.size)
        _copy(self._take if whole else self._sum_and_write, staged.pieces(), PAGE_BYTES, sums, threads)
        copied, blocks = sums.result()
        if whole and copied != whole:
            raise StateChanged(_CHANGED)
        rest = write_rest(staged, position)
        _put(self.fd, [memoryview(rest)], PAGE_BYTES + staged.size)
        place = (position.step, staged.rank, staged.world)
        seal = Seal(uid, run, name, *place, staged.size, copied, len(rest), checksum(rest))
        _put(self.fd, [memoryview(write_label(seal))], 0)
        return Filled(seal, replace(staged, pieces=_gone), blocks)

    def unseal(self) -> None:
        """Remove the label: the arena then holds nothing. Its memory stays for the next part."""
        _put(self.fd, [memoryview(bytes(PAGE_BYTES))], 0)

    def shrink(self, size: int) -> None:
        """Give back the memory beyond a shard of `size`. Only after the part in it is released."""
        self._end_preparing()
        self._unmap()
        self.unseal()
        os.ftruncate(self.fd, min(self.size, PAGE_BYTES + size))

    def close(self) -> None:
        """Give all memory back, once no other process has it."""
        self._end_preparing()
        _open.discard(self)
        self.leave()

    def leave(self) -> None:
        """Give back this process's memory of it, without informing the thread that allocates."""
        with suppress(BufferError):  # forked while another thread was copying: what is mapped stays as long as it lives
            self._unmap()
        os.close(self.fd)
        self.fd = -1


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
        """The checksum of everything, and of each block."""
        if self._total != self._size:
            raise Corrupt(
                f"{self._total} bytes were staged instead of {self._size}: the state changed while it was read"
            )
        if self._filled:
            self._end_block()
        return f"{self._whole:016x}", tuple(self._blocks)


def _copy(
    take: Callable[[list[memoryview], int, int], int],
    pieces: Iterable[memoryview],
    start: int,
    sums: _Sums,
    threads: int,
) -> None:
    def copy(views: list[memoryview], at: int) -> tuple[int, int]:
        total = 0
        for stroke, offset in _strokes(views, STROKE_BYTES):
            total = take(stroke, start + at + offset, total)
        return total, sum(map(len, views))

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


def _populate(mapped: mmap.mmap, at: int, size: int) -> None:
    """Otherwise the first copy would allocate it, page by page."""
    if sys.platform == "linux":
        with suppress(OSError):  # a kernel that cannot
            mapped.madvise(_POPULATE_WRITE, at, size)


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
        arena.leave()


os.register_at_fork(after_in_child=_leave_to_parent)
