"""Makes a checkpoint, all ranks together: shards and indexes by each, manifest and log entry by rank 0.

First every rank stages, which refuses what cannot be saved; then the staged parts are committed. Nothing is
overwritten: every attempt writes under a nonce of its own, and what it wrote is a commit only once the log says so.
Called by the checkpointer, which commits what it has staged again after StorageError, for as long as it may.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from perdure.checkpoint import stage as staging
from perdure.checkpoint import tensors
from perdure.checkpoint.state import Contribution, Saved, State
from perdure.checkpoint.upload import Staged, put_manifest, put_part
from perdure.errors import StorageError, UserError
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.log.entry import checksum
from perdure.log.position import Position
from perdure.log.writer import Writer
from perdure.store import Store
from perdure.wire import CommitRef
from perdure.wire.settings import NOBODY, Member


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
    member: Member = NOBODY,
    staging: float = 0.0,
) -> Saved:
    """Writes what was staged at `position` and returns when it is in the log. Collective; `writer` on rank 0 alone.

    `member` is where this rank runs, and `staging` how many seconds it took to stage: all ranks are told of all. All
    ranks return the same commit or raise the same kind of error: StorageError (try again), Fenced or
    RootTakenOver; PeerLost if a rank is gone.
    """
    clock, own = _Clock(), {"member": asdict(member), "seconds": {"stage": staging}}
    begun = on_rank0(peers, lambda: _begin(_pen(writer), position, run, final=final, pin=pin))
    if "landed" in begun:
        told = peers.gather(own)
        return Saved(CommitRef(begun["landed"], position.step), clock.seconds, _by_rank(told, {}))
    folder = begun["folder"]

    def upload() -> tuple[None, dict[str, Any]]:
        index = put_part(store, folder, staged, run, position)
        return None, {**own, "seconds": {"stage": staging, "upload": clock.since_lap()}, "index": index}

    def append() -> dict[str, Any]:
        manifest = put_manifest(store, folder, [found["index"] for found in told], run, position)
        seq = _pen(writer).commit(position, manifest, final=final, reason=reason, pin=pin).seq
        return {"seq": seq, "seconds": {"commit": clock.since_lap()}}

    try:
        _, told = on_all(peers, upload)
        clock.lap("upload")
        appended = on_rank0(peers, append)
        clock.lap("commit")
    except StorageError:
        if writer:
            writer.abandoned.add(folder)
        raise
    return Saved(CommitRef(appended["seq"], position.step), clock.seconds, _by_rank(told, appended["seconds"]))


def _by_rank(told: Sequence[Mapping[str, Any]], of_rank_0: Mapping[str, float]) -> tuple[Contribution, ...]:
    seconds = [{**found["seconds"], **(of_rank_0 if rank == 0 else {})} for rank, found in enumerate(told)]
    return tuple(Contribution(Member(**found["member"]), own) for found, own in zip(told, seconds, strict=True))


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
        {name: f"{dtype} {shape}{tensors.told_order(order)}" for name, dtype, shape, order in found}
        for found in peers.gather(staging.layout(state.shared))
    ]
    for rank, found in enumerate(layouts):
        for name in sorted(layouts[0].keys() | found.keys()):
            mine, other = layouts[0].get(name, "nothing"), found.get(name, "nothing")
            if mine != other:
                raise UserError(
                    f"ranks 0 and {rank} hold different parameters or optimizer state: {name} is {mine} on rank 0 and "
                    f"{other} on rank {rank}: build the same model and optimizer on every rank, in one memory format"
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

    def since_lap(self) -> float:
        return time.monotonic() - self._since

    def lap(self, part: str) -> None:
        self.seconds[part] = self.since_lap()
        self._since = time.monotonic()
