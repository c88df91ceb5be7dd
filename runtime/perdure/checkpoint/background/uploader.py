"""The process that uploads a trainer's part of a save while the trainer goes on.

`uploading` executes it, with the arena and two pipes. It ends with its trainer. One thread waits for orders and for
that end, another one uploads, so the end is noticed even while the store does not answer. It never decides by time that
a save has failed: the trainer kills it. No torch, no pickle.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from perdure.checkpoint.background.part import put_index, put_shard
from perdure.checkpoint.background.sealed import read_part, read_seal
from perdure.checkpoint.background.uploader_messages import (
    DURABLE,
    FAILED,
    MOVES,
    RELEASED,
    Lines,
    UploaderWord,
    UploadOrder,
    read_order,
    write_word,
)
from perdure.errors import Corrupt, PerdureError, StorageRefused, UserError, in_words
from perdure.store import Store, open_store

PRIORITY: Final = 10
"""Its priority: if both need a core, training gets nine tenths of it."""
LOOK_SECONDS: Final = 1.0
"""How often it looks whether its trainer lives, where a process forked by the trainer may hold the pipe."""
MOVES_SECONDS: Final = 30.0
"""How often it says that its upload moves: so seldom that the words fit in the pipe if the trainer reads none for
hours."""
_CHUNK: Final = 65536
_AUTOGROUP: Final = Path("/proc/self/autogroup")


class Uploads:
    """Uploads the ordered parts. Keeps the store's connections from one save to the next."""

    def __init__(self, arena: int, words: int) -> None:
        self._arena = arena
        self._words = words
        self._stores: dict[str, Store] = {}

    def carry_out(self, order: UploadOrder) -> None:
        """Upload a part, and report the result."""
        name = order.seal.name
        try:
            seconds = self._upload(order)
        except (StorageRefused, UserError) as error:
            self._tell(UploaderWord(FAILED, name, why=str(error), refused=True))
        except PerdureError as error:
            self._tell(UploaderWord(FAILED, name, why=str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer has to know
            self._tell(UploaderWord(FAILED, name, why=f"the uploader cannot go on: {in_words(error)}"))
        else:
            self._tell(UploaderWord(DURABLE, name, seconds))

    def _upload(self, order: UploadOrder) -> float:
        begun, seal = time.monotonic(), order.seal
        if (found := read_seal(self._arena)) != seal:
            holds = f"save {found.name} of step {found.step}" if found else "no whole part"
            raise Corrupt(f"the arena holds {holds} instead of save {seal.name} of step {seal.step}")
        staged, position = read_part(self._arena, seal)
        store = self._store(order.root)
        sums = put_shard(store, order.folder, staged, seal.checksum, self._moving(seal.name))
        self._tell(UploaderWord(RELEASED, seal.name))
        put_index(store, order.folder, staged, sums, run=seal.run, position=position)
        return time.monotonic() - begun

    def _moving(self, name: str) -> Callable[[], None]:
        said = time.monotonic()

        def tell() -> None:
            nonlocal said
            if time.monotonic() - said >= MOVES_SECONDS:
                said = time.monotonic()
                self._tell(UploaderWord(MOVES, name))

        return tell

    def _store(self, root: str) -> Store:
        if root not in self._stores:
            self._stores[root] = open_store(root, os.environ)
        return self._stores[root]

    def _tell(self, word: UploaderWord) -> None:
        with suppress(BrokenPipeError):  # the trainer's end is noticed elsewhere
            os.write(self._words, write_word(word))


def wait_for_orders(orders: int, owner: int, take: queue.SimpleQueue[UploadOrder]) -> None:
    """Returns when the trainer has ended, or has closed its pipe."""
    lines, poll = Lines(), select.poll()
    poll.register(orders, select.POLLIN)
    while os.getppid() == owner:
        if not poll.poll(LOOK_SECONDS * 1000):
            continue
        data = os.read(orders, _CHUNK)
        if not data:
            return
        for line in lines.add(data):
            take.put(read_order(line))


def stand_back() -> None:
    """Leave the core to the trainer, and its signals too: a stop is the trainer's to see to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(PRIORITY)
    with suppress(OSError):  # a separate session may be a separate scheduling group, with its own priority
        _AUTOGROUP.write_text(str(PRIORITY))
    logging.getLogger("perdure.store").disabled = True  # the trainer has the same keys, and warns


def main() -> NoReturn:
    """The arguments: whether it dies with its parent's thread; three file descriptors; its owner's process id."""
    arena, orders, words, owner = map(int, sys.argv[2:6])
    stand_back()
    given: queue.SimpleQueue[UploadOrder] = queue.SimpleQueue()
    uploads = Uploads(arena, words)

    def work() -> None:
        while True:
            uploads.carry_out(given.get())

    threading.Thread(target=work, name="perdure-uploads", daemon=True).start()
    wait_for_orders(orders, owner, given)
    os._exit(0)  # whatever is under way
