"""Keeps a commit from retention while this process reads it.

The reader writes a mark beside the pins, writes it again while it reads, and removes it (perdure.log.kept). A reader
that is killed leaves a mark that counts for a quarter of an hour more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from perdure.console import warn
from perdure.errors import StorageError
from perdure.log.kept import forget_readers, mark_reading, renew_reading
from perdure.store import Store

RENEW_SECONDS: Final = 60.0


@contextmanager
def reading(store: Store, seq: int) -> Iterator[None]:
    """No training deletes this commit within the block, unless it had begun before.

    If the store refuses the mark, as with read-only credentials, the commit is read without one, with a message.
    """
    try:
        mark = mark_reading(store, seq)
    except StorageError as why:
        warn(
            f"entry {seq} of {store.uri} is read without a mark in the store, so its training may delete it meanwhile: "
            f"{why}"
        )
        yield
        return
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(store, mark, ended), name="perdure-reading", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(StorageError):  # it counts for a quarter of an hour more
            forget_readers(store, [mark])


def _renew(store: Store, mark: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_SECONDS):
        with suppress(StorageError):
            renew_reading(store, mark)
