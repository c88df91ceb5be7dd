"""The commits under a root, for people and programs outside of a run, and how one is selected.

Reads only, and needs no torch. Commits that retention has deleted are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.console import warn
from perdure.errors import UserError
from perdure.log.audit import refuse_data_without_log, refuse_unreadable_end
from perdure.log.entry import Committed, Opened
from perdure.log.kept import read_kept
from perdure.log.objects import FOLDER, manifest_key
from perdure.log.pins import Pins, pins_after
from perdure.log.reader import EveryCommit, Head, Log
from perdure.store import Store
from perdure.wire import CommitSelector

NAMED: Final = 5
"""How many commits an error lists."""


@dataclass(frozen=True)
class Commit:
    """A checkpoint that can be loaded."""

    seq: int
    """The number of its entry in the log, which never changes."""
    step: int
    """Optimizer steps done."""
    epoch: int
    """Finished epochs, of all loops."""
    run: int
    """The run that made it."""
    world: int | None
    """How many ranks that run had; None if the log no longer says."""
    time: str
    """When it was made, UTC, ISO 8601."""
    reason: str
    """Why it was made: "cadence", "epoch", "goal", "script", or the cause of an exit."""
    between_epochs: bool
    """Whether it was made between two epochs."""
    pins: tuple[str, ...] = ()
    """The pins that it has from the script."""
    pinned_by_hand: bool = False
    """Whether a user has pinned it: `perdure pin`."""
    bypassed: bool = False
    """Whether the training has since gone back to an older commit, and does not continue from this one."""


@dataclass(frozen=True)
class Listed:
    """A commit, and what its entry says."""

    commit: Commit
    event: Committed


def history(store: Store) -> list[Listed]:
    """The existing commits, newest first. UserError if nothing was ever trained, or only the log is missing.

    An unreadable entry is skipped, with a message.
    """
    log = Log(store)
    head = log.head()
    if head is None:
        refuse_data_without_log(log)
        raise UserError(f"{store.uri} has no log, so nothing was ever trained there: correct the address")
    refuse_unreadable_end(log, head)
    return list(_listed(log, head))


def find(store: Store, wanted: CommitSelector) -> Listed:
    """The newest commit that fits. UserError, with the existing ones, if there is none."""
    found = history(store)
    return choose(found, wanted, store.uri)


def choose(listed: Sequence[Listed], wanted: CommitSelector, where: str) -> Listed:
    """The first of `listed` that fits. UserError, with some of those in `where`, if there is none."""
    fitting = [one for one in listed if _fits(one.commit, wanted)]
    if found := next(iter(sorted(fitting, key=lambda one: one.commit.bypassed)), None):
        return found
    if not listed:
        raise UserError(f"{where} has no commit: no run has saved anything there yet")
    there = ", ".join(_named(one.commit) for one in listed[:NAMED])
    more = f", and {len(listed) - NAMED} older ones" if len(listed) > NAMED else ""
    raise UserError(
        f"{where} has no commit of {wanted}: there are {there}{more}; older ones are kept only as far as "
        f"checkpoint.keep says"
    )


def _fits(commit: Commit, wanted: CommitSelector) -> bool:
    if wanted.epoch is not None and not commit.between_epochs:
        return False
    if wanted.pin is not None:
        return wanted.pin in commit.pins
    return all(getattr(commit, name) == value for name, value in wanted.given.items())


def _named(commit: Commit) -> str:
    part = "" if commit.between_epochs else " and a part"
    pinned = f", pinned as {' and '.join(commit.pins)}" if commit.pins else ""
    by_hand = ", pinned by hand" if commit.pinned_by_hand else ""
    return f"entry {commit.seq} (step {commit.step}, epoch {commit.epoch}{part}{pinned}{by_hand})"


def _listed(log: Log, head: Head) -> Iterator[Listed]:
    present, pinned = _manifests(log.store), read_kept(log.store).pinned
    worlds: dict[int | None, int | None] = {None: None}
    pins: Pins | None = None
    entry = head.entry
    commits = EveryCommit(log, entry.newest_commit if entry else None, entry.newest_opened if entry else None)
    for slot, bypassed in commits:
        if not present:
            return
        if slot.entry is None or not isinstance(slot.entry.event, Committed):
            warn(f"{log.store.uri}: {slot.problem}")
            continue
        entry, event = slot.entry, slot.entry.event
        pins = pins_after(entry.seq, event) if pins is None and not bypassed else pins
        if event.manifest.key not in present:
            continue
        present.remove(event.manifest.key)
        if entry.last_opened not in worlds:
            worlds[entry.last_opened] = _world(log, entry.last_opened)
        between = between_epochs(event)
        world = worlds[entry.last_opened]
        commit = Commit(
            entry.seq,
            event.step,
            event.epoch,
            entry.run,
            world,
            entry.time,
            event.reason,
            between,
            pins.of(entry.seq) if pins else (),
            entry.seq in pinned,
            bypassed,
        )
        yield Listed(commit, event)


def between_epochs(event: Committed) -> bool:
    """Whether no loader was in the middle of an epoch."""
    cursors = (cursor for cursor in event.cursors.values() if isinstance(cursor, Mapping))
    return not any(cursor.get("consumed") and cursor.get("epoch") == event.epoch for cursor in cursors)


def _manifests(store: Store) -> set[str]:
    return {key for key in store.list("data/") if (found := FOLDER.match(key)) and key == manifest_key(found[0])}


def _world(log: Log, opened: int | None) -> int | None:
    slot = log.slot(opened) if opened else None
    event = slot.entry.event if slot and slot.entry else None
    return event.world if isinstance(event, Opened) else None
