"""Deletes commits that are no longer needed: a commit without its manifest is retired.

The manifest is deleted before the data, so that an incomplete commit is never taken for a checkpoint. The oldest
commit is deleted first, so that only retired commits, and those that are or were pinned, are below a retired one.
Log entries (a zombie would get a deleted entry's number), the newest usable commit and pinned commits are never
deleted. A commit that is being read stays until the next call. Commits that were bypassed by going back to an older one
are kept until enough newer ones exist. Called by rank 0 after a commit, and by `perdure gc`. A person may pin a commit
at any moment: see perdure.log.kept.

No log entry names the uploads of a killed process. Older runs can no longer append, so their data without an entry is
deleted, with their unfinished uploads. After a day the same holds for any run. Each run looks for such data once a day.

What a failed save of this run left is deleted before the next one uploads, because the store may have room for only one
more. It is kept while an append without an answer names it: that may be a commit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from perdure.checkpoint.manifest import fetch_manifest
from perdure.errors import Corrupt, StorageError, UserError
from perdure.log.entry import Committed, Entry
from perdure.log.kept import (
    KeptCommits,
    forget_readers,
    forget_released,
    mark_deletion,
    put_pin,
    put_released,
    read_kept,
)
from perdure.log.objects import FOLDER, is_perdures, manifest_key
from perdure.log.reader import Slot
from perdure.log.writer import Writer
from perdure.store import Store

LITTER_SECONDS: Final = 24 * 3600.0
"""The age at which unfinished uploads of any run are deleted."""


@dataclass(frozen=True)
class Unneeded:
    """What of a root may be deleted."""

    commits: Mapping[int, Committed]
    """Commits by the numbers of their entries, oldest first."""
    milestones: frozenset[int]
    """The numbers of further ones, which stay: each is the first of so many steps."""
    litter: tuple[str, ...]
    """Folders that no commit names."""
    released: frozenset[int]
    """The released pins that this handles, the script's and those by hand."""
    read: frozenset[int]
    """The numbers of commits that stay because a process reads them."""
    left_marks: frozenset[str]
    """What readers have left that ended."""
    bypassed_are_gone: bool
    """Whether no bypassed commit is left then."""

    @property
    def folders(self) -> list[str]:
        """In the order in which they are deleted."""
        return [*(committed.manifest.folder for committed in self.commits.values()), *self.litter]


def retire(store: Store, writer: Writer, keep: int, *, keep_every: int | None = None) -> list[str]:
    """Delete all but the newest `keep` commits, and leftovers of failed attempts and older runs; returns their folders.

    Of every `keep_every` steps the first commit is pinned instead, as if by hand.

    After StorageError training can go on; the next call does the rest. A writer that was overtaken deletes nothing: a
    zombie must not decide what its successor may fall back to. Its next append raises Fenced.
    """
    due = writer.swept is None or time.monotonic() - writer.swept > LITTER_SECONDS
    found = unneeded(store, writer, keep, orphans=due, keep_every=keep_every)
    if not delete(store, writer, found):
        return []
    if due:
        sweep(store, writer)
        writer.swept = time.monotonic()
    return found.folders


def sweep(store: Store, writer: Writer) -> int:
    """Remove what killed writers of Perdure's had begun to upload, in older runs or a day ago. Returns how many pieces
    it was."""

    def of_older_run(key: str) -> bool:
        found = FOLDER.match(key)
        return found is not None and _run_of(found[0]) < writer.run

    def of_ours(key: str) -> bool:
        return not key or is_perdures(key)  # an older version's temporary files do not tell theirs

    return store.sweep(-math.inf, of_older_run) + store.sweep(LITTER_SECONDS, of_ours)


def discard(store: Store, writer: Writer) -> None:
    """Delete what failed attempts have left, to make room for the next one. Called while none is under way.

    It is tried once: what cannot be deleted now is deleted by `retire`, after a commit.
    """
    due = writer.discardable - writer.discarded
    writer.discarded = writer.abandoned & (writer.discarded | due)
    with suppress(StorageError, MemoryError):
        _remove(store, sorted(due))
        writer.abandoned -= due


def unneeded(store: Store, writer: Writer, keep: int, *, orphans: bool, keep_every: int | None = None) -> Unneeded:
    """All but the newest `keep` commits and the first of every `keep_every` steps, leftovers of failed attempts and,
    with `orphans`, of older runs."""
    if keep < 1:
        raise UserError(f"checkpoint.keep is {keep}: keep at least 1")
    if keep_every is not None and keep_every < 1:
        raise UserError(f"checkpoint.keepEverySteps is {keep_every}: give at least 1, or leave it out")
    kept = read_kept(store)
    victims, milestones, released, bypassed_are_gone = _victims(store, writer, keep, keep_every, kept)
    read = victims.keys() & kept.read
    victims = {seq: committed for seq, committed in victims.items() if seq not in read}
    folders = [committed.manifest.folder for committed in victims.values()]
    orphaned = _orphaned(store, writer, folders) if orphans else []
    litter = [*sorted(writer.discardable), *orphaned]
    return Unneeded(
        victims,
        frozenset(milestones),
        tuple(litter),
        frozenset(released - read),
        frozenset(read),
        kept.left_marks,
        bypassed_are_gone,
    )


def delete(store: Store, writer: Writer, found: Unneeded) -> bool:
    """Delete it; False, and nothing is deleted, if the writer was overtaken meanwhile."""
    # Checked after the listing: a newer run uploads only after its Opened.
    if found.folders and writer.overtaken():
        return False
    for seq in found.milestones:
        put_pin(store, seq)
    kept = _kept_meanwhile(store, found)
    held = kept.held & found.commits.keys()
    put_released(store, found.read | kept.read & found.commits.keys())
    for seq, committed in found.commits.items():
        if seq not in held:
            store.delete([committed.manifest.key])
            store.delete(store.list(committed.manifest.folder))
    forget_released(store, found.released - held)
    forget_readers(store, found.left_marks)
    writer.forget_released(found.released - held)
    writer.bypassed_are_gone = found.bypassed_are_gone
    _remove(store, found.litter)
    writer.abandoned -= {*found.litter}
    return True


def _remove(store: Store, folders: Sequence[str]) -> None:
    if folders:
        store.sweep(-math.inf, lambda key: key.startswith(tuple(folders)))
    for folder in folders:
        store.delete(store.list(folder))


def _kept_meanwhile(store: Store, found: Unneeded) -> KeptCommits:
    """What a person has pinned, or reads, since it was listed. The others are marked now: who pins one, waits."""
    marks = {seq: mark_deletion(store, committed.manifest.folder) for seq, committed in found.commits.items()}
    kept = read_kept(store) if marks else KeptCommits()
    for seq in kept.held & marks.keys():
        store.delete([marks[seq]])
    return kept


def _victims(
    store: Store, writer: Writer, keep: int, keep_every: int | None, by_hand: KeptCommits
) -> tuple[dict[int, Committed], set[int], set[int], bool]:
    """The commits to delete, oldest first; those to pin; the released pins that this handles; whether no bypassed
    commit is left."""
    victims: dict[int, Committed] = {}
    kept: set[int] = set()
    milestones: set[int] = set()
    usable, pinned, spared = False, writer.pins.held | by_hand.pinned, False
    for seq, committed, bypassed in _committed(_walk(writer)):
        if bypassed and (len(kept) < keep or not usable):
            spared = True
            continue
        present = store.head(committed.manifest.key) is not None
        if present and not bypassed and (len(kept) < keep or not usable):
            kept.add(seq)
            usable = usable or _usable(store, committed)
        elif seq in pinned:
            continue
        elif present and not bypassed and _is_milestone(writer, seq, keep_every):
            milestones.add(seq)
        elif present or store.list(committed.manifest.folder, limit=1):
            victims[seq] = committed
        elif kept and not bypassed:
            break
    released = {*writer.pins.released, *by_hand.released} - kept - pinned - milestones
    for seq, committed in _unpinned(writer, released - victims.keys()):
        if store.head(committed.manifest.key) and _is_milestone(writer, seq, keep_every):
            milestones.add(seq)
        else:
            victims[seq] = committed
    return dict(sorted(victims.items())), milestones, released - milestones, not spared


def _unpinned(writer: Writer, seqs: Iterable[int]) -> Iterator[tuple[int, Committed]]:
    """Commits that may be below retired ones, where the walk does not come."""
    for seq in seqs:
        slot = writer.log.slot(seq)
        if slot and slot.entry and isinstance(slot.entry.event, Committed):
            yield seq, slot.entry.event


def _is_milestone(writer: Writer, seq: int, every: int | None) -> bool:
    """Whether it is the first commit of its `every` steps, or it cannot be known."""
    if every is None:
        return False
    slot = writer.log.slot(seq)
    before = writer.log.slot(slot.entry.last_commit) if slot and slot.entry and slot.entry.last_commit else None
    match slot, before:
        case Slot(entry=Entry(event=Committed(step))), None:
            return step >= every
        case Slot(entry=Entry(event=Committed(step))), Slot(entry=Entry(event=Committed(earlier))):
            return step // every > earlier // every
    return True


def _walk(writer: Writer) -> Iterable[tuple[Slot, bool]]:
    """The commits to consider. Bypassed ones may be as many as the log has; once gone, they are not read again."""
    if writer.bypassed_are_gone:
        return ((slot, False) for slot in writer.commits())
    return writer.every_commit()


def _orphaned(store: Store, writer: Writer, retired: Collection[str]) -> list[str]:
    """Folders of older runs, or older than a day, that no commit names.

    A folder without a manifest cannot be resumed from. For one with a manifest the log is read: usually only its newest
    commits, and all of it only if a process died between manifest and entry. Only then is the age of what is left asked
    for, an object at a time: commits wait meanwhile, and those that are there may have thousands of objects.
    """
    keys: dict[str, list[str]] = {}
    for key in store.list("data/"):
        found = FOLDER.match(key)
        if found and found[0] not in retired:
            keys.setdefault(found[0], []).append(key)
    complete = {folder: manifest_key(folder) in inside for folder, inside in keys.items()}
    unnamed = {folder for folder, whole in complete.items() if whole}
    for slot, _ in writer.every_commit():
        if not unnamed:
            break
        match slot:
            case Slot(entry=Entry(event=Committed() as committed)):
                unnamed.discard(committed.manifest.folder)
            case _:
                unnamed.clear()  # the unreadable entry may name any of them
    left = sorted(folder for folder, whole in complete.items() if not whole or folder in unnamed)
    return [folder for folder in left if _run_of(folder) < writer.run or _is_litter(store, keys[folder])]


def _run_of(folder: str) -> int:
    return int(folder.split("/")[1])


def _is_litter(store: Store, keys: Iterable[str]) -> bool:
    """Whether nothing was written there for a day, as far as the store shows."""
    limit = time.time() - LITTER_SECONDS
    infos = (store.head(key) for key in keys)
    return all(info and info.modified is not None and info.modified < limit for info in infos)


def _committed(slots: Iterable[tuple[Slot, bool]]) -> Iterator[tuple[int, Committed, bool]]:
    for slot, bypassed in slots:
        match slot:
            case Slot(entry=Entry(event=Committed() as committed)):
                yield slot.seq, committed, bypassed


def _usable(store: Store, committed: Committed) -> bool:
    """Whether the manifest is intact and every shard has its full length, as far as the store shows."""
    try:
        manifest = fetch_manifest(store, committed)
    except Corrupt:
        return False
    for index in manifest.indexes:
        info = store.head(index.shard.key)
        if info is None or info.size != index.shard.size or info.crc not in (None, index.shard.crc):
            return False
    return True
