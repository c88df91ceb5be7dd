"""Deletes commits that are no longer needed: a commit without its manifest is retired.

The manifest goes first and the data after it, so that what is half deleted is never taken for a checkpoint; the
oldest goes first, so that below a retired commit there are only retired ones. Never the log (a deleted entry would
give its number to a zombie), never the newest usable commit. Called by rank 0 after a commit.

What a killed process had uploaded is in no log entry. Older runs cannot append any more, so what they left and no
commit names is nobody's: each run removes it once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from perdure.checkpoint.entry import Committed, Entry
from perdure.checkpoint.log import Slot
from perdure.checkpoint.manifest import fetch_manifest, manifest_key
from perdure.checkpoint.writer import Writer
from perdure.errors import Corrupt, UserError
from perdure.store import Store

_FOLDER: Final = re.compile(r"data/(?P<run>[0-9]+)/[^/]+/")


def retire(store: Store, writer: Writer, keep: int) -> list[str]:
    """Retires all but the newest `keep` commits and clears what failed attempts and older runs left; what it deleted.

    StorageError: report it and go on training, the next call does the rest. A writer that was overtaken deletes
    nothing: a zombie must not decide what its successor may fall back to. Its next append tells it.
    """
    if keep < 1:
        raise UserError(f"checkpoint.keep is {keep}: keep at least 1")
    victims = _victims(store, writer, keep)
    retired = [committed.manifest.folder for committed in reversed(victims)]
    orphaned = [] if writer.swept else _orphaned(store, writer, retired)
    abandoned = sorted(writer.abandoned)
    # After everything was listed: what a newer run has uploaded it has uploaded after its Opened.
    if (victims or abandoned or orphaned) and writer.overtaken():
        return []
    for committed in reversed(victims):
        store.delete([committed.manifest.key])
        store.delete(store.list(committed.manifest.folder))
    for folder in [*abandoned, *orphaned]:
        store.delete(store.list(folder))
        writer.abandoned.discard(folder)
    writer.swept = True
    return [*retired, *abandoned, *orphaned]


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


def _orphaned(store: Store, writer: Writer, retired: Collection[str]) -> list[str]:
    """Folders of older runs that no commit names.

    Without a manifest there is nothing to resume from. With one, the log has to be asked: as a rule for its newest
    commits alone, to its beginning only where a process died between manifest and entry.
    """
    complete: dict[str, bool] = {}
    for key in store.list("data/"):
        found = _FOLDER.match(key)
        if found and int(found["run"]) < writer.run and found[0] not in retired:
            complete[found[0]] = complete.get(found[0], False) or key == manifest_key(found[0])
    unnamed = {folder for folder, whole in complete.items() if whole}
    for slot in writer.commits():
        if not unnamed:
            break
        match slot:
            case Slot(entry=Entry(event=Committed() as committed)):
                unnamed.discard(committed.manifest.folder)
            case _:
                unnamed.clear()  # the unreadable entry may name any of them
    return sorted(folder for folder, whole in complete.items() if not whole or folder in unnamed)


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
