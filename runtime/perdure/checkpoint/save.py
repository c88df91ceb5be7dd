"""Makes a checkpoint, all ranks together: each writes its shard and index, rank 0 the manifest and the log entry.

First every rank stages, which refuses what cannot be saved; then the staged parts are committed. Nothing is
overwritten: every attempt writes under its own nonce, and becomes a commit only by its log entry. Called by the
checkpointer, which retries after StorageError.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from perdure.checkpoint import stage as staging
from perdure.checkpoint.retention import discard
from perdure.checkpoint.state import Contribution, RankState, Saved
from perdure.checkpoint.upload import Staged, put_manifest, put_part
from perdure.errors import StorageError, UserError
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.layout.memory_order import order_text
from perdure.layout.plan import RULES
from perdure.log.entry import checksum
from perdure.log.position import Position
from perdure.log.writer import Writer
from perdure.store import Store
from perdure.wire import CommitRef
from perdure.wire.settings import NO_MEMBER, Member


def stage_together(
    peers: Peers,
    state: RankState,
    tell: Callable[[Staged], Any] = lambda _: None,
    stage: Callable[[RankState, int, int], Staged] = staging.stage,
) -> tuple[Staged, list[Any]]:
    """Stage this rank's part with `stage`; returns it with a JSON value of each rank.

    Raises UserError on all ranks if one cannot save its state, or if they hold different tensors. Collective, one
    exchange.
    """

    def act() -> tuple[Staged, list[Any]]:
        staged = stage(state, peers.rank, peers.world)
        return staged, [_fingerprint(state), tell(staged)]

    own, every = on_all(peers, "stages what it saves", act)
    if len({layout for layout, _ in every}) > 1:
        _raise_layout_error(peers, state)
    return own, [report for _, report in every]


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
    member: Member = NO_MEMBER,
    staging: float = 0.0,
) -> Saved:
    """Write the staged state of `position`, and return once it is in the log. Collective; only rank 0 has a `writer`.

    `member` is this rank's pod and node, `staging` the seconds that staging took; all ranks get those of all. All ranks
    return the same commit or raise the same kind of error: StorageError (try again), Fenced or RootTakenOver; PeerLost
    if a rank is gone.
    """
    clock, own = _Clock(), {"member": asdict(member), "seconds": {"stage": staging}}

    def begin() -> dict[str, Any]:
        found = _begin(_required(writer), position, run, final=final, pin=pin)
        discard(store, _required(writer))
        return found

    begun = on_rank0(peers, "chooses a folder", begin)
    if "landed" in begun:
        reports = peers.gather("has saved before", own)
        return Saved(CommitRef(begun["landed"], position.step), clock.seconds, _by_rank(reports, {}))
    folder = begun["folder"]

    def upload() -> tuple[None, dict[str, Any]]:
        index = put_part(store, folder, staged, run, position)
        return None, {**own, "seconds": {"stage": staging, "upload": clock.since_lap()}, "index": index}

    def append() -> dict[str, Any]:
        manifest = put_manifest(store, folder, [found["index"] for found in reports], run, position)
        seq = _required(writer).commit(position, manifest, final=final, reason=reason, pin=pin).seq
        return {"seq": seq, "seconds": {"commit": clock.since_lap()}}

    try:
        _, reports = on_all(peers, "uploads its part", upload)
        clock.lap("upload")
        appended = on_rank0(peers, "commits", append)
        clock.lap("commit")
    except StorageError:
        if writer:
            writer.abandoned.add(folder)
        raise
    return Saved(CommitRef(appended["seq"], position.step), clock.seconds, _by_rank(reports, appended["seconds"]))


def _by_rank(reports: Sequence[Mapping[str, Any]], of_rank_0: Mapping[str, float]) -> tuple[Contribution, ...]:
    seconds = [{**found["seconds"], **(of_rank_0 if rank == 0 else {})} for rank, found in enumerate(reports)]
    return tuple(Contribution(Member(**found["member"]), own) for found, own in zip(reports, seconds, strict=True))


def _begin(writer: Writer, position: Position, run: int, *, final: bool, pin: str | None) -> dict[str, Any]:
    """A new folder for this attempt, or the commit of an earlier attempt that succeeded without an answer."""
    landed = writer.landed(position.step, final=final, pin=pin)
    if landed:
        return {"landed": landed.seq}
    return {"folder": f"data/{run}/{position.step}-{os.urandom(8).hex()}/"}


def _fingerprint(state: RankState) -> str:
    return checksum(repr([RULES, *staging.layout(state.shared)]).encode())


def _raise_layout_error(peers: Peers, state: RankState) -> NoReturn:
    layouts: list[Mapping[str, Any]] = [
        {
            name: f"{dtype} {shape}{order_text(order)}{placed and f' as {placed}'}"
            for name, dtype, shape, order, placed in found
        }
        for found in peers.gather("compares layouts", staging.layout(state.shared))
    ]
    for rank, found in enumerate(layouts):
        for name in sorted(layouts[0].keys() | found.keys()):
            mine, other = layouts[0].get(name, "nothing"), found.get(name, "nothing")
            if mine != other:
                raise UserError(
                    f"ranks 0 and {rank} hold different parameters or optimizer state: {name} is {mine} on rank 0 and "
                    f"{other} on rank {rank}: build the same model and optimizer on every rank, in one memory format"
                )
    raise UserError(
        "the ranks run versions of perdure that share out a commit by different rules: start all members with one image"
    )


def _required(writer: Writer | None) -> Writer:
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
