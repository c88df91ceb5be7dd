"""Makes a checkpoint, all ranks together: shards and indexes by each, manifest and log entry by rank 0.

Nothing is overwritten: every attempt writes under a nonce of its own, and what it wrote is a commit only once the log
says so. Called by the session, which tries again after StorageError for as long as it may.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint import shards
from perdure.checkpoint.codec import encode
from perdure.checkpoint.entry import checksum
from perdure.checkpoint.manifest import (
    REPLICATED,
    SHARED,
    Index,
    index_body,
    index_key,
    manifest_key,
    refer_to,
    shard_key,
    write_index,
    write_manifest,
)
from perdure.checkpoint.state import Position, Saved, State
from perdure.checkpoint.writer import Writer
from perdure.contract import CommitRef
from perdure.errors import StorageError, UserError
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.store import Store


def save(
    store: Store,
    peers: Peers,
    writer: Writer | None,
    state: State,
    position: Position,
    *,
    run: int,
    final: bool,
    reason: str,
) -> Saved:
    """Saves `state` at `position` and returns when the commit is in the log. Collective; `writer` on rank 0 alone.

    All ranks return the same commit or raise the same kind of error: StorageError (try again), Fenced,
    RootTakenOver, or UserError for a state that cannot be saved; PeerLost if a rank is gone.
    """
    clock = _Clock()
    begun = on_rank0(peers, lambda: _begin(_pen(writer), position, run, final=final))
    if "landed" in begun:
        return Saved(CommitRef(begun["landed"], position.step), clock.seconds)
    attempt = _Attempt(store, peers, begun["folder"], run, position)
    try:
        data, index = attempt.stage_together(state)
        clock.lap("stage")
        _, indexes = on_all(peers, lambda: (None, attempt.upload(data, index)))
        clock.lap("upload")
        seq = on_rank0(peers, lambda: attempt.commit(_pen(writer), indexes, final=final, reason=reason))
        clock.lap("commit")
    except StorageError:
        if writer:
            writer.abandoned.add(attempt.folder)
        raise
    return Saved(CommitRef(seq, position.step), clock.seconds)


@dataclass(frozen=True)
class _Attempt:
    """One try at making a commit, under a folder that nobody else uses."""

    store: Store
    peers: Peers
    folder: str
    run: int
    position: Position

    def stage_together(self, state: State) -> tuple[bytes, dict[str, Any]]:
        """This rank's shard and index, once all ranks are known to hold the same tensors."""
        staged, layouts = on_all(self.peers, lambda: (self._stage(state), _fingerprint(state)))
        for rank, found in enumerate(layouts):
            if found != layouts[0]:
                raise UserError(
                    f"ranks 0 and {rank} hold different parameters or optimizer state (names, types or shapes): "
                    f"build the same model and optimizer on every rank"
                )
        return staged

    def upload(self, data: bytes, index: dict[str, Any]) -> dict[str, Any]:
        """Puts shard and index object; what the other ranks have to know is the index itself."""
        self.store.put(index["shard"]["key"], data)
        self.store.put(index_key(self.folder, self.peers.rank), write_index(index, self.run, self.position))
        return index

    def commit(self, writer: Writer, indexes: list[dict[str, Any]], *, final: bool, reason: str) -> int:
        """Puts the manifest and appends the log entry that makes it all count; its seq."""
        data = write_manifest(indexes, self.run, self.position)
        key = manifest_key(self.folder)
        self.store.put(key, data)
        return writer.commit(self.position, refer_to(key, data), final=final, reason=reason).seq

    def _stage(self, state: State) -> tuple[bytes, dict[str, Any]]:
        rank, world = self.peers.rank, self.peers.world
        mine = shards.share_out(state.shared, world)[rank]
        parts = {SHARED: {name: state.shared[name] for name in mine}}
        if rank == 0:
            parts[REPLICATED] = dict(state.replicated)
        data, items = shards.pack(parts)
        shard = shards.describe(shard_key(self.folder, rank, world), data, items)
        objects = encode(dict(state.objects), "objects") if rank == 0 else None
        return data, index_body(Index(rank, shard, encode(state.rank, "rank"), objects))


def _begin(writer: Writer, position: Position, run: int, *, final: bool) -> dict[str, Any]:
    """A folder of its own for this attempt, unless the one before it has made the commit after all."""
    landed = writer.landed(position.step, final=final)
    if landed:
        return {"landed": landed.seq}
    return {"folder": f"data/{run}/{position.step}-{os.urandom(8).hex()}/"}


def _fingerprint(state: State) -> str:
    return checksum(repr(shards.layout(state.shared)).encode())


def _pen(writer: Writer | None) -> Writer:
    if writer is None:
        raise UserError("rank 0 saves without a writer: open the log first")
    return writer


class _Clock:
    """Durations of the parts of a save."""

    def __init__(self) -> None:
        self.seconds = {"stage": 0.0, "upload": 0.0, "commit": 0.0}
        self._since = time.monotonic()

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part], self._since = now - self._since, now
