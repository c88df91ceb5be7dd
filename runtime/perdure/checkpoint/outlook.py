"""Predicts what a run would begin from: opens the log as usual, in an overlay that writes nothing.

It does not detect damaged tensors. Called by perdure.session.describing and perdure.session.preview.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.manifest import Manifest, fetch_manifest
from perdure.checkpoint.opening import writer_of
from perdure.errors import Corrupt, StorageError
from perdure.log.entry import Committed, Entry
from perdure.log.position import Position
from perdure.log.reader import Log, Slot
from perdure.log.writer import NotYet
from perdure.store import Store, open_origin
from perdure.store.overlay import Overlay
from perdure.wire.settings import Settings


@dataclass(frozen=True)
class StartOutlook:
    """What a run would begin from."""

    run: int
    """The run's number."""
    entry: Entry | None
    """The entry of the commit that it would resume; None for a fresh start."""
    store: Store
    """The root of that commit."""
    goal: Any
    """The goal that an earlier run reached, or None."""

    @property
    def event(self) -> Committed | None:
        """The commit's event."""
        return self.entry.event if self.entry and isinstance(self.entry.event, Committed) else None

    @property
    def position(self) -> Position | None:
        """Where training would continue."""
        return Position(self.event.step, self.event.epoch, self.event.cursors) if self.event else None

    def manifest(self) -> Manifest | None:
        """The commit's manifest, from the store. Raises Corrupt or StorageError."""
        return fetch_manifest(self.store, self.event) if self.event else None


def look_ahead(settings: Settings, store: Store) -> StartOutlook:
    """What a run with these settings would begin from. Raises the errors of its opening."""
    resume = writer_of(settings, Overlay(store)).try_open(settings.world, wait_over=True)
    if isinstance(resume, NotYet):
        raise StorageError(f"{store.uri}: {resume.reason}: try again")
    goal = resume.completed.goal if resume.completed else None
    origin = resume.origin
    there = open_origin(origin.uri, os.environ) if origin and origin.uri else store
    slots: Iterable[Slot] = [Log(there).linked(origin.seq)] if origin else resume.commits
    return StartOutlook(resume.run, _newest(there, slots), there, goal)


def _newest(store: Store, slots: Iterable[Slot]) -> Entry | None:
    """The first commit with a manifest, as a run would choose it. Raises Corrupt if there are only others."""
    passed = ""
    for slot in slots:
        entry = slot.entry
        if entry and isinstance(entry.event, Committed):
            if store.head(entry.event.manifest.key):
                return entry
            passed = passed or f"commit {slot.seq} of step {entry.event.step}: {entry.event.manifest.key} is missing"
        else:
            passed = passed or slot.problem
    if passed:
        raise Corrupt(f"{store.uri} has commits and none can be used: {passed}")
    return None
