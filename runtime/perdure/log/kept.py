"""Commits that users have pinned by hand: `perdure pin ROOT@ENTRY`. Retention keeps them, as it keeps the script's.

    pins/0000000000000012.pinned      entry 12 is pinned
    pins/0000000000000012.released    it was, and retention has not handled it yet

A user may pin while a training deletes. So each first records what it is about to do, and only then looks for the
other's record. The deleting process puts a mark into the commit's folder and lists the pins. The pinning process puts
the pin, and looks for such marks and then for the manifest. In every order, one of the two sees the other
(tests/unit/runtime/checkpoint/test_pinning.py tries all).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from perdure.store import Store

PREFIX: Final = "pins/"
_KEY: Final = re.compile(r"pins/(\d{16})\.(pinned|released)")


@dataclass(frozen=True)
class Kept:
    """The pins and releases of a root."""

    pinned: frozenset[int] = frozenset()
    """The entry numbers of the pinned commits."""
    released: frozenset[int] = frozenset()
    """Those that were unpinned and that retention has not handled yet."""


def read_kept(store: Store) -> Kept:
    """One listing."""
    found = [mark.groups() for key in store.list(PREFIX) if (mark := _KEY.fullmatch(key))]
    pinned = frozenset(int(seq) for seq, kind in found if kind == "pinned")
    return Kept(pinned, frozenset(int(seq) for seq, kind in found if kind == "released") - pinned)


def put_pin(store: Store, seq: int) -> None:
    """`perdure.checkpoint.pinning` checks whether the pin holds."""
    store.put(_key(seq, "pinned"), b"{}")
    store.delete([_key(seq, "released")])


def release_pin(store: Store, seq: int) -> None:
    """Give the commit back to retention."""
    store.put(_key(seq, "released"), b"{}")
    store.delete([_key(seq, "pinned")])


def remove_pin(store: Store, seq: int) -> None:
    """Remove the pin without a trace."""
    store.delete([_key(seq, "pinned")])


def forget_released(store: Store, seqs: Collection[int]) -> None:
    """After retention has handled these."""
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
    return f"{PREFIX}{seq:016d}.{kind}"
