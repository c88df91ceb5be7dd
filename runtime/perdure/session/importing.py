"""Commits a state that no training has made, as if a script had registered it: the first commit of an empty root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.checkpoint.save import commit, stage_together
from perdure.errors import UserError
from perdure.group.peers import Solo
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.state.registry import Registry
from perdure.store import Store

UID: Final = "import"
"""Of the run that makes the commit."""


def first_run(store: Store) -> int:
    """The number of the run that may commit to this root first. UserError if the root has a log.

    A log of an import that was interrupted before it committed does not count.
    """
    head = Log(store).head()
    unfinished = head and head.entry and head.entry.uid == UID and head.entry.newest_commit is None
    if head and not unfinished:
        raise UserError(f"{store.uri} has a log already: name a root where nothing was trained")
    return head.entry.run + 1 if head and head.entry else 1


def commit_state(store: Store, run: int, name: str, state: Mapping[Any, Any]) -> None:
    """Write this state_dict, as that of an object registered as `name`, as the final commit of the root's first run.

    UserError if the state cannot be saved.
    """
    peers, registry = Solo(), Registry()
    registry.add(name, _Held(state))
    staged, _ = stage_together(peers, registry.state(None))
    writer = Writer(Log(store), uid=UID, run=run)
    writer.try_open(1, wait_over=True)
    commit(store, peers, writer, staged, Position(0, 0, {}), run=run, final=True, reason="import")


class _Held:
    """An object that has this state_dict, and is never given another one."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[Any, Any]:
        return self._state

    def load_state_dict(self, _: Mapping[Any, Any], /) -> None: ...
