"""Makes a checkpoint, all ranks together: shards and indexes by each, manifest and log entry by rank 0.

First every rank stages, which refuses what cannot be saved; then the staged parts are committed. Nothing is
overwritten: every attempt writes under a nonce of its own, and what it wrote is a commit only once the log says so.
Called by the checkpointer, which commits what it has staged again after StorageError, for as long as it may.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from perdure.checkpoint import stage as staging
from perdure.checkpoint.entry import checksum
from perdure.checkpoint.state import Position, Saved, State
from perdure.checkpoint.upload import Staged, put_manifest, put_part
from perdure.checkpoint.writer import Writer
from perdure.contract import CommitRef
from perdure.errors import StorageError, UserError
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.store import Store


def stage_together(
    peers: Peers, state: State, tell: Callable[[Staged], Any] = lambda _: None
) -> tuple[Staged, list[Any]]:
    """This rank's part, once all ranks are known to hold the same tensors, and what each tells with its own (JSON).

    Collective, one exchange; UserError on all ranks.
    """

    def act() -> tuple[Staged, list[Any]]:
        staged = staging.stage(state, peers.rank, peers.world)
        return staged, [_fingerprint(state), tell(staged)]

    own, every = on_all(peers, act)
    if len({layout for layout, _ in every}) > 1:
        _tell_other_layout(peers, state)
    return own, [told for _, told in every]


def commit(
    store: Store,
    peers: Peers,
    writer: Writer | None,
    staged: Staged,
    position: Position,
    *,
    run: int,
    final: bool,
    reason: str,
    pin: str | None = None,
) -> Saved:
    """Writes what was staged at `position` and returns when it is in the log. Collective; `writer` on rank 0 alone.

    All ranks return the same commit or raise the same kind of error: StorageError (try again), Fenced or
    RootTakenOver; PeerLost if a rank is gone.
    """
    clock = _Clock()
    begun = on_rank0(peers, lambda: _begin(_pen(writer), position, run, final=final, pin=pin))
    if "landed" in begun:
        return Saved(CommitRef(begun["landed"], position.step), clock.seconds)
    folder = begun["folder"]
    try:
        _, indexes = on_all(peers, lambda: (None, put_part(store, folder, staged, run, position)))
        clock.lap("upload")

        def append() -> int:
            manifest = put_manifest(store, folder, indexes, run, position)
            return _pen(writer).commit(position, manifest, final=final, reason=reason, pin=pin).seq

        seq = on_rank0(peers, append)
        clock.lap("commit")
    except StorageError:
        if writer:
            writer.abandoned.add(folder)
        raise
    return Saved(CommitRef(seq, position.step), clock.seconds)


def _begin(writer: Writer, position: Position, run: int, *, final: bool, pin: str | None) -> dict[str, Any]:
    """A folder of its own for this attempt, unless the one before it has made the commit after all."""
    landed = writer.landed(position.step, final=final, pin=pin)
    if landed:
        return {"landed": landed.seq}
    return {"folder": f"data/{run}/{position.step}-{os.urandom(8).hex()}/"}


def _fingerprint(state: State) -> str:
    return checksum(repr(staging.layout(state.shared)).encode())


def _tell_other_layout(peers: Peers, state: State) -> None:
    layouts: list[Mapping[str, Any]] = [
        {name: f"{dtype} {shape}" for name, dtype, shape in found}
        for found in peers.gather(staging.layout(state.shared))
    ]
    for rank, found in enumerate(layouts):
        for name in sorted(layouts[0].keys() | found.keys()):
            mine, other = layouts[0].get(name, "nothing"), found.get(name, "nothing")
            if mine != other:
                raise UserError(
                    f"ranks 0 and {rank} hold different parameters or optimizer state: {name} is {mine} on rank 0 and "
                    f"{other} on rank {rank}: build the same model and optimizer on every rank"
                )


def _pen(writer: Writer | None) -> Writer:
    if writer is None:
        raise UserError("rank 0 saves without a writer: open the log first")
    return writer


class _Clock:
    """Durations of the parts of a save."""

    def __init__(self) -> None:
        self.seconds = {"upload": 0.0, "commit": 0.0}
        self._since = time.monotonic()

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part], self._since = now - self._since, now
