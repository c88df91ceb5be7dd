"""Copies a root into another store: `perdure copy SOURCE TARGET`. Nothing of the source is changed; while a commit
is read, its training keeps it.

The log is copied last, oldest entry first. An unfinished target has checkpoints and no log, and no training begins on
it; or it ends at an older commit. The same command finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.history import Listed, history
from perdure.checkpoint.inspect import Line, unheard
from perdure.checkpoint.manifest import Manifest, fetch_manifest, is_deleted
from perdure.checkpoint.reading import reading
from perdure.errors import Corrupt, UserError
from perdure.log.entry import Committed, key_of
from perdure.log.kept import pin_keys
from perdure.log.objects import index_key
from perdure.log.reader import Head, Log
from perdure.store import KeyExists, NoSuchKey, Store

MEMBERS = "members/"


def copy(source: Store, target: Store, coming: Callable[[int], None] = unheard) -> Iterator[Line]:
    """Copy every commit of the source, with the log as it is now, and verify each block on the way.

    A line for each commit. A damaged commit is not copied; its line has a `problem`. The target then has the source's
    log, and can be used like the source. Meanwhile the source's training keeps the newest commit. Where it does not,
    because it may not be marked, the log is not copied, and the last line has a `problem`. Tells `coming` how many
    commits there are, before their lines.

    Raises:
        UserError: The target has a log that is no beginning of the source's.
        Corrupt: An entry of the source's log disappeared.
    """
    head = Log(source).head()
    listed = history(source)
    if head is None:
        raise UserError(f"{source.uri} had no log a moment ago: try again")
    has = _copied_before(source, target, head)
    chosen = [one for one in listed if one.commit.seq <= head.seq]
    newest = next((one for one in chosen if not one.commit.bypassed), None)
    coming(len(chosen))
    with reading(source, newest.commit.seq) if newest else nullcontext():
        for one in reversed(chosen):
            line = _copied(source, target, one)
            yield line
            if one is newest and line.data.get("state") == "retired":
                why = "its training has deleted the newest commit meanwhile: run the same command again"
                yield Line(f"log: not copied: {why}", {"problem": why})
                return
    for key in [*source.list(MEMBERS), *pin_keys(source)]:
        target.put(key, source.get(key))
    for seq in range(has + 1, head.seq + 1):
        _copy_entry(source, target, seq)
    yield Line(f"log: copied, {head.seq} entries", {"entries": head.seq})


def _copied(source: Store, target: Store, one: Listed) -> Line:
    about = {"seq": one.commit.seq, "step": one.commit.step}
    what = f"commit {one.commit.seq} of step {one.commit.step}"
    try:
        with reading(source, one.commit.seq):
            size = _copy_commit(source, target, one.event)
    except Corrupt as error:
        if is_deleted(source, one.event):
            return Line(f"{what}: not copied: its training has just deleted it", {**about, "state": "retired"})
        return Line(f"{what}: not copied: {error}", {**about, "problem": str(error)})
    return Line(f"{what}: copied, {size} bytes", {**about, "bytes": size})


def _copied_before(source: Store, target: Store, head: Head) -> int:
    """How many entries of the source's log the target has. Each entry names the checksum of the one before it, so that
    an equal last one means equal ones before. UserError if the target's log is another one."""
    found = Log(target).head()
    if found is None:
        return 0
    if found.seq > head.seq or _entry(source, found.seq) != _entry(target, found.seq):
        raise UserError(
            f"{target.uri} has a log that is not the beginning of the log of {source.uri}: copy to another root"
        )
    return found.seq


def _copy_commit(source: Store, target: Store, committed: Committed) -> int:
    """Bytes of its shards. The manifest is copied last: a commit without it does not exist."""
    manifest = fetch_manifest(source, committed)
    for index in manifest.indexes:
        if not _has(target, index.shard.key, index.shard.size, index.shard.crc):
            blocks = (block for _, block in read_blocks(source, index.shard))
            target.put_stream(index.shard.key, blocks, index.shard.size)
    for key in _small(manifest, committed):
        try:
            target.put(key, source.get(key))
        except NoSuchKey:
            raise Corrupt(f"{key} is missing") from None
    return sum(index.shard.size for index in manifest.indexes)


def _has(target: Store, key: str, size: int, crc: str) -> bool:
    """Whether the target has this object already. One whose checksum it does not tell is copied again."""
    info = target.head(key)
    return info is not None and (info.size, info.crc) == (size, crc)


def _small(manifest: Manifest, committed: Committed) -> Iterator[str]:
    yield from (index_key(committed.manifest.folder, index.rank) for index in manifest.indexes)
    yield committed.manifest.key


def _copy_entry(source: Store, target: Store, seq: int) -> None:
    data = _entry(source, seq)
    try:
        target.put(key_of(seq), data, if_absent=True)
    except KeyExists:
        if _entry(target, seq) != data:
            raise UserError(f"another process is writing to {target.uri}: entry {seq} differs") from None


def _entry(store: Store, seq: int) -> bytes:
    try:
        return store.get(key_of(seq))
    except NoSuchKey:
        raise Corrupt(f"{store.uri} has no entry {seq} in its log any more") from None
