"""Reads the append-only log: its head, its chain, its commits.

The log is the truth about training. Nothing here writes; perdure.log.writer appends. No torch, because the command line
reads logs too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.errors import Corrupt
from perdure.log.entry import PREFIX, Committed, Entry, Opened, checksum, key_of, read_entry, seq_of
from perdure.log.images import CommitStamp
from perdure.store import NoSuchKey, Store


@dataclass(frozen=True)
class Slot:
    """The entry at one number of the log."""

    seq: int
    crc: str
    """Checksum of the exact bytes, readable or not: the next entry's `prev`."""
    entry: Entry | None
    problem: str = ""
    """Why `entry` is None."""


@dataclass(frozen=True)
class Head:
    """The end of the log."""

    seq: int
    crc: str
    entry: Entry | None
    """The newest entry that can be read, or None if there is none."""
    skipped: tuple[str, ...] = ()
    """Unreadable entries above `entry` and foreign keys under log/, to be reported."""


@dataclass(frozen=True)
class ReadPosition:
    """How far a process has read the log: the links for the next entry."""

    seq: int
    crc: str | None
    last_commit: int | None
    last_opened: int | None

    def after(self, slot: Slot) -> ReadPosition:
        """The position after the next entry."""
        if slot.entry is None:
            return ReadPosition(slot.seq, slot.crc, self.last_commit, self.last_opened)
        return ReadPosition(slot.seq, slot.crc, slot.entry.newest_commit, slot.entry.newest_opened)


@dataclass(frozen=True)
class Commits:
    """Committed entries, newest first, and unreadable ones between them.

    Each iteration reads the log again, one entry at a time, so it may be repeated after a StorageError.
    """

    log: Log
    newest: int | None

    @property
    def stamps(self) -> Iterator[CommitStamp]:
        """The runs and steps of commits that can be read."""
        for entry in (slot.entry for slot in self):
            if entry and isinstance(entry.event, Committed):
                yield CommitStamp(entry.uid, entry.run, entry.event.step)

    def step_below(self, step: int) -> int:
        """The step of the newest commit below this step; 0 without one."""
        return next((stamp.step for stamp in self.stamps if stamp.step < step), 0)

    def __iter__(self) -> Iterator[Slot]:
        seq = self.newest
        while seq:
            slot = self.log.linked(seq)
            if slot.entry is None or isinstance(slot.entry.event, Committed):
                yield slot
            # If an entry's link is unreadable, try the entries below one by one.
            seq = slot.entry.last_commit if slot.entry else seq - 1


@dataclass(frozen=True)
class EveryCommit:
    """All commits, those that a chosen origin has bypassed too: newest first, each with whether it was bypassed."""

    log: Log
    newest: int | None
    opened: int | None
    """The newest Opened."""

    def __iter__(self) -> Iterator[tuple[Slot, bool]]:
        linked, line, opened, below = self.newest or 0, self.newest or 0, self.opened, math.inf
        while seq := max(linked, self._bypassed(opened, linked, below)):
            slot, below = self.log.linked(seq), seq
            if slot.entry is None or isinstance(slot.entry.event, Committed):
                yield slot, seq > line
            linked = (slot.entry.last_commit or 0) if slot.entry else seq - 1
            line = linked if seq <= line else line
            opened = slot.entry.newest_opened if slot.entry else opened

    def _bypassed(self, opened: int | None, above: int, below: float) -> int:
        """The newest commit below `below` that an Opened above this number has bypassed; 0 without one.

        An unreadable entry that was read before has hidden which Opened comes next.
        """
        while opened and opened > above:
            slot = self.log.slot(opened)
            entry = slot.entry if slot else None
            if entry is None:
                return 0
            origin = entry.event.origin if isinstance(entry.event, Opened) else None
            if origin and origin.bypasses and origin.bypasses < below:
                return origin.bypasses
            opened = entry.last_opened
        return 0


class Log:
    """The entries under a store's root."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def head(self) -> Head | None:
        """The end of the log; None if it is empty. Usually one LIST of one key."""
        keys = self.store.list(PREFIX, limit=1)
        if not keys:
            return None
        seq = seq_of(keys[0])
        # Some stores list without order, and an entry may have been added since. The number after it shows both.
        if seq is None or self.store.head(key_of(seq + 1)):
            return self._head_by_full_list()
        slot = self.slot(seq)
        if slot is None or slot.entry is None:
            return self._head_by_full_list()
        return Head(slot.seq, slot.crc, slot.entry)

    def slot(self, seq: int) -> Slot | None:
        """The entry at `seq`; None if there is none."""
        try:
            data = self.store.get(key_of(seq))
        except NoSuchKey:
            return None
        return slot_of(seq, data)

    def linked(self, seq: int) -> Slot:
        """The entry at `seq`: unreadable if there is none, or if the entry after it has a checksum of other bytes."""
        slot = self.slot(seq)
        if slot is None:
            return _missing(seq)
        after = self.slot(seq + 1)
        if after and after.entry and after.entry.prev != slot.crc:
            return _changed(slot)
        return slot

    def entries(self, newest: int) -> Iterator[Slot]:
        """The entries from `newest` down to 1, each checked against the `prev` of the one after it."""
        expected: str | None = None
        for seq in range(newest, 0, -1):
            slot = self.slot(seq)
            if slot is None:
                slot = _missing(seq)
            elif expected is not None and slot.crc != expected:
                slot = _changed(slot)
            yield slot
            expected = slot.entry.prev if slot.entry else None

    def last_of(self, uid: str, entry: Entry | None) -> Entry | None:
        """The newest entry of `uid` at or below `entry`, as far as the Opened entries show."""
        while entry and entry.uid != uid:
            entry = self._readable(entry.last_opened)
        return entry

    def _readable(self, seq: int | None) -> Entry | None:
        while seq:
            slot = self.slot(seq)
            if slot and slot.entry:
                return slot.entry
            seq -= 1
        return None

    def _head_by_full_list(self) -> Head | None:
        numbers: list[int] = []
        skipped: list[str] = []
        for key in self.store.list(PREFIX):
            seq = seq_of(key)
            if seq is None:
                skipped.append(f"{key} is not an entry of this log: remove it")
            else:
                numbers.append(seq)
        top: Slot | None = None
        for seq in sorted(numbers, reverse=True):
            slot = self.slot(seq)
            if slot is None:
                continue
            top = top or slot
            if slot.entry:
                return Head(top.seq, top.crc, slot.entry, tuple(skipped))
            skipped.append(slot.problem)
        return Head(top.seq, top.crc, None, tuple(skipped)) if top else None


def slot_of(seq: int, data: bytes) -> Slot:
    """Reads these bytes as the entry at this number."""
    try:
        return Slot(seq, checksum(data), read_entry(seq, data))
    except Corrupt as error:
        return Slot(seq, checksum(data), None, str(error))


def place_of(head: Head) -> ReadPosition:
    """The position after the last entry."""
    entry = head.entry
    return ReadPosition(
        head.seq, head.crc or None, entry.newest_commit if entry else None, entry.newest_opened if entry else None
    )


def _missing(seq: int) -> Slot:
    return Slot(seq, "", None, f"log entry {seq} is missing: exclude log/ from what deletes objects there")


def _changed(slot: Slot) -> Slot:
    return Slot(slot.seq, slot.crc, None, f"log entry {slot.seq} was changed after entry {slot.seq + 1} was written")
