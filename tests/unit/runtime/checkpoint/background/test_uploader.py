"""The uploading process's writes, and under which conditions it accepts existing objects as its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure.checkpoint.background import uploader as uploader_module
from perdure.checkpoint.background.arena import Arena
from perdure.checkpoint.background.part import put_index, put_shard
from perdure.checkpoint.background.sealed import Seal, read_part
from perdure.checkpoint.background.uploader import Uploads
from perdure.checkpoint.background.uploader_messages import (
    DURABLE,
    FAILED,
    LINE_BYTES,
    MOVES,
    RELEASED,
    Lines,
    UploaderWord,
    UploadOrder,
    read_order,
    read_word,
    write_order,
    write_word,
)
from perdure.checkpoint.background.uploading import PartUploaded, Uploader
from perdure.checkpoint.stage import stage
from perdure.checkpoint.upload import Staged, put_manifest, put_part
from perdure.errors import Corrupt
from perdure.log.entry import checksum
from perdure.store import Store, open_store
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint import world
from tests.unit.runtime.checkpoint.background.parts import FOLDER, INDEX, POSITION, SHARD, filled, part, settled

SEAL = Seal("u", 1, "aa", 7, 0, 1, 10, "0" * 16, 20, "1" * 16)
LARGE = bytes(range(256)) * 80_000


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One that knows checksums, and one that does not."""
    return MemoryStore() if request.param == "memory" else open_store(f"file://{tmp_path}/root", {})


def test_a_save_in_the_background_is_byte_for_byte_a_blocking_one_and_is_loaded_by_the_same_loader(
    arena: Arena, tmp_path: Path
) -> None:
    state = world.state()
    state = replace(
        state, shared={**state.shared, "large": torch.rand(5_000_000, generator=torch.Generator().manual_seed(1))}
    )
    staged, position = stage(state, 0, 1), world.position(1)
    ours, theirs = (open_store(f"file://{tmp_path}/{name}", {}) for name in ("ours", "theirs"))
    put_part(theirs, FOLDER, staged, 1, position)
    writer = world.opened(ours)
    uploader = Uploader(arena, ours.uri)
    uploader.order(FOLDER, arena.fill(staged, uid=world.UID, run=1, name="aa", position=position))
    word = settled(uploader)[-1]
    assert uploader.close()
    assert isinstance(word, PartUploaded)
    assert [ours.get(key) for key in (SHARD, INDEX)] == [theirs.get(key) for key in (SHARD, INDEX)]
    manifest = put_manifest(ours, FOLDER, [word.index], 1, position)
    writer.commit(position, manifest, final=False, reason="test")
    loaded = world.load_solo(ours, writer)
    assert loaded
    assert world.same_state(loaded.state, state)


def put(store: Store, staged: Staged) -> None:
    whole = checksum(b"".join(bytes(piece) for piece in staged.pieces()))
    put_index(store, FOLDER, staged, put_shard(store, FOLDER, staged, whole), run=1, position=POSITION)


@pytest.mark.parametrize("data", [b"0123456789", LARGE], ids=["small", "of three blocks"])
def test_what_is_there_and_equal_is_taken_as_its_own(store: Store, data: bytes) -> None:
    put_part(store, FOLDER, part(data), 1, POSITION)
    before = {key: store.get(key) for key in store.list("")}
    put(store, part(data))
    assert {key: store.get(key) for key in store.list("")} == before


@pytest.mark.parametrize("there", [b"0123456780", b"012345678", b"01234567890", b""])
def test_a_shard_that_is_there_and_differs_stays_and_there_is_no_index(store: Store, there: bytes) -> None:
    store.put(SHARD, there)
    with pytest.raises(Corrupt, match=SHARD):
        put(store, part())
    assert {key: store.get(key) for key in store.list("")} == {SHARD: there}


def test_an_index_that_is_there_and_differs_stays(store: Store) -> None:
    put_part(store, FOLDER, part(state={"rng": [3]}), 1, POSITION)
    before = store.get(INDEX)
    with pytest.raises(Corrupt, match=f"{INDEX} exists already"):
        put(store, part())
    assert store.get(INDEX) == before


@pytest.mark.parametrize("data", [b"0123456789", LARGE], ids=["small", "of three blocks"])
def test_bytes_that_do_not_sum_up_to_what_was_copied_are_not_written(store: Store, data: bytes) -> None:
    with pytest.raises(Corrupt, match="has changed since"):
        put_shard(store, FOLDER, part(data[:-1] + b"x"), checksum(data))
    assert store.list("") == []


def test_what_is_written_is_what_was_summed_up_although_the_arena_changes_meanwhile(arena: Arena, store: Store) -> None:
    copy = arena.fill(part(LARGE), uid="u", run=1, name="aa", position=POSITION)
    staged, _ = read_part(arena.fd, copy.seal)

    def overtaken() -> Iterator[memoryview]:
        for block in staged.pieces():
            os.pwrite(arena.fd, b"changed", 4096 + 100)
            yield block

    put_shard(store, FOLDER, replace(staged, pieces=overtaken), copy.seal.checksum)
    assert store.get(SHARD) == LARGE


def test_an_upload_says_that_it_moves_whenever_the_store_has_taken_a_block(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader_module, "MOVES_SECONDS", 0.0)
    read, write = os.pipe()
    try:
        Uploads(arena.fd, write).carry_out(UploadOrder(f"file://{tmp_path}/root", FOLDER, filled(arena, LARGE).seal))
        said = [read_word(line) for line in Lines().add(os.read(read, LINE_BYTES))]
    finally:
        os.close(read)
        os.close(write)
    assert [word.word for word in said] == [MOVES] * 3 + [RELEASED, DURABLE]
    assert {word.name for word in said} == {"aa"}


def test_an_order_is_a_line() -> None:
    order = UploadOrder("s3://bucket/root", FOLDER, SEAL)
    (line,) = Lines().add(write_order(order))
    assert read_order(line) == order


def test_an_order_longer_than_a_pipe_takes_is_none() -> None:
    with pytest.raises(ValueError, match="is too long"):
        write_order(UploadOrder("s3://" + "b" * LINE_BYTES, FOLDER, SEAL))


def test_a_long_reason_is_cut() -> None:
    told = UploaderWord(FAILED, "aa", why="é\n" * 100_000, refused=True)
    (line,) = Lines().add(write_word(told))
    assert told.why.startswith(read_word(line).why)
    assert read_word(line).why
    assert read_word(line).refused


def test_lines_are_put_together_from_pieces_of_any_size() -> None:
    lines = Lines()
    assert lines.add(b"a") == []
    assert lines.add(b"b\nc\nd") == [b"ab", b"c"]
    assert lines.add(b"\n") == [b"d"]
