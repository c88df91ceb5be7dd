"""Deletes commits that are no longer needed: a commit without its manifest is retired.

The manifest goes first and the data after it, so that what is half deleted is never taken for a checkpoint; the
oldest goes first, so that below a retired commit there are only retired ones. Never the log (a deleted entry would
give its number to a zombie), never the newest usable commit. Called by rank 0 after a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perdure.checkpoint.entry import Committed, Entry
from perdure.checkpoint.log import Slot
from perdure.checkpoint.manifest import fetch_manifest
from perdure.checkpoint.writer import Writer
from perdure.errors import Corrupt, UserError
from perdure.store import Store


def retire(store: Store, writer: Writer, keep: int) -> list[str]:
    """Retires all but the newest `keep` commits and clears what failed attempts left; the prefixes it deleted.

    StorageError: report it and go on training, the next call does the rest. A writer that was overtaken deletes
    nothing: a zombie must not decide what its successor may fall back to. Its next append tells it.
    """
    if keep < 1:
        raise UserError(f"checkpoint.keep is {keep}: keep at least 1")
    victims = _victims(store, writer, keep)
    abandoned = sorted(writer.abandoned)
    if (victims or abandoned) and writer.overtaken():
        return []
    for committed in reversed(victims):
        store.delete([committed.manifest.key])
        store.delete(store.list(committed.manifest.folder))
    for folder in abandoned:
        store.delete(store.list(folder))
        writer.abandoned.discard(folder)
    return [committed.manifest.folder for committed in reversed(victims)] + abandoned


def _victims(store: Store, writer: Writer, keep: int) -> list[Committed]:
    """The commits to retire, newest first."""
    victims: list[Committed] = []
    kept, usable = 0, False
    for committed in _committed(writer.commits()):
        present = store.head(committed.manifest.key) is not None
        if present and (kept < keep or not usable):
            kept, usable = kept + 1, usable or _usable(store, committed)
        elif present or store.list(committed.manifest.folder, limit=1):
            victims.append(committed)
        elif kept:
            break
    return victims


def _committed(slots: Iterable[Slot]) -> Iterator[Committed]:
    for slot in slots:
        match slot:
            case Slot(entry=Entry(event=Committed() as committed)):
                yield committed


def _usable(store: Store, committed: Committed) -> bool:
    """Whether the manifest is intact and every shard is there in its full length, as far as the store tells."""
    try:
        manifest = fetch_manifest(store, committed)
    except Corrupt:
        return False
    for index in manifest.indexes:
        info = store.head(index.shard.key)
        if info is None or info.size != index.shard.size or info.crc not in (None, index.shard.crc):
            return False
    return True
