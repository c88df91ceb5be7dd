"""The bytes of a commit's boxes come to where they belong, however the shard is cut into blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from perdure.checkpoint import boxes
from perdure.checkpoint.cells import reads
from perdure.checkpoint.load import read_items
from perdure.checkpoint.manifest import Item, fetch_manifest, read_item, write_item
from perdure.errors import Corrupt
from perdure.layout.box import Box
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import opened, save_solo, state

WORLDS = (1, 2, 3, 5)


@contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def cut(shape: Sequence[int], dim: int, parts: int) -> list[Box]:
    """As torch's chunk cuts one dimension, without empty parts."""
    size = -(-shape[dim] // parts)
    found = []
    for start in range(0, shape[dim], size):
        offset, sizes = [0] * len(shape), list(shape)
        offset[dim], sizes[dim] = start, min(size, shape[dim] - start)
        found.append(Box(tuple(offset), tuple(sizes)))
    return found


def of(box: Box, whole: Tensor) -> Tensor:
    return whole[tuple(slice(start, end) for start, end in zip(box.offset, box.end, strict=True))]


def laid_out(whole: Tensor, parts: Sequence[Box]) -> tuple[bytes, list[Item]]:
    data, items = b"", []
    for box in parts:
        own = of(box, whole).contiguous().numpy().tobytes()
        items.append(Item("shared", "w", "int32", tuple(whole.shape), "cpu", len(data), len(own), None, box))
        data += own
    return data, items


@pytest.mark.parametrize("number", range(60))
def test_each_rank_gets_what_it_holds_whoever_has_saved_it(number: int, seed: int) -> None:
    draw = random.Random(f"{seed} {number}")  # noqa: S311 - it has to be repeatable
    shape = tuple(draw.randint(1, 7) for _ in range(draw.randint(1, 3)))
    saved_dim, held_dim, world = draw.randrange(len(shape)), draw.randrange(len(shape)), draw.choice(WORLDS)
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
    data, items = laid_out(whole, cut(shape, saved_dim, draw.choice(WORLDS)))
    held = dict(enumerate(cut(shape, held_dim, world)))
    for rank in range(world):
        own = torch.full_like(of(held[rank], whole), -1) if rank in held else torch.empty(0, dtype=torch.int32)
        with rank_of(rank, world):
            mesh = init_device_mesh("cpu", (world,))
            placed = [Shard(held_dim)]
            target = DTensor.from_local(own, mesh, placed, run_check=False, shape=whole.shape, stride=whole.stride())
            for read in reads(items, target):
                at = read.start
                while at < read.end:
                    length = min(draw.choice((1, 3, 4, 8, 64)), read.end - at)
                    read.sink.write(memoryview(data)[at : at + length])
                    at += length
            assert torch.equal(boxes.local(target), of(held[rank], whole) if rank in held else own)


def test_boxes_that_lack_a_part_are_corrupt() -> None:
    whole = torch.arange(12, dtype=torch.int32).reshape(4, 3)
    _, items = laid_out(whole, cut((4, 3), 0, 2))
    with pytest.raises(Corrupt, match="the manifest lacks a part of a tensor"):
        list(reads(items[:1], torch.empty(4, 3, dtype=torch.int32)))


def test_an_item_that_lies_behind_its_shard_s_end_is_corrupt() -> None:
    store = MemoryStore()
    writer = opened(store)
    save_solo(store, writer, 1)
    slot = next(iter(writer.commits()))
    assert slot.entry
    manifest = fetch_manifest(store, slot.entry.event)  # type: ignore[arg-type]
    (index,) = manifest.indexes
    name = "layer0.weight"
    moved = [replace(item, start=index.shard.size) if item.name == name else item for item in index.shard.items]
    changed = replace(manifest, indexes=(replace(index, shard=replace(index.shard, items=tuple(moved))),))
    assert torch.equal(read_items(store, manifest, manifest.tensors)[name], state(1).shared[name])
    with pytest.raises(Corrupt, match=f"ends before {name}, which its manifest lists"):
        read_items(store, changed, changed.tensors)


@pytest.mark.parametrize("box", [Box((3, 0), (2, 3)), Box((0,), (4,)), Box((0, 0, 0), (1, 1, 1)), Box((0, -1), (1, 1))])
def test_a_box_that_is_no_part_of_its_tensor_is_no_item(box: Box) -> None:
    item = Item("shared", "w", "int32", (4, 3), "cpu", 0, 24, None, Box((0, 0), (2, 3)))
    assert read_item(write_item(item)) == item
    with pytest.raises(ValueError, match=r"w of shape \[4, 3\] has the box"):
        read_item(write_item(replace(item, box=box)))
