"""An arena holds a whole part of one step, or nothing."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure.checkpoint.background import arena as arenas
from perdure.checkpoint.background.arena import Arena, StateChanged, room_for
from perdure.checkpoint.background.sealed import FORMAT, PAGE_BYTES, read_part, read_seal
from perdure.checkpoint.stage import stage
from perdure.checkpoint.state import RankState
from perdure.checkpoint.upload import BLOCK_BYTES, put_part
from perdure.errors import Corrupt
from perdure.log.entry import checksum
from tests.support.store import MemoryStore
from tests.support.undrawn import undrawn
from tests.unit.runtime.checkpoint import world
from tests.unit.runtime.checkpoint.background.parts import FOLDER, POSITION, filled, open_files, part, pieces

LARGE = bytes(range(256)) * 80_000
"""Two blocks and a part of a third."""


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


def test_it_holds_nothing_at_first(arena: Arena) -> None:
    assert read_seal(arena.fd) is None
    assert arena.held == 0


@pytest.fixture(params=[0, 10, BLOCK_BYTES, len(LARGE)], ids=lambda size: f"{size} allocated")
def ready(arena: Arena, request: pytest.FixtureRequest) -> Arena:
    """One that has allocated and mapped so many bytes of a shard."""
    if request.param:
        arena.prepare(request.param)
        arena.prepared()
    return arena


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("data", [b"0123456789", LARGE], ids=["small", "of three blocks"])
def test_what_is_read_is_what_was_staged(ready: Arena, data: bytes, threads: int) -> None:
    arena = ready
    copy = filled(arena, data, threads=threads)
    assert read_seal(arena.fd) == copy.seal
    staged, position = read_part(arena.fd, copy.seal)
    assert b"".join(bytes(block) for block in staged.blocks()) == data
    assert replace(staged, pieces=list) == replace(part(data), pieces=list)
    assert position == POSITION
    assert copy.seal.checksum == checksum(data)
    assert list(copy.sums) == [checksum(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    assert (copy.seal.step, copy.seal.rank, copy.seal.world, copy.seal.size) == (7, 0, 1, len(data))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_state_of_every_kind_is_copied_as_a_blocking_save_writes_it(ready: Arena, threads: int) -> None:
    arena, state = ready, world.state()
    draw = torch.Generator().manual_seed(1)
    more = {"large": torch.rand(3_000_000, generator=draw)}
    more |= {"large and turned": torch.rand(1500, 2000, generator=draw).t()}
    more |= {f"small{n}": torch.rand(3, generator=draw) for n in range(2000)}
    staged = stage(replace(state, shared={**state.shared, **more}), 0, 1)
    store = MemoryStore()
    index = put_part(store, FOLDER, staged, 1, POSITION)
    copy = arena.fill(staged, uid="u", run=1, name="aa", position=POSITION, threads=threads)
    found, _ = read_part(arena.fd, copy.seal)
    assert b"".join(bytes(block) for block in found.blocks()) == store.get(index["shard"]["key"])
    assert list(copy.sums) == list(index["shard"]["blocks"])
    assert copy.seal.checksum == index["shard"]["crc"]


def test_it_holds_nothing_from_the_first_byte_of_the_next_part_on_until_the_last(arena: Arena) -> None:
    filled(arena, LARGE)
    seen = []

    def watched() -> Iterator[memoryview]:
        for piece in pieces(LARGE):
            seen.append(read_seal(arena.fd))
            yield piece

    arena.fill(replace(part(LARGE), pieces=watched), uid="u", run=1, name="bb", position=POSITION)
    assert seen == [None] * 7
    seal = read_seal(arena.fd)
    assert seal
    assert seal.name == "bb"


def test_a_copy_made_while_training_goes_on_is_sealed_if_it_has_the_checksum_of_its_state(ready: Arena) -> None:
    copy = filled(ready, LARGE, whole=checksum(LARGE))
    staged, _ = read_part(ready.fd, copy.seal)
    assert b"".join(bytes(block) for block in staged.blocks()) == LARGE
    assert copy == replace(filled(ready, LARGE), staged=copy.staged)


@pytest.mark.parametrize("at", [0, BLOCK_BYTES - 1, BLOCK_BYTES, len(LARGE) - 1])
def test_one_byte_that_has_changed_before_it_is_copied_leaves_nothing(ready: Arena, at: int) -> None:
    filled(ready, LARGE)
    changed = bytearray(LARGE)
    changed[at] ^= 1
    with pytest.raises(StateChanged):
        filled(ready, bytes(changed), whole=checksum(LARGE))
    assert read_seal(ready.fd) is None


def test_memory_that_is_gone_is_an_error_and_ends_no_process(ready: Arena) -> None:
    """As of a file that was cut short, or that torch has unmapped."""
    with tempfile.TemporaryFile() as file:
        file.write(LARGE)
        file.flush()
        with mmap.mmap(file.fileno(), len(LARGE)) as mapped, memoryview(mapped) as view:
            file.truncate(BLOCK_BYTES)
            with pytest.raises(StateChanged):
                ready.fill(
                    replace(part(LARGE), pieces=lambda: [view]), uid="u", run=1, name="b", position=POSITION, whole="1"
                )
    assert read_seal(ready.fd) is None


def test_an_arena_of_another_format_is_refused(arena: Arena) -> None:
    filled(arena, LARGE)
    magic = 8
    os.pwrite(arena.fd, (FORMAT + 1).to_bytes(8, "little"), magic)
    with pytest.raises(Corrupt, match=f"has format {FORMAT + 1}, and this version of perdure reads {FORMAT}"):
        read_seal(arena.fd)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_copy_that_breaks_off_leaves_nothing(arena: Arena, threads: int) -> None:
    filled(arena, LARGE)

    def broken() -> Iterator[memoryview]:
        yield memoryview(LARGE)[:9_000_000]
        raise ValueError("the state is gone")

    with pytest.raises(ValueError, match="the state is gone"):
        arena.fill(replace(part(LARGE), pieces=broken), uid="u", run=1, name="bb", position=POSITION, threads=threads)
    assert read_seal(arena.fd) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_a_copy_that_cannot_be_written_leaves_nothing(
    arena: Arena, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(arena, LARGE)
    real = os.pwritev

    def full(fd: int, views: list[memoryview], at: int) -> int:
        if at > BLOCK_BYTES:
            raise OSError(28, "No space left on device")
        return real(fd, views, at)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left"):
        filled(arena, LARGE, threads=threads)
    assert read_seal(arena.fd) is None


@pytest.mark.parametrize("size", [9, 11])
def test_a_state_of_another_size_than_staged_is_not_sealed(arena: Arena, size: int) -> None:
    wrong = replace(part(), pieces=lambda: pieces(b"x" * size))
    with pytest.raises(Corrupt, match="were staged instead of 10"):
        arena.fill(wrong, uid="u", run=1, name="bb", position=POSITION)
    assert read_seal(arena.fd) is None


def test_a_changed_label_is_none(arena: Arena) -> None:
    filled(arena)
    os.pwrite(arena.fd, b"9", 40)
    assert read_seal(arena.fd) is None


def test_a_part_whose_rest_was_changed_is_not_read(arena: Arena) -> None:
    copy = filled(arena)
    os.pwrite(arena.fd, b"9", PAGE_BYTES + 10 + 5)
    with pytest.raises(Corrupt, match="was changed after it was sealed"):
        read_part(arena.fd, copy.seal)


def test_a_part_that_was_cut_short_is_not_read(arena: Arena) -> None:
    copy = filled(arena, LARGE)
    staged, _ = read_part(arena.fd, copy.seal)
    os.ftruncate(arena.fd, PAGE_BYTES + BLOCK_BYTES + 1)
    with pytest.raises(Corrupt, match="was cut short"):
        list(staged.blocks())
    with pytest.raises(Corrupt, match="was changed"):
        read_part(arena.fd, copy.seal)


def test_memory_is_kept_from_one_part_to_the_next_and_given_back_when_asked(arena: Arena) -> None:
    filled(arena, LARGE)
    held = arena.held
    assert held >= len(LARGE)
    filled(arena)
    assert arena.held == held
    arena.shrink(10)
    assert arena.held <= 2 * PAGE_BYTES
    assert read_seal(arena.fd) is None
    filled(arena, LARGE)


def test_memory_is_allocated_before_the_first_part(arena: Arena) -> None:
    arena.prepare(len(LARGE))
    arena.prepared()
    held = arena.held
    assert held >= PAGE_BYTES + len(LARGE)
    assert read_seal(arena.fd) is None
    filled(arena, LARGE)
    assert arena.held <= held + PAGE_BYTES


def test_a_part_need_not_wait_for_all_memory(arena: Arena) -> None:
    arena.prepare(16 * len(LARGE))
    copy = filled(arena, LARGE)
    assert read_seal(arena.fd) == copy.seal
    assert arena.held < 16 * len(LARGE)


def test_what_was_given_back_is_allocated_again_before_it_is_written(arena: Arena) -> None:
    for size in (len(LARGE), 10, len(LARGE)):
        arena.prepare(size)
        arena.prepared()
        copy = filled(arena, LARGE)
        staged, _ = read_part(arena.fd, copy.seal)
        assert b"".join(bytes(block) for block in staged.blocks()) == LARGE
        arena.shrink(size // 2)
        assert read_seal(arena.fd) is None
        assert filled(arena, LARGE).seal.checksum == checksum(LARGE)


def test_a_process_without_addresses_for_it_writes_it(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fd: int, size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refused)
    arena.prepare(len(LARGE))
    arena.prepared()
    assert arena.held >= len(LARGE)
    assert filled(arena, LARGE).seal.checksum == checksum(LARGE)


def test_no_memory_is_allocated_where_there_is_no_room(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "free_memory", lambda: len(LARGE))
    arena.prepare(len(LARGE))
    arena.prepared()
    assert arena.held == 0


def test_room_is_what_is_free_beside_what_it_has_and_a_margin(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    margin = arenas.MARGIN_BYTES
    monkeypatch.setattr(arenas, "free_memory", lambda: margin + 100)
    assert room_for(100) == 0
    assert room_for(101) == 1
    assert room_for(200, held=150) == 0
    staged = part(LARGE)
    assert arena.missing(staged) == len(LARGE) + PAGE_BYTES - 100
    filled(arena, LARGE)
    assert arena.missing(staged) == 0
    monkeypatch.setattr(arenas, "free_memory", lambda: None)
    assert room_for(2**60) == 0


def test_nothing_draws_from_the_generators_of_the_script(arena: Arena) -> None:
    with undrawn():
        staged = stage(RankState({"w": torch.ones(9)}, {}, {}), 0, 1)
        arena.prepare(staged.size)
        arena.fill(staged, uid="u", run=1, name="aa", position=POSITION, threads=2)


def test_a_forked_process_does_not_keep_it(arena: Arena) -> None:
    arena.prepare(len(LARGE))
    filled(arena)
    mapped = Path("/proc/self/maps")
    assert "perdure-arena" in mapped.read_text()
    child = os.fork()
    if not child:
        os._exit(sum("perdure-arena" in name for name in [*open_files(), mapped.read_text()]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read_seal(arena.fd) is not None


def test_nothing_of_it_stays_once_it_is_closed() -> None:
    before, mapped = Counter(open_files()), Path("/proc/self/maps")
    arena = Arena()
    arena.prepare(len(LARGE))
    filled(arena)
    arena.close()
    assert Counter(open_files()) <= before  # what other tests have left open may be closed meanwhile
    assert "perdure-arena" not in mapped.read_text()


def test_a_process_forked_in_the_middle_of_a_copy_ends_as_it_wants_to(arena: Arena) -> None:
    arena.prepare(len(LARGE))
    arena.prepared()
    children = []

    def forking() -> Iterator[memoryview]:
        for piece in pieces(LARGE):
            child = os.fork()
            if not child:
                os._exit(7)
            children.append(child)
            yield piece

    copy = arena.fill(replace(part(LARGE), pieces=forking), uid="u", run=1, name="aa", position=POSITION, threads=3)
    assert {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children} == {7}
    assert copy.seal.checksum == checksum(LARGE)
    assert read_seal(arena.fd) is not None


def test_it_works_where_there_are_no_memory_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arena = Arena()
    arena.prepare(100)
    copy = filled(arena, LARGE)
    assert read_seal(arena.fd) == copy.seal
    assert list(tmp_path.iterdir()) == []
    arena.close()
