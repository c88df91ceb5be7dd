"""Appends to the log: which run may append, and when.

A writer appends only right after the last entry that it has read itself, never by a listing. So another process's entry
is in its way exactly if the writer is fenced. The store's conditional PUT is the only lock.

Called by the session (opening, closing, completing) and by perdure.checkpoint.save (committing).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final, Never

from perdure.errors import Fenced, HandoverRefused, RootTakenOver, StorageError, UserError
from perdure.log.audit import doubts, refuse_data_without_log, refuse_unreadable_end
from perdure.log.entry import (
    REASON_CHARACTERS,
    Closed,
    Committed,
    Completed,
    Entry,
    Event,
    ImageRef,
    ManifestRef,
    ObjectRef,
    Opened,
    Origin,
    Refused,
    checksum,
    key_of,
    write_entry,
)
from perdure.log.images import Begun, ImageChoice, ImageOffer, choose
from perdure.log.members import put_members
from perdure.log.minimum_commit import refuse_older
from perdure.log.pins import Pins, pins_after
from perdure.log.position import Position
from perdure.log.reader import Commits, EveryCommit, Head, Log, ReadPosition, Slot, place_of
from perdure.store import KeyExists, Store
from perdure.wire import CommitRef, ResumeFrom
from perdure.wire.settings import LOCAL_UID, Member

OPENING_TRIES: Final = 8
"""How often `try_open` starts over because another process appended first."""


@dataclass(frozen=True)
class Resume:
    """The run is open; training continues from the newest usable commit of `commits`."""

    run: int
    commits: Commits
    """For perdure.checkpoint.load.load on rank 0."""
    completed: Completed | None
    """The reached goal, if no commit came after it."""
    skipped: tuple[str, ...]
    """Unreadable entries and foreign keys, to be logged."""
    image: ImageRef | None = None
    """The image that it begins from instead: the run commits it before it trains, or ends."""
    no_image: str = ""
    """Why an offered image is not used."""
    origin: Origin | None = None
    """The commit of another root that it begins from; the training has no commit in this root yet."""
    returns: bool = False
    """Whether this run goes back to a chosen commit."""


@dataclass(frozen=True)
class NotYet:
    """The run may not be opened now; ask again until PERDURE_WAIT is over."""

    reason: str


class _Taken(Exception):
    """Another process's entry is where this writer wanted to append."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(f"entry {slot.seq}")
        self.slot = slot


class Writer:
    """Appends for one process of one run. Not thread-safe, but for `never_opens`.

    Every append may raise Fenced, or RootTakenOver if the root belongs to another uid now; then nothing more can be
    written. After StorageError the call may be repeated.
    """

    def __init__(
        self,
        log: Log,
        *,
        uid: str,
        run: int | None,
        lost: Collection[int] = (),
        floor: CommitRef | None = None,
        resume_from: ResumeFrom | None = None,
        find: Callable[[ResumeFrom], int] | None = None,
    ) -> None:
        """`run` None means the highest run number plus one, for runs outside Kubernetes.

        `floor` is the newest commit known to exist. `resume_from` applies once; `find` returns its commit's number.
        """
        self.log = log
        self.run = run or 0
        """The run's number; 0 until it is chosen."""
        self.opened = 0
        """The highest run of this uid seen in the log."""
        self._never_open = {0}
        """Runs that never open. It only grows, so any thread may add one."""
        self.abandoned: set[str] = set()
        """Data folders of failed attempts."""
        self.discarded: set[str] = set()
        """Folders of failed attempts that were to be deleted before the next attempt."""
        self.swept: float | None = None
        """time.monotonic() of the last search for leftovers of killed writers."""
        self.bypassed_are_gone = False
        """Whether retention has deleted all commits that were bypassed before this run."""
        self._uid = uid
        self._wanted = run
        self._lost = frozenset(lost)
        self._floor = floor
        self._id = os.urandom(16).hex()
        self._place = ReadPosition(0, None, None, None)
        self._members: tuple[int, ObjectRef | None] = 0, None
        self._sent: set[str] = set()
        self._named: set[str] = set()
        """Folders of commits whose appends have had no answer."""
        self._pins: Pins | None = None
        self._resume_from = resume_from
        self._find = find

    @property
    def id(self) -> str:
        """The mark of its entries. A hand-over's decider opens this run with it."""
        return self._id

    @property
    def place(self) -> ReadPosition:
        """The place up to which it has read the log. From any thread."""
        return self._place

    def try_open(
        self, world: int, *, wait_over: bool, images: Sequence[ImageOffer] = (), members: Sequence[Member] = ()
    ) -> Resume | NotYet:
        """Append Opened if it is this run's turn: the previous run has ended or is lost, or `wait_over`.

        `images` are those of its ranks, `members` their pods and nodes. Raises LogLost if the floor is missing.
        """
        for _ in range(OPENING_TRIES):
            head = self.log.head() or Head(0, "", None)
            own = self.log.last_of(self._uid, head.entry)
            if own is None or own.writer != self._id:  # otherwise an earlier call opened it, and its answer got lost
                reason = self._reason_to_wait(head, own, wait_over=wait_over)
                refuse_older(self.log, head, own, self._floor)
                if reason:
                    return NotYet(reason)
                if head.seq == 0:
                    refuse_data_without_log(self.log)
                    probe(self.log.store)
                else:
                    refuse_unreadable_end(self.log, head)
                self._stand_behind(head)
                origin = self._chosen(own)
                if origin:
                    self._place = replace(self._place, last_commit=None if origin.uri else origin.seq)
                choice = ImageChoice() if origin else self._choose(own, images)
                try:
                    known = self._recorded(members)
                    event = Opened(world, self._place.last_commit, image=choice.image, members=known, origin=origin)
                    own = self._append(event)
                except _Taken:
                    continue
            elif head.seq != own.seq:
                self._fenced(Slot(head.seq, head.crc, head.entry))
            else:
                choice = ImageChoice()
                self._stand_behind(head)
            self.opened = max(self.opened, self.run)
            found = (*head.skipped, *doubts(self.log, head))
            skipped = tuple(dict.fromkeys(found))
            begun = own.event if isinstance(own.event, Opened) else Opened(world, None)
            completed = None if begun.origin else self._completed(head)
            origin, returns = self._origin(own), begun.origin is not None
            return Resume(self.run, self.commits(), completed, skipped, begun.image, choice.why, origin, returns)
        return NotYet("others keep appending to the log")

    def _recorded(self, members: Sequence[Member]) -> ObjectRef | None:
        """Store the members before the entry that names them, once for each number that this run may have."""
        if members and self._members[0] != self.run:
            self._members = self.run, put_members(self.log.store, self.run, members)
        return self._members[1]

    def take_up(self, slot: Slot) -> None:
        """Continue after the Opened entry that a hand-over's decider appended for this writer.

        Raises Fenced if it is another entry.
        """
        entry = slot.entry
        if not entry or not isinstance(entry.event, Opened) or (entry.run, entry.writer) != (self.run, self._id):
            raise Fenced(f"entry {slot.seq} of {self.log.store.uri} does not open run {self.run} for this writer")
        self._advance(slot)
        self.opened = self.run

    def never_opens(self, run: int) -> None:
        """No run up to this one opens: its hand-over was aborted. From any thread."""
        self._never_open.add(run)

    @property
    def aborted(self) -> int:
        """The highest run that never opens, as each later entry says; 0: none."""
        return max(tuple(self._never_open))

    def stand_in(self, head: Head, own: Entry | None) -> None:
        """Continue after the end of the log for a run whose rank 0 is lost; `own` is the newest entry of its uid."""
        self._stand_behind(head)
        self.opened = own.run if own else 0
        self.never_opens(own.refused if own else 0)

    def commits(self) -> Commits:
        """The commits this run may resume from or retire."""
        return Commits(self.log, self._place.last_commit)

    @property
    def pins(self) -> Pins:
        """The pins, by the newest readable commit."""
        if self._pins is None:
            found = (
                pins_after(slot.seq, slot.entry.event)
                for slot in self.commits()
                if slot.entry and isinstance(slot.entry.event, Committed)
            )
            self._pins = next(found, Pins())
        return self._pins

    @property
    def discardable(self) -> set[str]:
        """The abandoned folders that no entry of the log names, now or later."""
        return self.abandoned - self._named

    def forget_released(self, seqs: Collection[int]) -> None:
        """Report that retention handled commits that lost their pin."""
        self._pins = self.pins.without(seqs)

    def every_commit(self) -> EveryCommit:
        """Like `commits`, with all commits that this training or an earlier one bypassed."""
        return EveryCommit(self.log, self._place.last_commit, self._place.last_opened)

    def commit(
        self, position: Position, manifest: ManifestRef, *, final: bool, reason: str, pin: str | None = None
    ) -> CommitRef:
        """Append Committed, which makes the checkpoint exist. Raises UserError if there are too many pins."""
        cursors, why = dict(position.cursors), reason[:REASON_CHARACTERS]
        event = Committed(position.step, position.epoch, cursors, final, why, manifest, pin)
        entry = self._append_or_fence(event)
        return CommitRef(entry.seq, position.step)

    def landed(self, step: int, *, final: bool, pin: str | None = None) -> CommitRef | None:
        """The commit of `step` if an earlier call made it although it raised StorageError; otherwise None."""
        if not self._sent:
            return None
        slot = self._next_of_others_or_own()
        if slot and slot.entry and slot.crc in self._sent:
            self._advance(slot)
            match slot.entry.event:
                case Committed() as event if (event.step, event.final, event.pin) == (step, final, pin):
                    return CommitRef(slot.seq, step)
        return None

    def close(self, outcome: str) -> None:
        """Append Closed: the run ends without its own commit."""
        self._append_or_fence(Closed(outcome[:REASON_CHARACTERS]))

    def complete(self, goal: Any, position: Position) -> None:
        """Append Completed; `goal` is JSON."""
        self._append_or_fence(Completed(goal, position.step, position.epoch))

    def overtaken(self) -> bool:
        """Whether another process has appended after this writer."""
        slot = self._next_of_others_or_own()
        return slot is not None and slot.crc not in self._sent

    def _reason_to_wait(self, head: Head, own: Entry | None, *, wait_over: bool) -> str:
        """Why this run may not open now; "" if it may. `own` is the newest entry of this uid."""
        self.opened = own.run if own else 0
        self.run = self._wanted or max(self.opened, own.refused if own else 0) + 1
        if own is None:
            return ""
        if head.entry and head.entry.uid != self._uid:
            raise self._taken_over(head.entry)
        if self.run <= self.opened:
            raise Fenced(
                f"run {self.run} cannot open {self.log.store.uri}: run {self.opened} is there already; "
                f"the next run must have a higher number",
                opened=self.opened,
            )
        if self.run <= own.refused:
            raise HandoverRefused(
                f"run {self.run} cannot open {self.log.store.uri}: its hand-over from run {own.run} was aborted, as "
                f"entry {own.seq} says; the next run must have a higher number",
                opened=self.opened,
            )
        if own.ends_run or own.run in self._lost or wait_over:
            return ""
        return f"run {own.run} has not ended: entry {own.seq} is its last"

    def _choose(self, own: Entry | None, images: Sequence[ImageOffer]) -> ImageChoice:
        """The image that this run begins from. `own` is the newest entry of this uid."""
        if not images:
            return ImageChoice()
        committed = next(self.commits().stamps, None)
        return choose(images, uid=self._uid, line=list(self._line(own)), committed=committed)

    def _chosen(self, own: Entry | None) -> Origin | None:
        """The chosen commit that this run begins from instead of the newest one. Raises UserError if it does not exist.

        A wish applies once: for a job in its first run; outside Kubernetes if it differs from the last wish. While this
        root has no commit, a wish for another root is resolved again, because the earlier commit may be deleted there.
        `own` is the newest entry of this uid.
        """
        wish = self._resume_from
        if wish is None or self._find is None:
            return None
        last = self._last_origin(own)
        again = last is not None and last.wish == wish.write()
        to_come = again and wish.uri is not None and self._place.last_commit is None
        if own and (self._uid != LOCAL_UID or again) and not to_come:
            return None
        return Origin(wish.write(), self._find(wish), wish.uri, self._newest_commit())

    def _newest_commit(self) -> int | None:
        """The number of the newest commit, even if it is already bypassed."""
        return next((slot.seq for slot, _ in self.every_commit()), None)

    def _origin(self, own: Entry) -> Origin | None:
        """The commit of another root that this training begins from, until it makes its own."""
        last = None if self._place.last_commit else self._last_origin(own)
        return last if last and last.uri else None

    def _last_origin(self, own: Entry | None) -> Origin | None:
        """The last chosen commit of this uid."""
        seq = own.newest_opened if own else None
        while seq:
            slot = self.log.slot(seq)
            entry = slot.entry if slot else None
            if not entry or entry.uid != self._uid or not isinstance(entry.event, Opened):
                return None
            if entry.event.origin:
                return entry.event.origin
            seq = entry.last_opened
        return None

    def _line(self, own: Entry | None) -> Iterator[Begun]:
        """The runs of this uid from the last opened one back, as far as each took over the one before or began from its
        image, and can be read."""
        seq, wanted = own.newest_opened if own else None, own.run if own else 0
        while seq and wanted:
            slot = self.log.slot(seq)
            entry = slot.entry if slot else None
            if not entry or entry.uid != self._uid or not isinstance(entry.event, Opened):
                return
            seq, event = entry.last_opened, entry.event
            yield Begun(entry.run, event.takes_over, event.step or 0, event.image)
            if entry.run == wanted:
                wanted = event.takes_over or (event.image.run if event.image else 0)

    def _stand_behind(self, head: Head) -> None:
        self._place = place_of(head)
        self._sent.clear()
        self._pins = None

    def _completed(self, head: Head) -> Completed | None:
        """The newest Completed, unless a commit is newer. Reads only entries that are not commits."""
        above = takewhile(self._is_above_commits, self.log.entries(head.seq))
        events = (slot.entry.event for slot in above if slot.entry)
        return next((event for event in events if isinstance(event, Completed)), None)

    def _is_above_commits(self, slot: Slot) -> bool:
        """Whether the entry is newer than this training's commits and its chosen origin."""
        event = slot.entry.event if slot.entry else None
        returns = isinstance(event, Opened) and event.origin is not None
        return slot.seq > (self._place.last_commit or 0) and not returns

    def _append_or_fence(self, event: Event) -> Entry:
        try:
            return self._append(event)
        except _Taken as taken:
            self._fenced(taken.slot)

    def _append(self, event: Event) -> Entry:
        """Append `event`, or find that an earlier call did. Raises _Taken if another process was first.

        Only an entry with exactly its bytes is its own, because one process may write for two runs in a hand-over.
        """
        while True:
            entry = self._next(event)
            data = write_entry(entry)
            self._sent.add(checksum(data))
            if isinstance(event, Committed):
                self._named.add(event.manifest.folder)
            try:
                self.log.store.put(key_of(entry.seq), data, if_absent=True)
            except KeyExists:
                slot = self.log.slot(entry.seq)
                if slot is None:
                    raise StorageError(f"log entry {entry.seq} exists and cannot be read: try again") from None
                if slot.entry is None or not (slot.crc in self._sent or self._refusal(slot)):
                    raise _Taken(slot) from None
                # A refusal, or our own PUT whose answer was lost, now or in an earlier attempt.
                self._advance(slot)
                if _does(slot.entry.event, event):
                    return slot.entry
                continue
            self._advance(Slot(entry.seq, checksum(data), entry))
            return entry

    def _next(self, event: Event) -> Entry:
        if isinstance(event, Committed):
            event = self.pins.put_into(event)
        return Entry(
            seq=self._place.seq + 1,
            prev=self._place.crc,
            uid=self._uid,
            run=self.run,
            writer=self._id,
            last_commit=self._place.last_commit,
            last_opened=self._place.last_opened,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            event=event,
            aborted=self.aborted,
        )

    def _refusal(self, slot: Slot) -> bool:
        """Whether the entry refuses a hand-over from this run. It fences nothing: this run continues after it."""
        entry = slot.entry
        return bool(entry and isinstance(entry.event, Refused) and (entry.uid, entry.run) == (self._uid, self.run))

    def _next_of_others_or_own(self) -> Slot | None:
        """The entry after the last one that it has read, refusals skipped."""
        slot = self.log.slot(self._place.seq + 1)
        while slot and self._refusal(slot):
            self._advance(slot)
            slot = self.log.slot(self._place.seq + 1)
        return slot

    def _advance(self, slot: Slot) -> None:
        self._place = self._place.after(slot)
        self._sent.clear()
        self._named.clear()
        if slot.entry:
            self.never_opens(slot.entry.refused)
            if isinstance(slot.entry.event, Committed):
                self._pins = pins_after(slot.seq, slot.entry.event)
                self.abandoned.discard(slot.entry.event.manifest.folder)

    def _fenced(self, slot: Slot) -> Never:
        head = self.log.head()
        newest = (head.entry if head else None) or slot.entry
        if newest and newest.uid != self._uid:
            raise self._taken_over(newest)
        self.opened = max(self.opened, newest.run if newest else 0)
        raise Fenced(
            f"run {self.run} may no longer write to {self.log.store.uri}: "
            f"{f'run {newest.run}' if newest and newest.writer != self._id else 'another writer'} has written after it"
            f": that training continues there; give each training its own root",
            opened=self.opened,
        )

    def _taken_over(self, newest: Entry) -> RootTakenOver:
        return RootTakenOver(
            f"{self.log.store.uri} belongs to job uid {newest.uid} since it appended entry {newest.seq} or an earlier "
            f"one; uid {self._uid} is out: give each job its own root",
            opened=self.opened,
        )


def _does(landed: Event, wanted: Event) -> bool:
    """Whether an entry of an earlier attempt already does what `wanted` would do."""
    match landed, wanted:
        case Committed(), Committed():
            return (landed.step, landed.final, landed.pin) == (wanted.step, wanted.final, wanted.pin)
        case _:
            return type(landed) is type(wanted)


def probe(store: Store) -> None:
    """Raises UserError if the store lets two writers create the same object, which would break all guarantees."""
    key = f"probe/{secrets.token_hex(16)}"
    try:
        for _ in range(2):
            store.put(key, b"", if_absent=True)
    except KeyExists:
        return
    finally:
        store.delete([key])
    raise UserError(
        f"{store.uri} ignores If-None-Match, so two writers could overwrite each other: "
        f"use a store that honours conditional PUT (AWS S3, MinIO, versitygw) or file://"
    )
