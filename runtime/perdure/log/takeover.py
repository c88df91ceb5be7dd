"""One party's access to the log in a hand-over: reads the outcome, or decides it.

The decider appends `Opened` with `takesOver`; a voted party without an answer appends `Refused`. Both use the number
after the last entry that the party has read, so the store's conditional PUT lets exactly one be first. Commits that the
older run's rank 0 makes meanwhile are skipped.

Called by the shell of a hand-over, never by a writer: each run has its own writer, which reads nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

from perdure.errors import StorageError
from perdure.log.entry import Entry, Event, ObjectRef, Opened, Refused, key_of, write_entry
from perdure.log.reader import Log, ReadPosition, Slot, place_of, slot_of
from perdure.log.verdict import Verdict, verdict
from perdure.store import KeyExists


class TakeoverLog:
    """One party's view of the log during one attempt. Not thread-safe.

    Every method raises StorageError if the store did not answer, and may then be called again.
    """

    def __init__(self, log: Log, *, uid: str, run: int, next_run: int, place: ReadPosition | None = None) -> None:
        """`place` is the place up to which the older run's rank 0 has read the log."""
        self.log = log
        self.entry: Slot | None = None
        """The entry that decided, once it has been read or written."""
        self._uid = uid
        self._run = run
        self._next = next_run
        self._place = place
        self._said = Verdict.OPEN
        self._id = os.urandom(16).hex()
        self._sent: dict[type[Event], bytes] = {}

    def look(self) -> Verdict:
        """Read the new entries and return the verdict."""
        while self._said is Verdict.OPEN:
            if self._place is None:
                self._begin()
                continue
            slot = self.log.slot(self._place.seq + 1)
            if slot is None:
                break
            self._read(slot)
        return self._said

    def open(self, world: int, step: int, writer: str, members: ObjectRef | None = None) -> Verdict:
        """Append Opened for rank 0 of the newer run, whose entries are marked `writer`: one PUT.

        `members` are its ranks' pods and nodes. OPEN means that a commit of the older run was first: call it again.
        """
        resumes = self._read_position().last_commit
        return self._append(Opened(world, resumes, self._run, step, members=members), self._next, writer)

    def refuse(self) -> Verdict:
        """Append Refused, unless another entry is there already: one PUT. OPEN as in `open`."""
        return self._append(Refused(self._next), self._run, self._id)

    def _append(self, event: Event, run: int, writer: str) -> Verdict:
        place = self._read_position()
        if self._said is not Verdict.OPEN:
            return self._said
        seq, kind = place.seq + 1, type(event)
        # An earlier PUT may still arrive: then it must have these very bytes.
        data = self._sent.get(kind) or write_entry(self._entry(place, event, run, writer))
        self._sent[kind] = data
        slot: Slot | None = slot_of(seq, data)
        try:
            self.log.store.put(key_of(seq), data, if_absent=True)
        except KeyExists:
            slot = self.log.slot(seq)
        if slot is None:
            raise StorageError(f"log entry {seq} exists and cannot be read: try again")
        self._read(slot)
        return self._said

    def _read_position(self) -> ReadPosition:
        while self._place is None and self._said is Verdict.OPEN:
            self._begin()
        return self._place or ReadPosition(0, None, None, None)

    def _begin(self) -> None:
        """Begin after the head. The newest entry of each run shows what the entries below have decided."""
        head = self.log.head()
        if head is None or head.entry is None or head.entry.seq != head.seq:
            raise StorageError(f"the end of the log of {self.log.store.uri} cannot be read: try again")
        self._place = place_of(head)
        for entry in reversed(list(self._newest_of_each_run(head.entry))):
            self._judge(Slot(entry.seq, "", entry))

    def _newest_of_each_run(self, entry: Entry | None) -> Iterator[Entry]:
        """The entries that decide, from the newest down to the older run's: each later run's first one, and the entry
        right below it."""
        while entry:
            yield entry
            if entry.uid == self._uid and entry.run <= self._run:
                return
            first = self._readable(entry.newest_opened)
            if first and first.seq != entry.seq:
                yield first
            entry = self._readable(first.seq - 1) if first else None

    def _readable(self, seq: int | None) -> Entry | None:
        slot = self.log.slot(seq) if seq else None
        return slot.entry if slot else None

    def _read(self, slot: Slot) -> None:
        if slot.entry is None:
            raise StorageError(f"{slot.problem}: it is not known what became of run {self._next}")
        self._place = (self._place or ReadPosition(0, None, None, None)).after(slot)
        self._sent.clear()
        self._judge(slot)

    def _judge(self, slot: Slot) -> None:
        if slot.entry is None or self._said is not Verdict.OPEN:
            return
        self._said = verdict([slot.entry], uid=self._uid, run=self._run, next_run=self._next)
        if self._said is not Verdict.OPEN:
            self.entry = slot

    def _entry(self, place: ReadPosition, event: Event, run: int, writer: str) -> Entry:
        return Entry(
            seq=place.seq + 1,
            prev=place.crc,
            uid=self._uid,
            run=run,
            writer=writer,
            last_commit=place.last_commit,
            last_opened=place.last_opened,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            event=event,
        )
