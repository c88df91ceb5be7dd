"""`perdure store-check`: tests whether a store does what checkpoints need, in the root itself.

It writes only below `store-check-…/`, and deletes that at the end. The root may be empty: a storage administrator can
run it before the first job does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from awscrt.checksums import crc64nvme

from perdure.errors import StorageError
from perdure.store.protocol import KeyExists, NoSuchKey, Store

LARGE_BYTES: Final = 24 * 1024 * 1024 + 1
"""Large enough that the S3 store uploads it in parts."""
BLOCK_BYTES: Final = 8 * 1024 * 1024
WRITERS: Final = 8
"""How many threads write one key at the same time."""
SKEW_SECONDS: Final = 60.0
"""A larger difference between the clocks is a warning. S3 refuses requests whose time is off by 15 minutes."""
_TEXT: Final = b"0123456789"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: str
    problem: str = ""
    """The problem, and its remedy; empty if the store passed."""
    measured: str = ""
    """What the check measured, for people."""
    fatal: bool = True
    """Whether no job can use a store with this problem."""

    @property
    def text(self) -> str:
        """A line for people: "ok", "warning" or "FAILED", and why."""
        word = "ok" if not self.problem else "FAILED" if self.fatal else "warning"
        return f"{word:8} {self.check}: {self.problem or self.measured}"


class _CheckFailed(Exception):
    """The store did not do what checkpoints need; the message says how."""


class _Interrupted(Exception):
    """A writer fails in the middle of an object."""


def check(store: Store) -> Iterator[CheckResult]:
    """Runs the checks, and yields the result of each. A failing store is a result, not an exception."""
    folder = f"store-check-{os.urandom(4).hex()}/"
    checks: dict[str, Callable[[Store, str], str]] = {
        "write and read": _write_and_read,
        "conditional write": _conditional,
        "one winner among writers at once": _one_winner,
        "checksum": _checksum,
        "large object": _large,
        "list": _list,
        "delete": _delete,
        "unfinished uploads": _unfinished,
    }
    try:
        for name, act in checks.items():
            try:
                yield CheckResult(name, measured=act(store, f"{folder}{name.replace(' ', '-')}/"))
            except (_CheckFailed, StorageError, NoSuchKey) as error:
                yield CheckResult(name, problem=str(error))
        yield _conditional_large(store, f"{folder}conditional-large/a")
        yield _clock(store, f"{folder}clock")
    finally:
        with suppress(StorageError):
            store.delete(store.list(folder))


def _write_and_read(store: Store, folder: str) -> str:
    begun = time.monotonic()
    store.put(f"{folder}a", _TEXT)
    took = time.monotonic() - begun
    _expect(store.get(f"{folder}a"), _TEXT, "an object that was just written")
    _expect(store.get(f"{folder}a", start=2, length=3), _TEXT[2:5], "bytes 2 to 4 of an object")
    store.put(f"{folder}a", b"new")
    _expect(store.get(f"{folder}a"), b"new", "an object that was overwritten")
    return f"a small object is written in {took * 1000:.0f} ms"


def _conditional(store: Store, folder: str) -> str:
    key = f"{folder}a"
    store.put(key, b"first", if_absent=True)
    try:
        store.put(key, b"second", if_absent=True)
    except KeyExists:
        _expect(store.get(key), b"first", "an object that a conditional write found")
        return "an existing object is not overwritten"
    raise _CheckFailed(
        "If-None-Match: * is ignored, so two runs could both append to one log: use a store with conditional writes, "
        "or a newer version of this one"
    )


def _one_winner(store: Store, folder: str) -> str:
    key = f"{folder}a"

    def write(number: int) -> bool:
        try:
            store.put(key, str(number).encode(), if_absent=True)
        except KeyExists:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        winners = [number for number, won in enumerate(pool.map(write, range(WRITERS))) if won]
    if len(winners) != 1:
        raise _CheckFailed(f"{len(winners)} of {WRITERS} conditional writes of one key succeeded, instead of one")
    _expect(store.get(key), str(winners[0]).encode(), "the object of the write that succeeded")
    return f"one of {WRITERS}"


def _checksum(store: Store, folder: str) -> str:
    store.put(f"{folder}a", _TEXT)
    info = store.head(f"{folder}a")
    if info is None or info.size != len(_TEXT):
        raise _CheckFailed(f"the store reports a size of {info and info.size} for an object of {len(_TEXT)} bytes")
    if info.crc is None:
        return "the store keeps none: damage is found when a commit is read"
    if info.crc != f"{crc64nvme(_TEXT):016x}":
        raise _CheckFailed(f"the store says that it is {info.crc}, but it is {crc64nvme(_TEXT):016x}")
    return "the store keeps the CRC64NVME of each object"


def _large(store: Store, folder: str) -> str:
    data = memoryview(os.urandom(LARGE_BYTES))
    begun = time.monotonic()
    store.put_stream(f"{folder}a", (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)), len(data))
    wrote = time.monotonic() - begun
    found = bytearray(LARGE_BYTES + 1)
    begun = time.monotonic()
    read = store.get_into(f"{folder}a", memoryview(found))
    took = time.monotonic() - begun
    if read != LARGE_BYTES or found[:read] != data:
        raise _CheckFailed(f"{read} of {LARGE_BYTES} bytes were read back, or they differ from what was written")
    _expect(store.get(f"{folder}a", start=BLOCK_BYTES - 2, length=4), bytes(data[BLOCK_BYTES - 2 :][:4]), "a range")
    return f"written at {_rate(wrote)}, read at {_rate(took)}"


def _conditional_large(store: Store, key: str) -> CheckResult:
    """Every large shard is written so. Its name is never given twice, so that a store without this loses nothing."""
    name, data = "conditional write of a large object", memoryview(bytes(LARGE_BYTES))
    try:
        for _ in range(2):
            blocks = (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))
            store.put_stream(key, blocks, len(data), if_absent=True)
    except KeyExists:
        return CheckResult(name, measured="an existing object is not overwritten")
    except StorageError as error:
        return CheckResult(name, problem=str(error))
    problem = "If-None-Match: * is ignored where an upload in parts ends: harmless, as each shard has its own name"
    return CheckResult(name, problem=problem, fatal=False)


def _list(store: Store, folder: str) -> str:
    keys = [f"{folder}{number:02}" for number in range(12)]
    for key in keys:
        store.put(key, b"")
    if (found := store.list(folder)) != keys:
        if sorted(found) == keys:
            return "complete, but not sorted by key: finding the end of a log takes a list of all its keys"
        raise _CheckFailed(f"{len(keys)} objects were written, but the list right afterwards has {len(found)}")
    if store.list(folder, after=keys[4], limit=3) != keys[5:8]:
        raise _CheckFailed("a list of three keys after a given one has other keys")
    return "new objects are listed at once, sorted by key"


def _delete(store: Store, folder: str) -> str:
    store.put(f"{folder}a", _TEXT)
    store.delete([f"{folder}a", f"{folder}b"])
    if store.head(f"{folder}a") is not None or store.list(folder):
        raise _CheckFailed("a deleted object is still there")
    return "deleted objects are gone, and deleting a missing object is no error"


def _unfinished(store: Store, folder: str) -> str:
    """A writer that fails aborts its own upload. What it could not abort the store refuses here, too."""

    def interrupted() -> Iterator[memoryview]:
        yield memoryview(bytes(BLOCK_BYTES))
        raise _Interrupted

    key = f"{folder}a"
    with suppress(_Interrupted):
        store.put_stream(key, interrupted(), LARGE_BYTES)
    store.sweep(-math.inf, lambda found: found == key)
    return "can be listed and removed"


def _clock(store: Store, key: str) -> CheckResult:
    try:
        store.put(key, b"")
        info = store.head(key)
    except StorageError as error:
        return CheckResult("clock", problem=str(error), fatal=False)
    if info is None or info.modified is None:
        return CheckResult("clock", measured="the store reports no time")
    skew = info.modified - time.time()
    if abs(skew) > SKEW_SECONDS:
        way = "ahead of" if skew > 0 else "behind"
        problem = f"the store's clock is {abs(skew):.0f} s {way} this machine's: synchronize both by NTP"
        return CheckResult("clock", problem=problem, fatal=False)
    return CheckResult("clock", measured=f"within {SKEW_SECONDS:.0f} s of this machine's")


def _expect(found: bytes, expected: bytes, what: str) -> None:
    if found != expected:
        raise _CheckFailed(f"{what} reads as {found[:20]!r} instead of {expected[:20]!r}")


def _rate(seconds: float) -> str:
    return f"{LARGE_BYTES / 2**20 / max(seconds, 1e-9):.0f} MiB/s"
