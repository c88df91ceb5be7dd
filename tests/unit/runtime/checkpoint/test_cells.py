"""The bytes of a commit's boxes come to where they belong, however the shard is cut into blocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from perdure.checkpoint import boxes, upload
from perdure.checkpoint.cells import Read, reads
from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.load import read_items
from perdure.checkpoint.manifest import Item, Manifest, fetch_manifest, read_item, write_item
from perdure.errors import Corrupt
from perdure.layout.box import Box
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import opened, save_solo, state

WORLDS = (1, 2, 3, 5)
SECONDS = 30
"""More than anything takes here, on a machine that is busy."""
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.int32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


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


def laid_out(whole: Tensor, parts: Sequence[Box]) -> tuple[bytearray, list[Item]]:
    data, items = bytearray(), []
    dtype = str(whole.dtype).removeprefix("torch.")
    for box in parts:
        own = raw(of(box, whole))
        items.append(Item("shared", "w", dtype, tuple(whole.shape), "cpu", len(data), len(own), None, box))
        data += own
    return data, items


def raw(tensor: Tensor) -> bytes:
    """The bytes of its elements, row by row."""
    row = torch.empty(tensor.numel(), dtype=tensor.dtype)
    row.view(tensor.shape).copy_(tensor)
    return row.view(torch.uint8).numpy().tobytes()


def drawn(draw: random.Random, shape: Sequence[int]) -> Tensor:
    """A tensor of any dtype, whose elements all differ where there are enough values."""
    dtype = draw.choice(DTYPES)
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(tuple(shape))
    return numbers % 3 == 0 if dtype is torch.bool else numbers.to(dtype)


def in_some_order(draw: random.Random, like: Tensor) -> Tensor:
    """A tensor of this shape whose dimensions lie in memory in any order, perhaps with gaps."""
    way = list(range(like.dim()))
    draw.shuffle(way)
    gap = draw.choice((1, 2))
    memory = torch.ones([like.shape[dim] * gap for dim in way]).to(like.dtype)
    return memory[(slice(None, None, gap),) * like.dim()].permute([way.index(dim) for dim in range(like.dim())])


@pytest.mark.parametrize("number", range(60))
def test_each_rank_gets_what_it_holds_whichever_rank_has_saved_it(number: int, seed: int) -> None:
    draw = random.Random(f"{seed} {number}")  # noqa: S311 - it has to be repeatable
    shape = tuple(draw.randint(1, 7) for _ in range(draw.randint(1, 3)))
    saved_dim, held_dim, world = draw.randrange(len(shape)), draw.randrange(len(shape)), draw.choice(WORLDS)
    whole = drawn(draw, shape)
    data, items = laid_out(whole, cut(shape, saved_dim, draw.choice(WORLDS)))
    held = dict(enumerate(cut(shape, held_dim, world)))
    for rank in range(world):
        own = in_some_order(draw, of(held[rank], whole)) if rank in held else torch.empty(0, dtype=whole.dtype)
        with rank_of(rank, world):
            mesh = init_device_mesh("cpu", (world,))
            placed = [Shard(held_dim)]
            target = DTensor.from_local(own, mesh, placed, run_check=False, shape=whole.shape, stride=whole.stride())
            read_all(draw, data, reads(items, target))
            assert raw(boxes.local(target)) == raw(of(held[rank], whole) if rank in held else own)


@pytest.mark.parametrize("number", range(30))
@pytest.mark.parametrize("whole_on_every_rank", [True, False])
def test_a_whole_tensor_is_filled_in_any_memory_order(number: int, seed: int, *, whole_on_every_rank: bool) -> None:
    draw = random.Random(f"{seed} {number}")  # noqa: S311 - it has to be repeatable
    shape = tuple(draw.randint(0 if whole_on_every_rank else 1, 7) for _ in range(draw.randint(0, 4)))
    whole = drawn(draw, shape)
    parts = cut(shape, draw.randrange(len(shape)), 3) if shape and not whole_on_every_rank else [Box.whole(shape)]
    data, items = laid_out(whole, parts)
    if whole_on_every_rank:
        items = [replace(item, box=None) for item in items]
    target = in_some_order(draw, whole)
    strides = target.stride()
    read_all(draw, data, reads(items, target))
    assert raw(target) == raw(whole)
    assert target.stride() == strides


def read_all(draw: random.Random, data: bytearray, wanted: Iterable[Read]) -> None:
    """In blocks of any length, which may end inside an element."""
    for read in wanted:
        at = read.start
        while at < read.end:
            length = min(draw.choice((1, 3, 4, 8, 64)), read.end - at)
            read.write(memoryview(data)[at : at + length])
            at += length


def saved_in_blocks(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryStore, Manifest]:
    """Of 64 bytes each."""
    monkeypatch.setattr(upload, "BLOCK_BYTES", 64)
    store = MemoryStore()
    writer = opened(store)
    save_solo(store, writer, 1)
    slot = next(iter(writer.commits()))
    assert slot.entry
    return store, fetch_manifest(store, slot.entry.event)  # type: ignore[arg-type]


def test_several_blocks_are_on_their_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, manifest = saved_in_blocks(monkeypatch)
    both, first = threading.Barrier(2), iter([True, True])

    def around(verb: str, _key: str, act: Callable[[], Any]) -> Any:
        if verb == "get" and next(first, False):
            both.wait(SECONDS)
        return act()

    found = read_items(WatchedStore(store, around), manifest, manifest.tensors)
    assert torch.equal(found["layer4.weight"], state(1).shared["layer4.weight"])


def test_only_blocks_that_a_rank_needs_are_read_and_a_damaged_one_matters_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a tensor, as one of two ranks holds it."""
    store, manifest = saved_in_blocks(monkeypatch)
    shard = manifest.indexes[0].shard
    item = next(one for one in shard.items if one.name == "layer4.weight")
    middle = (item.start + item.end) // 2
    needed = set(range(item.start // 64, -(-middle // 64)))
    whole = store.objects[shard.key]
    for flipped in range(len(shard.blocks)):
        data = bytearray(whole)
        data[min(flipped * 64, shard.size - 1)] ^= 1
        store.objects[shard.key] = bytes(data)
        half = [Half(item.start, middle)]
        if flipped in needed:
            with pytest.raises(Corrupt, match=f"in the block that begins at byte {flipped * 64}"):
                list(read_blocks(store, shard, half))
        else:
            assert {start // 64 for start, _ in read_blocks(store, shard, half)} == needed


@dataclass(frozen=True)
class Half:
    start: int
    end: int


@pytest.mark.parametrize("size", [20, 28])
def test_an_item_with_more_or_fewer_bytes_than_its_elements_have_is_corrupt(size: int) -> None:
    item = Item("shared", "w", "int32", (2, 3), "cpu", 0, size)
    with pytest.raises(Corrupt, match=f"lists {size} bytes of w, whose elements have 24"):
        list(reads([item], torch.empty(2, 3, dtype=torch.int32)))


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
