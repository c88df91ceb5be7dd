"""Loads the newest usable checkpoint, all ranks together, into a world of any size.

Tensors are read block by block into their final memory, without a second copy. All ranks skip a damaged commit, with
the reason. A silent store raises StorageError, and nothing is skipped for it. Called by the session once its run is
open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.boxes import is_sharded
from perdure.checkpoint.cells import Read, reads
from perdure.checkpoint.codec import decode
from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item, Manifest, ShardObject, fetch_manifest
from perdure.checkpoint.state import Loaded, RankState, Unusable
from perdure.errors import Corrupt
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.log.entry import Committed, Entry, ManifestRef
from perdure.log.kept import read_kept
from perdure.log.reader import Slot
from perdure.store import Store
from perdure.wire import CommitRef

Key = tuple[str, str]
"""A tensor's part and name."""


class Receiver(Protocol):
    """Provides the tensors to load into."""

    def targets(self, objects: Mapping[str, Any], items: Sequence[Item]) -> Mapping[Key, Tensor]:
        """The tensors to read into, by part and name; missing ones are read into new tensors on the CPU.

        `items` has each tensor once, as a whole. A target may be sharded, and gets what it holds here. It
        has its item's dtype and shape. Raises UserError if the checkpoint does not fit the registered objects.
        The contents of targets are undefined until the loaded state is taken over.
        """
        ...


class Anywhere:
    """Loads everything into new tensors."""

    def targets(self, objects: Mapping[str, Any], items: Sequence[Item]) -> Mapping[Key, Tensor]:  # noqa: ARG002
        return {}


def load(store: Store, peers: Peers, commits: Iterable[Slot] | None, into: Receiver | None = None) -> Loaded | None:
    """Load the newest commit that every rank can read and verify. Collective; only rank 0 has `commits`.

    Its tensors are the receiver's targets. Returns None if there never was a commit; raises Corrupt if none is usable.
    After StorageError the call may be repeated.
    """
    skipped: list[str] = []
    behind: Unusable | None = None
    walk, seen = iter(commits or ()), False
    while True:
        candidate = on_rank0(peers, "looks for a commit", lambda: _next(store, walk, seen=seen))  # noqa: B023  (called at once)
        skipped += candidate["passed"]
        if behind is None and (gone := candidate["gone"]):
            behind = Unusable(CommitRef(gone["seq"], gone["step"]), gone["why"])
        if candidate["commit"] is None:
            break
        seen = True
        seq, committed = candidate["commit"]["seq"], _committed(candidate["commit"])
        found, reports = on_all(peers, "reads a commit", lambda: _try(store, peers, committed, into or Anywhere()))  # noqa: B023  (called at once)
        damage = next((report for report in reports if report), "")
        if found and not damage:
            manifest, state = found
            commit, made = CommitRef(seq, committed.step), candidate["commit"]["time"]
            ranks, passed = tuple(index.state for index in manifest.indexes), tuple(skipped)
            return Loaded(commit, manifest.position, state, len(ranks), ranks, made, passed, behind, manifest.run)
        skipped.append(f"commit {seq} of step {committed.step}: {damage}")
        behind = behind or Unusable(CommitRef(seq, committed.step), damage)
    if not skipped:
        return None
    raise Corrupt(
        f"{store.uri} has commits and none can be used: {'; '.join(skipped[:5])}: "
        f"restore the objects, or start over under another root"
    )


def read_state(store: Store, manifest: Manifest, rank: int | None, into: Receiver) -> RankState:
    """Read and verify a commit, with the own state of `rank` if given. Raises Corrupt with the damaged object.

    Where tensors are sharded, in the commit or here, only blocks that this rank needs are read.
    """
    objects = decode(manifest.objects)
    items = manifest.tensors
    places = _places(items, into.targets(objects, items))
    partly = any(item.box for item in items) or any(map(is_sharded, places.values()))
    _fill(store, manifest, places, partly=partly)
    parts: dict[str, dict[str, Tensor]] = {SHARED: {}, REPLICATED: {}}
    for (part, name), tensor in places.items():
        parts[part][name] = tensor
    own = None if rank is None else decode(manifest.indexes[rank].state)
    return RankState(parts[SHARED], parts[REPLICATED], objects, own)


def read_items(store: Store, manifest: Manifest, items: Collection[Item]) -> dict[str, Tensor]:
    """Read and verify some of the manifest's tensors, by name, on the CPU. Blocks without any of them are not read.

    Raises Corrupt with the damaged object.
    """
    places = _places(items, {})
    _fill(store, manifest, places, partly=True)
    return {name: tensor for (_, name), tensor in places.items()}


def _places(items: Iterable[Item], targets: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """The targets, and new tensors for items without one."""
    places: dict[Key, Tensor] = {}
    for item in items:
        target = targets.get((item.part, item.name))
        places[item.part, item.name] = (
            tensors.empty(item.dtype, item.shape, order=item.order) if target is None else target
        )
    return places


def _fill(store: Store, manifest: Manifest, places: Mapping[Key, Tensor], *, partly: bool) -> None:
    """Reads the tensors of these places. `partly`: only the blocks that hold a byte of what this rank needs."""
    boxes: dict[Key, list[Item]] = {}
    for item in (item for index in manifest.indexes for item in index.shard.items):
        if (item.part, item.name) in places:
            boxes.setdefault((item.part, item.name), []).append(item)
    wanted: dict[int, list[Read]] = {}
    for key, items in boxes.items():
        for read in reads(items, places[key]):
            wanted.setdefault(id(read.item), []).append(read)
    for index in manifest.indexes:
        own = [read for item in index.shard.items for read in wanted.get(id(item), ())]
        if own or not partly:
            _read_shard(store, index.shard, own, partly=partly)


def _read_shard(store: Store, shard: ShardObject, wanted: Iterable[Read], *, partly: bool) -> None:
    waiting = deque(sorted((read for read in wanted if read.end > read.start), key=lambda read: read.start))
    begun: list[Read] = []
    for start, block in read_blocks(store, shard, list(waiting) if partly else None):
        end = start + len(block)
        while waiting and waiting[0].start < end:
            begun.append(waiting.popleft())
        for read in begun:
            read.write(block[max(read.start - start, 0) : read.end - start])
        begun = [read for read in begun if read.end > end]
    if left := [*begun, *waiting]:
        raise Corrupt(f"{shard.key} ends before {left[0].item.name}, which its manifest lists")


def _next(store: Store, commits: Iterator[Slot], *, seen: bool) -> dict[str, Any]:
    """The next commit with a manifest, and the commits that were skipped before it.

    Retention deletes the oldest first and never the newest. So a manifest that is missing above an existing one, or of
    the newest commit, was lost. `seen`: a newer commit had its manifest. Above a commit that is or was pinned, only the
    newest commit's manifest is known to be lost.
    """
    passed: list[str] = []
    missing: list[str] = []
    gone: dict[str, Any] | None = None
    pinned: set[int] = set()
    for slot in commits:
        match slot:
            case Slot(entry=Entry(event=Committed() as committed, time=made)):
                if store.head(committed.manifest.key):
                    unreported = len(missing) if slot.seq not in pinned else 0 if seen else 1
                    return {
                        "passed": [*passed, *missing[:unreported]],
                        "gone": gone if unreported else None,
                        "commit": {**_wire(slot.seq, committed), "time": made},
                    }
                if not missing:
                    kept = read_kept(store)
                    pinned |= kept.pinned | kept.released
                pinned |= {*committed.pins.values(), *committed.released}
                why = f"{committed.manifest.key} is missing"
                gone = gone or {"seq": slot.seq, "step": committed.step, "why": why}
                missing.append(f"commit {slot.seq} of step {committed.step}: {why}")
            case _:
                passed.append(slot.problem)
    if missing:
        lost = [] if seen else missing[:1]
        older = len(missing) - len(lost)
        passed += [*lost, *([f"{older} older commits are retired"] if older else [])]
    return {"passed": passed, "gone": None, "commit": None}


def _try(
    store: Store, peers: Peers, committed: Committed, into: Receiver
) -> tuple[tuple[Manifest, RankState] | None, str]:
    try:
        manifest = fetch_manifest(store, committed)
        rank = peers.rank if len(manifest.indexes) == peers.world else None
        return (manifest, read_state(store, manifest, rank, into)), ""
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
