"""Finds what is wrong with a root before a run begins there, and reports it instead of guessing.

If the log is gone but its data is not, a run would begin from nothing, and its retention would delete what it cannot
see. That is refused, and so is a log whose only commits cannot be read. Reported are damaged entries, entries that the
next one does not match, and checkpoints without an entry. Reads only what a start depends on, however long the log is;
`perdure verify` reads everything. Called by the writer before it opens a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from perdure.errors import LogLost
from perdure.log.entry import Committed, Entry
from perdure.log.objects import FOLDER, manifest_key
from perdure.log.reader import EveryCommit, Head, Log

LOOKED_AT: Final = 64
"""How many commits are searched for one that names a folder. A folder that an older one names is older than the newest
commit."""


def refuse_data_without_log(log: Log) -> None:
    """LogLost if there are checkpoints but no log at all."""
    found = _a_checkpoint(log)
    if found and log.head() is None:  # otherwise another process has just opened and saved
        raise LogLost(
            f"{log.store.uri} has checkpoints, such as {found}, and no log: restore log/, or if you want to start from "
            f"nothing move data/ away or use another root"
        )


def refuse_unreadable_end(log: Log, head: Head) -> None:
    """LogLost if the newest entries cannot be read, no entry before them is of a commit, and there are checkpoints."""
    readable = head.entry is not None and head.entry.seq == head.seq
    if readable or (head.entry and head.entry.newest_commit):
        return
    found = _a_checkpoint(log)
    if found:
        raise LogLost(
            f"{log.store.uri} has checkpoints, such as {found}, and the end of its log cannot be read: "
            f"{'; '.join(head.skipped)}: restore log/, or if you want to start from nothing move log/ and data/ away "
            f"or use another root"
        )


def _a_checkpoint(log: Log) -> str | None:
    return next((key for key in log.store.list("data/") if FOLDER.match(key)), None)


def doubts(log: Log, head: Head) -> Iterator[str]:
    """What is wrong with the end of the log, and which data it does not name."""
    entry = head.entry
    if entry is None:
        return
    if entry.seq > 1:
        below = log.linked(entry.seq - 1)
        if below.problem:
            yield below.problem
    newest = log.slot(entry.newest_commit) if entry.newest_commit else None
    event = newest.entry.event if newest and newest.entry else None
    last = (newest.entry.run, event.step) if newest and newest.entry and isinstance(event, Committed) else (0, -1)
    for folder in sorted(_unnamed(log, entry, last)):
        yield (
            f"{folder} holds a whole checkpoint that no log entry names: its entry was deleted, or its writer was "
            f"killed before it could append one"
        )


def _unnamed(log: Log, entry: Entry, last: tuple[int, int]) -> set[str]:
    """Folders with a manifest, of a later run or step than the newest commit, that none of the newest commits names."""
    whole = {
        found[0]
        for key in log.store.list("data/")
        if (found := FOLDER.match(key)) and key == manifest_key(found[0]) and _place(found) > last
    }
    for slot, _ in islice(EveryCommit(log, entry.newest_commit, entry.newest_opened), LOOKED_AT):
        if not whole:
            break
        if slot.entry and isinstance(slot.entry.event, Committed):
            whole.discard(slot.entry.event.manifest.folder)
    return whole


def _place(found: re.Match[str]) -> tuple[int, int]:
    return int(found["run"]), int(found["step"])
