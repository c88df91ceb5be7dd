"""The first commit of an empty root, which no training has made."""

from __future__ import annotations

from typing import Final

from perdure.checkpoint.save import commit, stage_together
from perdure.checkpoint.state import RankState
from perdure.errors import UserError
from perdure.group.peers import Solo
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.store import Store

UID: Final = "import"
"""The uid of the run that makes the commit."""


def first_run(store: Store) -> int:
    """The number of the run that may commit to this root first. UserError if the root has a log.

    A log of an import that was interrupted before it committed does not count.
    """
    head = Log(store).head()
    unfinished = head and head.entry and head.entry.uid == UID and head.entry.newest_commit is None
    if head and not unfinished:
        raise UserError(f"{store.uri} has a log already: name a root where nothing was trained")
    return head.entry.run + 1 if head and head.entry else 1


def commit_first(store: Store, run: int, state: RankState) -> None:
    """Write this state as the final commit of the root's first run. UserError if it cannot be saved."""
    peers = Solo()
    staged, _ = stage_together(peers, state)
    writer = Writer(Log(store), uid=UID, run=run)
    writer.try_open(1, wait_over=True)
    commit(store, peers, writer, staged, Position(0, 0, {}), run=run, final=True, reason="import")
