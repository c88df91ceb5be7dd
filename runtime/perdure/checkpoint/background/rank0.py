"""Rank 0's requests to the store for a save in the background: they run in a thread while training goes on.

The thread decides nothing. Each request has one answer, which the main thread collects.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.checkpoint.background import events as ev
from perdure.checkpoint.upload import put_manifest
from perdure.errors import Corrupt, Fenced, in_words
from perdure.log.entry import ManifestRef
from perdure.log.objects import fetch, index_key
from perdure.log.position import Position
from perdure.log.writer import Writer
from perdure.store import Store

AGAIN_SECONDS: Final = 1.0
"""The pause before an append is sent again."""
INDEX_BYTES: Final = 2**30
"""An index object is smaller."""

Rank0Answer = ev.Prepared | ev.NotPrepared | ev.Appended | ev.NoAnswer | ev.CommitFenced


@dataclass(frozen=True)
class CopiedPart:
    """What one rank said of its part when it copied it."""

    size: int
    crc: str
    """Checksum of the shard's bytes."""


class CommitRequests:
    """The requests of one run's rank 0."""

    def __init__(self, store: Store, writer: Writer, writing: threading.Lock) -> None:
        """`writing` is held while the writer is used."""
        self._store = store
        self._writer = writer
        self._writing = writing
        self._answers: queue.SimpleQueue[Rank0Answer] = queue.SimpleQueue()
        self._manifests: dict[str, ManifestRef] = {}
        self._prepared = 0.0
        """How long the newest manifest took."""
        self.fenced: Fenced | None = None
        """Why this run may no longer write."""
        self.trouble = ""
        """Why the last append had no answer."""
        self.seconds = 0.0
        """How long the store took for the newest commit: its manifest and the last try of its entry. Training goes on
        meanwhile, and notices the answers later."""

    def answers(self) -> list[Rank0Answer]:
        """The answers since the last call."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def prepare(self, name: str, folder: str, parts: Sequence[CopiedPart], run: int, position: Position) -> None:
        """Read the index objects of all ranks, compare them with what was copied, and write the manifest."""

        def act() -> Rank0Answer:
            begun = time.monotonic()
            try:
                indexes = [self._index(folder, rank, part, run, position) for rank, part in enumerate(parts)]
                self._manifests[name] = put_manifest(self._store, folder, indexes, run, position)
            except Exception as error:  # noqa: BLE001 - whatever it is, the machine waits for an answer
                return ev.NotPrepared(name, in_words(error))
            self._prepared = time.monotonic() - begun
            return ev.Prepared(name)

        self._begin(act, lambda why: ev.NotPrepared(name, why))

    def _index(self, folder: str, rank: int, part: CopiedPart, run: int, position: Position) -> dict[str, Any]:
        key = index_key(folder, rank)
        try:
            body: dict[str, Any] = json.loads(fetch(self._store, key, INDEX_BYTES))
            shard, label = body["shard"], (body["run"], body["step"])
            found = CopiedPart(int(shard["size"]), str(shard["crc"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{key} cannot be read: {error!r}") from error
        if found != part or label != (run, position.step):
            raise Corrupt(f"{key} is of another save: {found} of run and step {label}, not {part}")
        return {name: body[name] for name in ("rank", "shard", "state", "objects")}

    def append(self, name: str, position: Position, *, final: bool, reason: str, again: bool) -> None:
        """Append the prepared commit to the log; `again` after a pause."""

        def no_answer(why: str) -> Rank0Answer:
            self.trouble = why
            return ev.NoAnswer(name)

        def act() -> Rank0Answer:
            if again:
                time.sleep(AGAIN_SECONDS)
            begun = time.monotonic()
            try:
                with self._writing:
                    made = self._writer.commit(position, self._manifests[name], final=final, reason=reason)
            except Fenced as error:
                self.fenced = error
                return ev.CommitFenced(name, str(error))
            except Exception as error:  # noqa: BLE001 - the same
                return no_answer(in_words(error))
            del self._manifests[name]
            self.seconds = self._prepared + time.monotonic() - begun
            return ev.Appended(name, made.seq)

        self._begin(act, no_answer)

    def beside(self, act: Callable[[], None]) -> str:
        """Run a function in its own thread. Returns why it was not begun, if no thread can be started."""
        try:
            threading.Thread(target=act, name="perdure-commit", daemon=True).start()
        except RuntimeError as error:  # at a limit of threads or of memory
            return f"no thread can be started: {error}"
        return ""

    def _begin(self, act: Callable[[], Rank0Answer], failed: Callable[[str], Rank0Answer]) -> None:
        if why := self.beside(lambda: self._answers.put(act())):
            self._answers.put(failed(why))
