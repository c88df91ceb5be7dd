"""What a commit consists of: its shards with their checksums, its items, the state that is not tensors.

Each rank writes its part as an index object beside its shard; the manifest is all of them together, and a commit
exists once its log entry names the manifest. Values and their JSON, no torch; values inside `objects` and `ranks` are
the codec's, still encoded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.checkpoint.state import ArrayRef, TwinRef
from perdure.errors import Corrupt, UserError
from perdure.layout.box import Box
from perdure.log.entry import Committed, ManifestRef, checksum
from perdure.log.objects import fetch
from perdure.log.position import Position
from perdure.store import Store

FORMAT: Final = 5
"""The newest version that this code reads. It writes the oldest one that can express the content, so that older
versions can read as much as possible."""
_SINCE_2: Final = frozenset({ArrayRef.TAG, TwinRef.TAG})

SHARED = "shared"
REPLICATED = "replicated"


@dataclass(frozen=True)
class Item:
    """One tensor of a shard, or a box of one."""

    part: str
    """SHARED or REPLICATED."""
    name: str
    dtype: str
    """torch's name for it."""
    shape: tuple[int, ...]
    """The whole tensor's."""
    device: str
    """Kind of the device it was saved from: cpu, cuda."""
    start: int
    """Where its bytes begin in the shard."""
    size: int
    order: tuple[int, ...] | None = None
    """Its dimensions as they lay in memory, the outermost first; None: row by row, as the bytes are stored always.

    Some kernels (`fused=True`) go through memory, not through indices: what belongs together has to lie alike.
    """
    box: Box | None = None
    """The part of it whose bytes these are; None: all of a tensor that was whole on every rank."""

    @property
    def end(self) -> int:
        """Where they end."""
        return self.start + self.size

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the part of the tensor whose bytes these are."""
        return self.shape if self.box is None else self.box.sizes

    @property
    def held(self) -> Box:
        """The part of the tensor whose bytes these are."""
        return Box.whole(self.shape) if self.box is None else self.box


@dataclass(frozen=True)
class ShardObject:
    """One rank's tensors: a safetensors object."""

    key: str
    size: int
    crc: str
    block_bytes: int
    blocks: tuple[str, ...]
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Index:
    """One rank's part of a commit."""

    rank: int
    shard: ShardObject
    state: Any
    """This rank's own state, encoded."""
    objects: Any
    """Non-tensor state, encoded; of rank 0 only."""


@dataclass(frozen=True)
class Manifest:
    """A whole commit."""

    run: int
    position: Position
    indexes: tuple[Index, ...]
    """One per rank, in order."""

    @property
    def objects(self) -> Any:
        return self.indexes[0].objects

    @property
    def tensors(self) -> list[Item]:
        """Each tensor once, as if all of it lay where its first box does."""
        return list(_whole(item for index in self.indexes for item in index.shard.items))


def _whole(items: Iterable[Item]) -> Iterator[Item]:
    seen = set()
    for item in items:
        if item.box is None:
            yield item
        elif (key := (item.part, item.name)) not in seen:
            seen.add(key)
            size = item.size // max(item.box.count, 1) * math.prod(item.shape)
            yield replace(item, size=size, box=Box.whole(item.shape))


def index_body(index: Index) -> dict[str, Any]:
    """The index as plain JSON: what a rank sends the others, and with the position the content of its object."""
    shard = {**vars(index.shard), "items": [write_item(item) for item in index.shard.items]}
    return {**vars(index), "shard": shard}


def write_index(index: Mapping[str, Any], run: int, position: Position) -> bytes:
    """The index object's bytes: enough, beside those of the other ranks, to write the manifest from."""
    return _text({**_begin(run, position, [index]), **index})


def write_manifest(indexes: Sequence[Mapping[str, Any]], run: int, position: Position) -> bytes:
    """The manifest's bytes."""
    return _text({**_begin(run, position, indexes), "world": len(indexes), "indexes": list(indexes)})


def refer_to(key: str, data: bytes) -> ManifestRef:
    """What a log entry says of a manifest with these bytes."""
    return ManifestRef(key, len(data), checksum(data))


def is_deleted(store: Store, committed: Committed) -> bool:
    """Whether a commit that was there a moment ago is retired now: its training deletes the manifest first."""
    return store.head(committed.manifest.key) is None


def fetch_manifest(store: Store, committed: Committed) -> Manifest:
    """A commit's manifest, verified. Corrupt also if it is missing."""
    return read_manifest(committed, fetch(store, committed.manifest.key, committed.manifest.size))


def read_manifest(committed: Committed, data: bytes) -> Manifest:
    """The manifest of a commit. Corrupt unless its bytes match the log."""
    ref = committed.manifest
    if len(data) != ref.size or checksum(data) != ref.crc:
        raise Corrupt(
            f"{ref.key} is not what the log says: {len(data)} bytes with checksum {checksum(data)}, {ref.size} with "
            f"{ref.crc} were written"
        )
    try:
        body = json.loads(data)
        if body["version"] > FORMAT:
            raise UserError(
                f"{ref.key} has version {body['version']}, this Perdure knows {FORMAT}: use a newer Perdure"
            )
        position = Position(int(body["step"]), int(body["epoch"]), dict(body["cursors"]))
        manifest = Manifest(int(body["run"]), position, tuple(_index(part) for part in body["indexes"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{ref.key} cannot be read: {error!r}") from error
    if position != Position(committed.step, committed.epoch, committed.cursors) or not manifest.indexes:
        raise Corrupt(f"{ref.key} is of step {position.step}, its log entry says step {committed.step}")
    return manifest


def _begin(run: int, position: Position, indexes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cursors = dict(position.cursors)
    version = max(_version(index) for index in indexes)
    return {"version": version, "run": run, "step": position.step, "epoch": position.epoch, "cursors": cursors}


def _version(index: Mapping[str, Any]) -> int:
    """The version needed to read this part of a commit. Since 3 each rank may have its own state of an object; since 4
    memory has an order; since 5 a tensor may lie in boxes.
    """
    objects = index["objects"]
    by_rank = isinstance(objects, dict) and None in objects.values()
    ordered = any(item["order"] for item in index["shard"]["items"])
    boxed = any(item["box"] for item in index["shard"]["items"])
    return max(3 if by_rank else 1, 4 if ordered else 1, 5 if boxed else 1, _needs(objects), _needs(index["state"]))


def _needs(encoded: Any) -> int:
    """The version needed to read the values outside shards."""
    if isinstance(encoded, list):
        return max(map(_needs, encoded), default=1)
    if not isinstance(encoded, dict):
        return 1
    if "$" in encoded and encoded.get("order"):
        return 4
    return 2 if encoded.get("$") in _SINCE_2 else max(map(_needs, encoded.values()), default=1)


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _index(body: Mapping[str, Any]) -> Index:
    shard = body["shard"]
    items = tuple(read_item(item) for item in shard["items"])
    blocks = tuple(map(str, shard["blocks"]))
    found = ShardObject(shard["key"], int(shard["size"]), shard["crc"], int(shard["block_bytes"]), blocks, items)
    return Index(int(body["rank"]), found, body["state"], body["objects"])


def write_item(item: Item) -> dict[str, Any]:
    """What `read_item` reads. Faster than asdict, because training may stand still meanwhile."""
    return {**vars(item), "box": None if item.box is None else vars(item.box)}


def read_item(body: Mapping[str, Any]) -> Item:
    """What `write_item` or `asdict` has made of an item. ValueError, KeyError or TypeError if it is none."""
    shape, order = tuple(map(int, body["shape"])), body.get("order")
    if order is not None:
        order = tuple(map(int, order))
        if sorted(order) != list(range(len(shape))):
            raise ValueError(f"{body['name']} lies in the order {list(order)}, and has {len(shape)} dimensions")
    start, size = int(body["start"]), int(body["size"])
    box = _read_box(body["name"], shape, body.get("box"))
    return Item(body["part"], body["name"], body["dtype"], shape, body["device"], start, size, order, box)


def _read_box(name: str, shape: tuple[int, ...], body: Mapping[str, Any] | None) -> Box | None:
    if body is None:
        return None
    box = Box(tuple(map(int, body["offset"])), tuple(map(int, body["sizes"])))
    if not len(box.offset) == len(box.sizes) == len(shape) or box not in Box.whole(shape):
        raise ValueError(f"{name} of shape {list(shape)} has the box {box}")
    return box
