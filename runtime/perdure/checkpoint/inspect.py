"""What `perdure log`, `perdure show` and `perdure verify` print about a root. Reads only.

None of it needs torch; `verify` reads every byte of every commit, a few blocks at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.manifest import Item, Manifest, fetch_manifest
from perdure.errors import Corrupt, UserError
from perdure.log.audit import doubts, refuse_data_without_log
from perdure.log.entry import Closed, Committed, Completed, Entry, Event, Opened, Origin, Refused
from perdure.log.members import fetch_members
from perdure.log.pins import Pins, pins_after
from perdure.log.reader import EveryCommit, Head, Log, Slot
from perdure.store import Store, open_store


def log(uri: str, environ: Mapping[str, str]) -> Iterator[str]:
    """One line per entry, newest first, with what is wrong in the chain."""
    store = open_store(uri, environ)
    head = _head(Log(store))
    yield from head.skipped
    for slot in Log(store).entries(head.seq):
        entry = slot.entry
        yield f"{slot.seq:>6}  {_line(entry)}" if entry else f"{slot.seq:>6}  DAMAGED: {slot.problem}"


def show(uri: str, environ: Mapping[str, str]) -> Iterator[str]:
    """The newest commit: position, shards and tensors."""
    store = open_store(uri, environ)
    slot, manifest = _newest(store, uri)
    position = manifest.position
    world = len(manifest.indexes)
    made = slot.entry.time if slot.entry else "?"
    yield f"commit {slot.seq} of run {manifest.run}: step {position.step}, epoch {position.epoch}"
    yield f"made {made} by {world} rank{'s' if world > 1 else ''}"
    yield f"cursors {json.dumps(dict(position.cursors))}"
    yield from _members(store, slot)
    for index in manifest.indexes:
        yield f"rank {index.rank}: {index.shard.key}, {index.shard.size} bytes, crc {index.shard.crc}"
        yield from (f"    {_item(item)}" for item in index.shard.items)


def _members(store: Store, slot: Slot) -> Iterator[str]:
    """Where the ranks of the run that made this commit began."""
    opened = Log(store).slot(slot.entry.last_opened) if slot.entry and slot.entry.last_opened else None
    ref = opened.entry.event.members if opened and opened.entry and isinstance(opened.entry.event, Opened) else None
    try:
        members = fetch_members(store, ref) if ref else ()
    except Corrupt as error:
        yield f"members: {error}"
        return
    for rank, member in enumerate(members):
        yield f"rank {rank} ran in {member.name or 'an unknown member'}{f' on {member.node}' if member.node else ''}"


def verify(uri: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Reads the whole log and all of every commit that is not retired; Corrupt at the end if anything is damaged."""
    store = open_store(uri, environ)
    head = _head(Log(store))
    damaged = [slot.problem for slot in Log(store).entries(head.seq) if slot.problem]
    yield f"log: {head.seq} entries, {len(damaged)} damaged"
    yield from damaged
    commits = list(_commits(store))
    present = [store.head(committed.manifest.key) is not None for _, committed, _ in commits]
    pins = next((pins_after(slot.seq, committed) for slot, committed, bypassed in commits if not bypassed), Pins())
    spared = {*pins.held, *pins.released}
    for number, (slot, committed, bypassed) in enumerate(commits):
        what = f"commit {slot.seq} of step {committed.step}"
        # Retention begins with the oldest that is not pinned and never takes the newest.
        older = zip(commits[number:], present[number:], strict=True)
        gone = number and not any(here for (one, *_), here in older if one.seq not in spared or one is slot)
        if gone or (bypassed and not present[number]):
            yield f"{what}: retired"
            continue
        try:
            size = _read_all(store, committed)
        except Corrupt as error:
            damaged.append(str(error))
            yield f"{what}: DAMAGED: {error}"
        else:
            yield f"{what}: whole, {size} bytes"
    yield from doubts(Log(store), head)
    if damaged:
        raise Corrupt(f"{uri} is damaged in {len(damaged)} places; the first: {damaged[0]}")


def _read_all(store: Store, committed: Committed) -> int:
    """How many bytes of shards a commit has, all of them verified."""
    manifest = fetch_manifest(store, committed)
    return sum(len(block) for index in manifest.indexes for _, block in read_blocks(store, index.shard))


def _item(item: Item) -> str:
    return (
        f"{item.part} {item.name} {item.dtype} {list(item.shape)} from {item.device}, {item.size} bytes at {item.start}"
    )


def _head(log: Log) -> Head:
    """The end of the log. UserError if there is none; LogLost if its data is still there."""
    head = log.head()
    if head is None:
        refuse_data_without_log(log)
        raise UserError(f"{log.store.uri} has no log: nothing was ever trained here, or it is another folder or prefix")
    return head


def _line(entry: Entry) -> str:
    return f"{entry.time}  run {entry.run:<4} uid {entry.uid}  {_what(entry.event)}"


def _what(event: Event) -> str:
    match event:
        case Opened(world, resumes, takes_over, step, image, members, origin):
            more = "" if takes_over is None else f" takes over run {takes_over} at step {step}"
            more += f" begins from the image of run {image.run}, step {image.step}" if image else ""
            more += f" members={members.key}" if members else ""
            more += f" goes back: {_of(origin)}" if origin else ""
            return f"Opened world={world} resumes={'nothing' if resumes is None else f'entry {resumes}'}{more}"
        case Refused(refuses):
            return f"Refused run {refuses}"
        case Committed(step, epoch, _, final, reason, pin=pin):
            more = f"{' final' if final else ''}{f' pinned {pin}' if pin else ''}"
            return f"Committed step={step} epoch={epoch}{more} ({reason})"
        case Closed(outcome):
            return f"Closed ({outcome})"
        case Completed(goal, step, epoch):
            return f"Completed goal={json.dumps(goal)} step={step} epoch={epoch}"


def _of(origin: Origin) -> str:
    bypassed = f", bypassing what lies between up to entry {origin.bypasses}" if origin.bypasses else ""
    return f"from entry {origin.seq}{f' of {origin.uri}' if origin.uri else ''}{bypassed}"


def _commits(store: Store) -> Iterator[tuple[Slot, Committed, bool]]:
    """Newest first, and whether each is bypassed."""
    head = Log(store).head()
    entry = head.entry if head else None
    newest, opened = (entry.newest_commit, entry.newest_opened) if entry else (None, None)
    for slot, bypassed in EveryCommit(Log(store), newest, opened):
        if slot.entry and isinstance(slot.entry.event, Committed):
            yield slot, slot.entry.event, bypassed


def _newest(store: Store, uri: str) -> tuple[Slot, Manifest]:
    for slot, committed, bypassed in _commits(store):
        if not bypassed:
            return slot, fetch_manifest(store, committed)
    raise UserError(f"{uri} has no commit: nothing to show")
