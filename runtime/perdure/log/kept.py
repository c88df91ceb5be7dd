"""Commits that retention keeps, as it keeps those that the script has pinned: users have pinned them by hand
(`perdure pin ROOT@ENTRY`), or a process reads them.

    pins/0000000000000012.pinned          entry 12 is pinned
    pins/0000000000000012.reading-41c2    a reader holds it, and renewed this mark within READING_SECONDS
    pins/0000000000000012.released        it was pinned or read, and retention has not handled it yet

A user may pin while a training deletes. So each first records what it is about to do, and only then looks for the
other's record. The deleting process puts a mark into the commit's folder and lists the pins. The pinning process puts
the pin, and looks for such marks and then for the manifest. In every order, one of the two sees the other
(tests/unit/runtime/checkpoint/test_pinning.py tries all).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from perdure.store import Store

_PREFIX: Final = "pins/"
READING_SECONDS: Final = 15 * 60.0
"""How long a mark of a reader counts that does not renew it. The clocks of store and trainer differ by less."""

_PIN: Final = re.compile(r"pins/(\d{16})\.(pinned|released)")
_READER: Final = re.compile(r"pins/(\d{16})\.reading-[0-9a-f]+")


@dataclass(frozen=True)
class KeptCommits:
    """The pins and releases of a root, and who reads."""

    pinned: frozenset[int] = frozenset()
    """The entry numbers of the pinned commits."""
    released: frozenset[int] = frozenset()
    """The entry numbers of commits that were unpinned or read, and that retention has not handled yet."""
    read: frozenset[int] = frozenset()
    """The entry numbers of commits that a process reads."""
    left_marks: frozenset[str] = frozenset()
    """The keys of readers that have ended without removing their mark."""

    @property
    def held(self) -> frozenset[int]:
        """The entry numbers of commits that must not be deleted."""
        return self.pinned | self.read


def read_kept(store: Store) -> KeptCommits:
    """One listing, and a request for each reader."""
    keys = store.list(_PREFIX)
    found = [mark.groups() for key in keys if (mark := _PIN.fullmatch(key))]
    readers = {key: int(mark[1]) for key in keys if (mark := _READER.fullmatch(key))}
    left = frozenset(key for key in readers if not _is_renewed(store, key))
    pinned = frozenset(int(seq) for seq, kind in found if kind == "pinned")
    read = frozenset(seq for key, seq in readers.items() if key not in left)
    released = frozenset(int(seq) for seq, kind in found if kind == "released") - pinned - read
    return KeptCommits(pinned, released, read, left)


def _is_renewed(store: Store, key: str) -> bool:
    info = store.head(key)
    return info is not None and (info.modified is None or info.modified > time.time() - READING_SECONDS)


def pin_keys(store: Store) -> list[str]:
    """The keys of all pins and releases."""
    return [key for key in store.list(_PREFIX) if _PIN.fullmatch(key)]


def put_pin(store: Store, seq: int) -> None:
    """`perdure.checkpoint.pinning` checks whether the pin holds."""
    store.put(_key(seq, "pinned"), b"{}")
    store.delete([_key(seq, "released")])


def release_pin(store: Store, seq: int) -> None:
    """Give the commit back to retention."""
    put_released(store, [seq])
    store.delete([_key(seq, "pinned")])


def remove_pin(store: Store, seq: int) -> None:
    """Remove the pin without a trace."""
    store.delete([_key(seq, "pinned")])


def mark_reading(store: Store, seq: int) -> str:
    """Record that this process reads the commit; returns the mark's key. `renew_reading` writes it again."""
    key = f"{_key(seq, 'reading')}-{os.urandom(8).hex()}"
    renew_reading(store, key)
    return key


def renew_reading(store: Store, key: str) -> None:
    """The reader with this mark still reads."""
    store.put(key, b"{}")


def forget_readers(store: Store, keys: Collection[str]) -> None:
    """Remove the marks of readers that have ended."""
    if keys:
        store.delete(sorted(keys))


def put_released(store: Store, seqs: Collection[int]) -> None:
    """Have retention look at these again, although it would pass them by."""
    for seq in sorted(seqs):
        store.put(_key(seq, "released"), b"{}")


def forget_released(store: Store, seqs: Collection[int]) -> None:
    """Forget that these commits were released: retention has handled them."""
    if seqs:
        store.delete([_key(seq, "released") for seq in sorted(seqs)])


def mark_deletion(store: Store, folder: str) -> str:
    """Record that this process is about to delete the commit in this folder; returns the mark's key."""
    key = f"{_deletions(folder)}{os.urandom(8).hex()}"
    store.put(key, b"{}")
    return key


def deletion_marks(store: Store, folder: str) -> list[str]:
    """The marks of all processes that are, or were, about to delete that commit."""
    return store.list(_deletions(folder))


def _deletions(folder: str) -> str:
    return f"{folder}deleting-"


def _key(seq: int, kind: str) -> str:
    return f"{_PREFIX}{seq:016d}.{kind}"
