"""Reads the newest usable checkpoint, all ranks together, into a world of any size.

A commit that is damaged anywhere is skipped by all ranks, with the reason; a store that does not answer is an error
that may pass, and nothing is skipped for it. Called by the session once its run is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from perdure.checkpoint import shards
from perdure.checkpoint.codec import decode
from perdure.checkpoint.entry import Committed, Entry, ManifestRef
from perdure.checkpoint.log import Slot
from perdure.checkpoint.manifest import REPLICATED, SHARED, Manifest, fetch, fetch_manifest
from perdure.checkpoint.state import Loaded, State
from perdure.contract import CommitRef
from perdure.errors import Corrupt
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.store import Store


def load(store: Store, peers: Peers, commits: Iterable[Slot] | None) -> Loaded | None:
    """The newest commit of which every rank could read and verify everything. Collective; `commits` on rank 0 alone.

    None if no commit was ever made; Corrupt if there are some and not one is usable. After StorageError the same call
    may be made again.
    """
    skipped: list[str] = []
    walk = iter(commits or ())
    while True:
        candidate = on_rank0(peers, lambda: _next(store, walk))
        skipped += candidate["passed"]
        if candidate["commit"] is None:
            break
        seq, committed = candidate["commit"]["seq"], _committed(candidate["commit"])
        found, reports = on_all(peers, lambda: _try(store, peers, committed))  # noqa: B023  (called at once)
        damage = next((report for report in reports if report), "")
        if found and not damage:
            manifest, state = found
            commit = CommitRef(seq, committed.step)
            return Loaded(commit, manifest.position, state, len(manifest.indexes), tuple(skipped))
        skipped.append(f"commit {seq} of step {committed.step}: {damage}")
    if not skipped:
        return None
    raise Corrupt(
        f"{store.uri} has commits and none can be used: {'; '.join(skipped[:5])}: "
        f"restore the objects, or start over under another root"
    )


def read_state(store: Store, manifest: Manifest, rank: int | None) -> State:
    """Everything a commit holds, verified; with the own state of `rank`, if given. Corrupt names what is damaged."""
    parts: dict[str, dict[str, Tensor]] = {SHARED: {}, REPLICATED: {}}
    for index in manifest.indexes:
        data = fetch(store, index.shard.key, index.shard.size)
        shards.verify(index.shard, data)
        for part, tensors in shards.unpack(index.shard, data).items():
            parts.setdefault(part, {}).update(tensors)
    own = None if rank is None else decode(manifest.indexes[rank].state)
    return State(parts[SHARED], parts[REPLICATED], decode(manifest.objects), own)


def _next(store: Store, commits: Iterator[Slot]) -> dict[str, Any]:
    """The next commit whose manifest is there, and what was passed over on the way to it."""
    passed: list[str] = []
    retired = 0
    for slot in commits:
        match slot:
            case Slot(entry=Entry(event=Committed() as committed)):
                if store.head(committed.manifest.key):
                    return {"passed": passed, "commit": _wire(slot.seq, committed)}
                retired += 1
            case _:
                passed.append(slot.problem)
    if retired:
        passed.append(f"{retired} older commits are retired")
    return {"passed": passed, "commit": None}


def _try(store: Store, peers: Peers, committed: Committed) -> tuple[tuple[Manifest, State] | None, str]:
    try:
        manifest = fetch_manifest(store, committed)
        rank = peers.rank if len(manifest.indexes) == peers.world else None
        return (manifest, read_state(store, manifest, rank)), ""
    except Corrupt as error:
        return None, str(error)


def _wire(seq: int, committed: Committed) -> dict[str, Any]:
    ref = committed.manifest
    position = {"step": committed.step, "epoch": committed.epoch, "cursors": dict(committed.cursors)}
    return {"seq": seq, "manifest": [ref.key, ref.size, ref.crc], **position}


def _committed(wire: dict[str, Any]) -> Committed:
    key, size, crc = wire["manifest"]
    ref = ManifestRef(key, size, crc)
    return Committed(wire["step"], wire["epoch"], wire["cursors"], final=False, reason="", manifest=ref)
