"""A bit that flips anywhere in a root, in an arena after it was summed up, or in an image is found, or is not read."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from perdure.checkpoint import inspect
from perdure.checkpoint.background.arena import Arena
from perdure.checkpoint.background.part import put_index, put_shard
from perdure.checkpoint.background.sealed import PAGE_BYTES, read_part, read_seal
from perdure.checkpoint.image_file import Image, Label, write_image
from perdure.checkpoint.stage import stage
from perdure.errors import Corrupt, PerdureError
from perdure.log.images import Stamp
from perdure.log.kept import mark_reading, put_pin
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.loop.telemetry.trace import StoreTrace
from perdure.store import open_store
from perdure.wire import CommitSelector
from perdure.wire.settings import Member
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.background.parts import FOLDER, INDEX, POSITION, SHARD, filled
from tests.unit.runtime.checkpoint.world import UID, load_solo, opened, position, same_state, save_solo, state

FLIPS = pytest.mark.parametrize("flips", [150, pytest.param(10_000, marks=pytest.mark.chaos)])
KINDS = ("log/", "manifest.json", "shard-", "members/", "index-", "pins/", "trace/")
NEVER_READ = {
    "index-": "the manifest of a commit holds all of it",
    "pins/": "its name says all",
    "trace/": "no state is in it",
}
"""Why nothing reads the bytes of these objects."""
DATA = bytes(range(256)) * 32


def said(uri: str) -> str:
    """What `perdure verify` and `perdure show` say."""
    told: list[str] = []
    for lines in (inspect.verify(uri, {}), inspect.show(uri, CommitSelector(), {})):
        try:
            told.extend(line.text for line in lines)
        except PerdureError as error:
            told.append(str(error))
    return "\n".join(told)


@FLIPS
def test_a_flipped_bit_of_any_kind_of_object_is_said_with_its_object(tmp_path: Path, flips: int) -> None:
    store = open_store(f"file://{tmp_path}", {})
    draw = random.Random(flips)  # noqa: S311 - no secret
    log_writer = Writer(Log(store), uid=UID, run=1)
    log_writer.try_open(1, wait_over=True, members=[Member("digits-0", "n1")])
    for step in (10, 20):
        save_solo(store, log_writer, step)
    put_pin(store, 2)
    mark_reading(store, 3)
    trace = StoreTrace(store, uid=UID, run=1, rank=0, world=1)
    trace.step(0, 1, [1, 2])
    trace.flush()
    trace.close()
    whole = said(store.uri)
    assert "DAMAGED" not in whole
    keys = {kind: [key for key in store.list("") if kind in key] for kind in KINDS}
    numbers = {key: f"log entry {number}" for number, key in enumerate(reversed(keys["log/"]), start=1)}
    for _ in range(flips):
        kind = draw.choice(KINDS)
        key = draw.choice(keys[kind])
        data = store.get(key)
        at, bit = draw.randrange(len(data)), draw.randrange(8)
        store.put(key, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        told = said(store.uri)
        if kind in NEVER_READ:
            assert told == whole, NEVER_READ[kind]
        else:
            assert numbers.get(key, key) in told, f"bit {bit} of byte {at} of {key}"
            assert told != whole
        store.put(key, data)
    loaded = load_solo(store, opened(store, 2, wait_over=True))
    assert loaded
    assert same_state(loaded.state, state(20))


@FLIPS
def test_a_bit_that_flips_in_an_arena_is_not_uploaded_as_a_part(flips: int) -> None:
    arena, found = Arena(), 0
    draw = random.Random(flips)  # noqa: S311 - no secret
    try:
        seal = filled(arena, DATA).seal
        size = PAGE_BYTES + seal.size + seal.rest
        for _ in range(flips):
            at, bit = draw.randrange(size), draw.randrange(8)
            (byte,) = os.pread(arena.fd, 1, at)
            os.pwrite(arena.fd, bytes([byte ^ 1 << bit]), at)
            store = MemoryStore()
            try:
                if read_seal(arena.fd) != seal:
                    raise Corrupt("the label has changed")
                staged, position = read_part(arena.fd, seal)
                sums = put_shard(store, FOLDER, staged, seal.checksum)
                put_index(store, FOLDER, staged, sums, run=1, position=position)
            except Corrupt:
                found += 1
                assert INDEX not in store.objects
            else:
                assert store.objects[SHARD] == DATA
                assert position == POSITION
                assert at < PAGE_BYTES, "behind the text of the label, where nothing is read"
            os.pwrite(arena.fd, bytes([byte]), at)
    finally:
        arena.close()
    assert found > flips // 3


@FLIPS
def test_a_bit_that_flips_in_an_image_is_found(tmp_path: Path, flips: int) -> None:
    path = tmp_path / "image"
    path.touch()
    label = Label(Stamp(UID, 1, 17, 0, 1), position(17), "a", (), None)
    assert write_image(path, label, stage(state(17), 0, 1), lambda: True) == path.stat().st_size
    whole = path.read_bytes()
    draw = random.Random(flips)  # noqa: S311 - no secret
    for _ in range(flips):
        at, bit = draw.randrange(len(whole)), draw.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        with pytest.raises(Corrupt, match=f"the image at {path}"):
            Image(path)
    path.write_bytes(whole)
    assert Image(path).label == label
