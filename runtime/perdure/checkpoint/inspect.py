"""What `perdure log`, `perdure show` and `perdure verify` print about a root. Reads only.

None of it needs torch; `verify` reads every byte of every commit, a few blocks at a time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.history import find
from perdure.checkpoint.manifest import Item, Manifest, fetch_manifest, is_deleted
from perdure.console import in_bytes
from perdure.errors import Corrupt, UserError
from perdure.log.audit import doubts, refuse_data_without_log
from perdure.log.entry import Closed, Committed, Completed, Entry, Event, Opened, Origin, Refused
from perdure.log.kept import read_kept
from perdure.log.members import fetch_members
from perdure.log.pins import Pins, pins_after
from perdure.log.reader import EveryCommit, Head, Log, Slot
from perdure.store import Store, open_store
from perdure.wire import CommitSelector


@dataclass(frozen=True)
class Line:
    """An output line: text for people, or a JSON object for programs."""

    text: str
    data: Mapping[str, Any]

    def printed(self, *, as_json: bool) -> str:
        """The line in one of its two forms."""
        return json.dumps(self.data) if as_json else self.text


def unheard(_steps: int) -> None:
    """A `coming` that ignores how much is to come."""


def log(uri: str, environ: Mapping[str, str]) -> Iterator[Line]:
    """One line per entry, newest first, with what is wrong in the chain."""
    store = open_store(uri, environ)
    head = _head(Log(store))
    pinned = read_kept(store).pinned
    yield from (Line(problem, {"problem": problem}) for problem in head.skipped)
    for slot in Log(store).entries(head.seq):
        entry = slot.entry
        if entry is None:
            yield Line(f"{slot.seq:>6}  DAMAGED: {slot.problem}", {"seq": slot.seq, "problem": slot.problem})
            continue
        about = {"seq": slot.seq, "time": entry.time, "run": entry.run, "uid": entry.uid}
        by_hand = {"pinned_by_hand": True} if slot.seq in pinned else {}
        yield Line(
            f"{slot.seq:>6}  {_line(entry)}{', pinned by hand' if by_hand else ''}",
            {**about, "kind": type(entry.event).__name__, **asdict(entry.event), **by_hand},
        )


def show(uri: str, wanted: CommitSelector, environ: Mapping[str, str], *, tensors: bool = False) -> Iterator[Line]:
    """One commit, the newest if none is wanted: position, members, size, and with `tensors` each tensor. One line."""
    store = open_store(uri, environ)
    slot, committed = _newest(store, uri) if not wanted.given else _chosen(store, wanted)
    manifest = fetch_manifest(store, committed)
    members, problem = _members(store, slot)
    position, shards = manifest.position, [index.shard for index in manifest.indexes]
    data = {
        "seq": slot.seq,
        "run": manifest.run,
        "step": position.step,
        "epoch": position.epoch,
        "time": slot.entry.time if slot.entry else None,
        "world": len(shards),
        "reason": committed.reason,
        "pins": pins_after(slot.seq, committed).of(slot.seq),
        "pinned_by_hand": slot.seq in read_kept(store).pinned,
        "cursors": dict(position.cursors),
        "members": members,
        "bytes": sum(shard.size for shard in shards),
        "groups": _groups(manifest),
        "shards": [{"key": shard.key, "size": shard.size, "crc": shard.crc} for shard in shards],
        **({"tensors": [asdict(item) for shard in shards for item in shard.items]} if tensors else {}),
    }
    yield Line("\n".join([*_summary(data), *([problem] if problem else []), *_shards(manifest, tensors=tensors)]), data)


def _summary(data: Mapping[str, Any]) -> Iterator[str]:
    world, pins = data["world"], " and ".join(data["pins"])
    yield f"commit {data['seq']} of run {data['run']}: step {data['step']}, epoch {data['epoch']}"
    made = f"made {data['time'] or '?'} by {world} rank{'s' if world > 1 else ''}: {data['reason']}"
    named = f"{made}, pinned as {pins}" if pins else made
    yield f"{named}, pinned by hand" if data["pinned_by_hand"] else named
    groups = (f"{name} {in_bytes(of['bytes'])} in {of['tensors']} tensors" for name, of in data["groups"].items())
    yield f"{in_bytes(data['bytes'])}: {', '.join(groups) or 'no tensors'}"
    yield f"cursors {json.dumps(data['cursors'])}"
    for rank, member in enumerate(data["members"]):
        place = f" on {member['node']}" if member["node"] else ""
        yield f"rank {rank} ran in {member['name'] or 'an unknown member'}{place}"


def _shards(manifest: Manifest, *, tensors: bool) -> Iterator[str]:
    for index in manifest.indexes:
        yield f"rank {index.rank}: {index.shard.key}, {index.shard.size} bytes, crc {index.shard.crc}"
        yield from (f"    {_item(item)}" for item in index.shard.items if tensors)


def _groups(manifest: Manifest) -> dict[str, dict[str, int]]:
    """How many tensors each registered object has, and their bytes, the largest first."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for index in manifest.indexes:
        for item in index.shard.items:
            size[re.split("[./]", item.name, maxsplit=1)[0]] += item.size
    for item in manifest.tensors:
        count[re.split("[./]", item.name, maxsplit=1)[0]] += 1
    return {name: {"tensors": count[name], "bytes": total} for name, total in size.most_common()}


def _members(store: Store, slot: Slot) -> tuple[list[dict[str, Any]], str]:
    """Where the ranks of the run that made this commit began, and what is wrong with that record."""
    opened = Log(store).slot(slot.entry.last_opened) if slot.entry and slot.entry.last_opened else None
    ref = opened.entry.event.members if opened and opened.entry and isinstance(opened.entry.event, Opened) else None
    try:
        return [asdict(member) for member in (fetch_members(store, ref) if ref else ())], ""
    except Corrupt as error:
        return [], f"members: {error}"


def verify(uri: str, environ: Mapping[str, str], coming: Callable[[int], None] = unheard) -> Iterator[Line]:
    """Reads the whole log and all of every commit that is not retired; Corrupt at the end if anything is damaged.

    Tells `coming` how many commits there are, before their lines.
    """
    store = open_store(uri, environ)
    head = _head(Log(store))
    damaged = [slot.problem for slot in Log(store).entries(head.seq) if slot.problem]
    yield Line(f"log: {head.seq} entries, {len(damaged)} damaged", {"entries": head.seq, "damaged": len(damaged)})
    yield from (Line(problem, {"problem": problem}) for problem in damaged)
    commits = list(_commits(store))
    present = [store.head(committed.manifest.key) is not None for _, committed, _ in commits]
    pins = next((pins_after(slot.seq, committed) for slot, committed, bypassed in commits if not bypassed), Pins())
    kept = read_kept(store)
    held = pins.held | kept.pinned
    spared = {*held, *pins.released, *kept.released}
    coming(len(commits))
    for number, (slot, committed, bypassed) in enumerate(commits):
        what, data = f"commit {slot.seq} of step {committed.step}", {"seq": slot.seq, "step": committed.step}
        # Retention begins with the oldest that is not pinned and never takes the newest.
        older = zip(commits[number:], present[number:], strict=True)
        older_is_there = any(here for (one, *_), here in older if one.seq not in spared or one is slot)
        gone = number and slot.seq not in held and not older_is_there
        if gone or (bypassed and not present[number]):
            yield Line(f"{what}: retired", {**data, "state": "retired"})
            continue
        try:
            size = _read_all(store, committed)
        except Corrupt as error:
            if present[number] and is_deleted(store, committed):
                yield Line(f"{what}: retired meanwhile", {**data, "state": "retired"})
                continue
            damaged.append(str(error))
            yield Line(f"{what}: DAMAGED: {error}", {**data, "state": "damaged", "problem": str(error)})
        else:
            yield Line(f"{what}: whole, {size} bytes", {**data, "state": "whole", "bytes": size})
    yield from (Line(doubt, {"problem": doubt}) for doubt in doubts(Log(store), head))
    if damaged:
        raise Corrupt(f"{uri} is damaged in {len(damaged)} places; the first: {damaged[0]}")


def _read_all(store: Store, committed: Committed) -> int:
    """How many bytes of shards a commit has, all of them verified."""
    manifest = fetch_manifest(store, committed)
    return sum(len(block) for index in manifest.indexes for _, block in read_blocks(store, index.shard))


def _item(item: Item) -> str:
    what = f"{item.part} {item.name} {item.dtype} {list(item.shape)}"
    if item.box:
        ranges = (f"{start}:{end}" for start, end in zip(item.box.offset, item.box.end, strict=True))
        what += f", of it [{', '.join(ranges)}]"
    return f"{what} from {item.device}, {item.size} bytes at {item.start}"


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


def _newest(store: Store, uri: str) -> tuple[Slot, Committed]:
    """The newest commit that training would continue from, also if its manifest is lost."""
    for slot, committed, bypassed in _commits(store):
        if not bypassed:
            return slot, committed
    raise UserError(f"{uri} has no commit: nothing to show")


def _chosen(store: Store, wanted: CommitSelector) -> tuple[Slot, Committed]:
    found = find(store, wanted)
    return Log(store).linked(found.commit.seq), found.event
