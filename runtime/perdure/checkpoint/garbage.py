"""Reports the unneeded data of a root, and deletes it: `perdure gc ROOT`.

The rules are those by which a training cleans up its own root (perdure.checkpoint.retention), so the command may run
beside a training. It deletes nothing that a commit names, unless the number of commits to keep is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from perdure.checkpoint.inspect import Line, unheard
from perdure.checkpoint.retention import delete, sweep, unneeded
from perdure.console import in_bytes
from perdure.errors import Corrupt, StorageError, UserError
from perdure.log.audit import refuse_data_without_log
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.store import Store

ALL: Final = 10**9
"""More commits than a root has."""


def gc(
    store: Store,
    *,
    keep: int | None = None,
    keep_every: int | None = None,
    deletes: bool = False,
    coming: Callable[[int], None] = unheard,
) -> Iterator[Line]:
    """Name each folder that is not needed and, if it `deletes`, delete them all. The last line is the sum.

    Without `keep` these are the uploads that no commit names, of older runs or older than a day. With `keep` also all
    but the newest `keep` commits. Pinned commits stay, the newest one that is whole, and the first of every
    `keep_every` steps. Tells `coming` how many folders there are, before their lines.

    Raises:
        UserError: This is no checkpoint root.
        Corrupt: The end of the log cannot be read, so nothing says what is needed.
        StorageError: The store does not answer, or a training wrote meanwhile. What is left can be deleted by the same
            command.

    """
    writer = _reader(store)
    found = unneeded(store, writer, ALL if keep is None else keep, orphans=True, keep_every=keep_every)
    commits = {committed.manifest.folder: committed for committed in found.commits.values()}
    objects = total = 0
    coming(len(found.folders))
    for folder in found.folders:
        infos = [info for info in map(store.head, store.list(folder)) if info]
        size, commit = sum(info.size for info in infos), commits.get(folder)
        why = f"commit of step {commit.step}, older than the newest {keep}" if commit else "no commit names it"
        objects, total = objects + len(infos), total + size
        yield Line(f"{folder}: {in_bytes(size)}: {why}", {"folder": folder, "bytes": size, "why": why})
    if not deletes:
        again = ": `--delete` deletes them" if objects else ""
        yield Line(f"{in_bytes(total)} in {objects} objects are not needed{again}", _sum(objects, total, deleted=False))
        return
    if not delete(store, writer, found):
        raise StorageError(f"a training wrote to {store.uri} meanwhile, so nothing was deleted: run the command again")
    uploads = sweep(store, writer)
    yield Line(
        f"{in_bytes(total)} in {objects} objects and {uploads} unfinished uploads are deleted",
        {**_sum(objects, total, deleted=True), "uploads": uploads},
    )


def _sum(objects: int, total: int, *, deleted: bool) -> dict[str, object]:
    return {"objects": objects, "bytes": total, "deleted": deleted}


def _reader(store: Store) -> Writer:
    """A writer that has read all of the log and appends nothing."""
    log = Log(store)
    head = log.head()
    if head is None:
        refuse_data_without_log(log)
        raise UserError(f"{store.uri} has no log: name a checkpoint root, a folder or s3://BUCKET/PREFIX")
    if head.entry is None or head.seq != head.entry.seq:
        raise Corrupt(f"the newest entry of the log in {store.uri} cannot be read: nothing says what is needed")
    writer = Writer(log, uid=head.entry.uid, run=head.entry.run)
    writer.stand_in(head, head.entry)
    return writer
