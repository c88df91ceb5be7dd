"""What differs between two commits, of any two roots, made by any numbers of ranks: `perdure diff A B`. Reads only.

Tensors are compared bit for bit, as integers, so that a NaN equals itself and 0.0 is not -0.0. At most BATCH_BYTES of
tensors are held of each commit, or one tensor where it is larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from perdure.checkpoint.history import find
from perdure.checkpoint.inspect import Line
from perdure.checkpoint.load import read_items
from perdure.checkpoint.manifest import Item, Manifest, fetch_manifest
from perdure.checkpoint.reading import reading
from perdure.store import Store, open_store
from perdure.wire import CommitSelector

BATCH_BYTES: Final = 256 * 1024 * 1024
PIECE_ELEMENTS: Final = 4 * 1024 * 1024
_ABSENT: Final = "nothing"
_NUMBERLESS: Final = torch.float4_e2m1fn_x2
"""torch does not turn its elements into numbers: each is two."""


@dataclass(frozen=True)
class Side:
    """One of the two commits."""

    store: Store
    seq: int
    manifest: Manifest
    name: str

    @classmethod
    def read(cls, uri: str, wanted: CommitSelector, environ: Mapping[str, str]) -> Side:
        """The commit of this root that is meant. UserError if there is none, Corrupt if its manifest is damaged."""
        store = open_store(uri, environ)
        found = find(store, wanted)
        return cls(store, found.commit.seq, fetch_manifest(store, found.event), f"{uri} entry {found.commit.seq}")

    @property
    def items(self) -> dict[str, Item]:
        """Its tensors by name."""
        return {item.name: item for item in self.manifest.tensors}


def diff(left: Side, right: Side, *, tensors_only: bool = False) -> Iterator[Line]:
    """A line for each difference, and a summary last, whose data has `equal`: whether there is none.

    Without `tensors_only` it also compares everything else: positions, random generators, seconds trained. Raises
    Corrupt with the damaged object.
    """
    places = [f"{side.name}: step {side.manifest.position.step}" for side in (left, right)]
    yield Line(f"A is {places[0]}\nB is {places[1]}", {"a": places[0], "b": places[1]})
    ours, theirs = left.items, right.items
    both = sorted(ours.keys() & theirs.keys())
    alike = [name for name in both if _kind(ours[name]) == _kind(theirs[name])]
    alone, other, values = list(_alone(ours, theirs)), 0, 0
    yield from alone
    for name in sorted(set(both) - set(alike)):
        kinds = [_kind(ours[name]), _kind(theirs[name])]
        yield Line(f"{name}: {kinds[0]} in A, {kinds[1]} in B", {"name": name, "kinds": kinds})
        other += 1
    with reading(left.store, left.seq), reading(right.store, right.seq):
        for line in _values(left, right, alike):
            yield line
            other += 1
    for line in () if tensors_only else _others(left.manifest, right.manifest):
        yield line
        values += 1
    summary = (
        f"{len(both)} tensors in both: {len(both) - other} equal bit for bit, {other} differ; {len(alone)} in one only"
    )
    summary += "" if tensors_only else f"; {values} other values differ"
    counts = {"tensors": len(both), "differing": other, "alone": len(alone), "others": values}
    yield Line(summary, {"equal": not (alone or other or values), **counts})


def _alone(ours: Mapping[str, Item], theirs: Mapping[str, Item]) -> Iterator[Line]:
    for side, mine, others in (("A", ours, theirs), ("B", theirs, ours)):
        for name in sorted(mine.keys() - others.keys()):
            yield Line(f"only in {side}: {name} {_kind(mine[name])}", {"only": side, "name": name})


def _kind(item: Item) -> str:
    return f"{item.dtype} {list(item.shape)}"


def _values(left: Side, right: Side, names: Sequence[str]) -> Iterator[Line]:
    """A line for each tensor of these that does not hold the same bits."""
    ours, theirs = left.items, right.items
    for batch in _batches(ours, names):
        one = read_items(left.store, left.manifest, [ours[name] for name in batch])
        other = read_items(right.store, right.manifest, [theirs[name] for name in batch])
        for name in batch:
            count, farthest = _differing(one[name], other[name])
            if count:
                far = "" if farthest is None else f", by {farthest:.6g} at most"
                text = f"{name}: {count} of {one[name].numel()} elements differ{far}"
                yield Line(text, {"name": name, "differing": count, "of": one[name].numel(), "by": farthest})


def _batches(items: Mapping[str, Item], names: Sequence[str]) -> Iterator[list[str]]:
    """In the order of their place in the shards, so that a block is read once or twice."""
    batch: list[str] = []
    size = 0
    for name in sorted(names, key=lambda name: (items[name].start, name)):
        if batch and size + items[name].size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += items[name].size
    if batch:
        yield batch


def _differing(one: Tensor, other: Tensor) -> tuple[int, float | None]:
    """How many elements have other bits, and the largest absolute difference of two finite ones, if there are any."""
    count, farthest = 0, None
    pieces = (tensor.reshape(-1).split(PIECE_ELEMENTS) for tensor in (one, other))
    for mine, theirs in zip(*pieces, strict=True):
        bits = (part.contiguous().view(torch.uint8).view(-1, part.element_size()) for part in (mine, theirs))
        count += int(torch.ne(*bits).any(dim=1).sum())
        if mine.dtype != _NUMBERLESS:
            wide = torch.complex128 if mine.is_complex() else torch.float64
            gap = (mine.to(wide) - theirs.to(wide)).abs()
            finite = gap[gap.isfinite()]
            farthest = max(farthest or 0.0, float(finite.max())) if len(finite) else farthest
    return count, farthest


def _others(one: Manifest, other: Manifest) -> Iterator[Line]:
    """Everything except tensors: objects that all ranks share, and each rank's own."""
    yield from _paths(one.objects, other.objects, "")
    worlds = len(one.indexes), len(other.indexes)
    if worlds[0] != worlds[1]:
        yield Line(f"made by {worlds[0]} ranks in A, by {worlds[1]} in B", {"worlds": list(worlds)})
        return
    for mine, theirs in zip(one.indexes, other.indexes, strict=True):
        yield from _paths(mine.state, theirs.state, f"rank {mine.rank}")


def _paths(one: Any, other: Any, path: str) -> Iterator[Line]:
    """A line for each value in which two encoded values differ."""
    if one == other and type(one) is type(other):
        return
    if isinstance(one, dict) and isinstance(other, dict) and "$" not in one and "$" not in other:
        for key in sorted(one.keys() | other.keys()):
            yield from _paths(one.get(key, _ABSENT), other.get(key, _ABSENT), f"{path}/{key}" if path else key)
        return
    values = [] if isinstance(one, dict | list) or isinstance(other, dict | list) else [one, other]
    words = f"{path}: {values[0]} in A, {values[1]} in B" if values else f"{path} differs"
    yield Line(words, {"path": path, "values": values})
