"""When a run's commits were made, and when its ranks knew of them."""

from __future__ import annotations

import os
import time
from datetime import datetime

from perdure.checkpoint.state import NewCommit
from perdure.log.entry import Committed
from perdure.log.reader import Log
from perdure.store import open_store


class Commits:
    """Times of time.perf_counter(), by the step of the commit."""

    def __init__(self) -> None:
        self.known: dict[int, float] = {}
        """When this rank was told."""

    def told(self, commit: NewCommit) -> None:
        """The hook."""
        self.known[commit.step] = time.perf_counter()

    def made(self, root: str) -> dict[int, float]:
        """When the log got their entries. Those say it themselves, a write before they are there."""
        log, apart = Log(open_store(root, os.environ)), time.time() - time.perf_counter()
        head = log.head()
        entries = [slot.entry for slot in log.entries(head.seq if head else 0) if slot.entry]
        return {
            entry.event.step: datetime.fromisoformat(entry.time).timestamp() - apart
            for entry in entries
            if isinstance(entry.event, Committed)
        }
