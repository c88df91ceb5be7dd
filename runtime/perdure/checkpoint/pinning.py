"""Pins a commit by hand, so that no training deletes it: `perdure pin ROOT[@ENTRY]`, and `perdure unpin`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from perdure.checkpoint.history import Listed, find
from perdure.checkpoint.inspect import Line
from perdure.checkpoint.retention import LITTER_SECONDS
from perdure.errors import StorageError, UserError
from perdure.log.kept import deletion_marks, put_pin, read_kept, release_pin, remove_pin
from perdure.store import Store
from perdure.wire import CommitSelector

DELETION_SECONDS: Final = 30.0
"""How long to wait for a process that is about to delete the commit. A deletion is a handful of requests."""
LOOK_SECONDS: Final = 1.0


def pin(store: Store, wanted: CommitSelector, *, seconds: float = DELETION_SECONDS) -> Iterator[Line]:
    """Pin the commit, the newest if none is wanted. One line. Pinning again changes nothing.

    Raises:
        UserError: There is no such commit, or a training deleted it in this moment.
        StorageError: Another process began deleting it and made no progress for `seconds`. The pin stays; only the same
            command, later, tells whether it came in time.

    """
    found = find(store, wanted)
    put_pin(store, found.commit.seq)
    deadline = time.monotonic() + seconds
    while _is_being_deleted(store, found.event.manifest.folder):
        if time.monotonic() > deadline:
            raise StorageError(
                f"entry {found.commit.seq} of {store.uri} is pinned, but a training was about to delete it and has not "
                f"gone on for {seconds:.0f} s: run the command again to learn whether the pin came in time"
            )
        time.sleep(LOOK_SECONDS)
    if store.head(found.event.manifest.key) is None:
        remove_pin(store, found.commit.seq)
        raise UserError(f"entry {found.commit.seq} of {store.uri} is gone: a training deleted it in this moment")
    yield _line(found, "pinned: no training deletes it until `perdure unpin`", pinned=True)


def unpin(store: Store, wanted: CommitSelector) -> Iterator[Line]:
    """Give the commit back to retention, which deletes it next time if it is old enough. One line.

    Raises:
        UserError: There is no such commit, or it is not pinned by hand.

    """
    found = find(store, wanted)
    if found.commit.seq not in read_kept(store).pinned:
        by_script = f": its pin {' and '.join(found.commit.pins)} is the script's" if found.commit.pins else ""
        raise UserError(f"entry {found.commit.seq} of {store.uri} is not pinned by hand{by_script}")
    release_pin(store, found.commit.seq)
    yield _line(found, "not pinned by hand any more", pinned=False)


def _is_being_deleted(store: Store, folder: str) -> bool:
    """Ignores the mark of a process that has made no progress for a day."""
    infos = [info for info in map(store.head, deletion_marks(store, folder)) if info]
    return any(info.modified is None or info.modified > time.time() - LITTER_SECONDS for info in infos)


def _line(found: Listed, what: str, *, pinned: bool) -> Line:
    seq, step = found.commit.seq, found.commit.step
    return Line(f"entry {seq}, step {step}: {what}", {"seq": seq, "step": step, "pinned": pinned})
