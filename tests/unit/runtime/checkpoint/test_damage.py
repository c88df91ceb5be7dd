"""Flip any byte of a small root, or remove any object: the damage is found and reported, never trained on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.checkpoint import inspect
from perdure.checkpoint.retention import LITTER_SECONDS, retire
from perdure.checkpoint.state import Loaded
from perdure.errors import Corrupt, LogLost
from perdure.log.entry import key_of
from perdure.log.writer import Resume
from perdure.store import Store, open_store
from perdure.store.file import INCOMING
from tests.support.store import Died, MemoryStore, dying
from tests.unit.runtime.checkpoint.world import (
    load_solo,
    opened,
    position,
    rewritten,
    same_state,
    save_solo,
    state,
    writer,
)

COMMITS = {2: 10, 3: 20}
"""Steps by entry: Opened, Committed 10, Committed 20, Closed."""


def trained() -> MemoryStore:
    store = MemoryStore()
    log_writer = opened(store)
    for step in COMMITS.values():
        save_solo(store, log_writer, step)
    log_writer.close("stopped")
    return store


def started(store: Store) -> tuple[str, Loaded | None]:
    """All that a start says, and where it goes on."""
    log_writer = writer(store, 2)
    resume = log_writer.try_open(1, wait_over=True)
    assert isinstance(resume, Resume)
    loaded = load_solo(store, log_writer)
    return "\n".join([*resume.skipped, *(loaded.skipped if loaded else ())]), loaded


def verified(store: MemoryStore, folder: Path) -> str:
    """What `perdure verify` says of the same objects in a folder."""
    copy = open_store(f"file://{folder}/root", {})
    for key, data in store.objects.items():
        copy.put(key, data)
    told: list[str] = []
    try:
        told.extend(line.text for line in inspect.verify(f"file://{folder}/root", {}))
    except Corrupt as error:
        told.append(f"CORRUPT {error}")
    return "\n".join(told)


def test_a_whole_root_says_nothing() -> None:
    said, loaded = started(trained())
    assert said == ""
    assert loaded
    assert loaded.commit.step == 20


def flips(data: bytes) -> list[bytes]:
    """Every byte of it changed, one at a time."""
    return [data[:n] + bytes([data[n] ^ (1 << n % 8)]) + data[n + 1 :] for n in range(len(data))]


@pytest.mark.parametrize("seq", [4, 3])
def test_any_flipped_byte_of_the_entries_that_a_start_goes_by_is_said(seq: int) -> None:
    whole = trained()
    for flipped in flips(whole.objects[key_of(seq)]):
        store = MemoryStore()
        store.objects.update(whole.objects)
        store.objects[key_of(seq)] = flipped
        said, loaded = started(store)
        assert f"log entry {seq}" in said
        assert loaded
        assert loaded.commit.step == (10 if seq == 3 else 20)
        assert same_state(loaded.state, state(loaded.commit.step))


@pytest.mark.parametrize("seq", [2, 1])
def test_a_flipped_byte_of_an_older_entry_changes_nothing_and_verify_finds_it(tmp_path: Path, seq: int) -> None:
    whole = trained()
    for number, flipped in enumerate(flips(whole.objects[key_of(seq)])):
        store = MemoryStore()
        store.objects.update(whole.objects)
        store.objects[key_of(seq)] = flipped
        if number % 40 == 0:
            assert f"log entry {seq}" in verified(store, tmp_path / str(number))
        _, loaded = started(store)
        assert loaded
        assert (loaded.commit.step, same_state(loaded.state, state(20))) == (20, True)


def test_any_flipped_byte_of_a_manifest_is_said_and_its_commit_skipped() -> None:
    whole = trained()
    key = next(key for key in whole.list("data/1/20-") if key.endswith("manifest.json"))
    for flipped in flips(whole.objects[key])[::7]:
        store = MemoryStore()
        store.objects.update(whole.objects)
        store.objects[key] = flipped
        said, loaded = started(store)
        assert f"{key} is not what the log says" in said
        assert loaded
        assert loaded.commit.step == 10


def test_any_flipped_byte_of_a_shard_is_said_with_the_tensors_of_its_block() -> None:
    whole = trained()
    key = next(key for key in whole.list("data/1/20-") if key.endswith(".safetensors"))
    for flipped in flips(whole.objects[key])[::31]:
        store = MemoryStore()
        store.objects.update(whole.objects)
        store.objects[key] = flipped
        said, loaded = started(store)
        assert f"{key} is damaged in the block that begins at byte 0: its checksum is" in said
        assert "it holds" in said
        assert loaded
        assert loaded.commit.step == 10


GONE: dict[str, tuple[Callable[[MemoryStore], str], str, int]] = {
    "the manifest of the newest commit": (
        lambda store: next(key for key in store.list("data/1/20-") if key.endswith("manifest.json")),
        "commit 3 of step 20: data/1/20-",
        10,
    ),
    "the newest entry, a commit's": (lambda _: key_of(3), "holds a whole checkpoint that no log entry names", 10),
    "the entry before the newest": (lambda _: key_of(2), "log entry 2 is missing: exclude log/", 20),
}


@pytest.mark.parametrize("what", GONE)
def test_what_is_gone_is_said(what: str) -> None:
    find, expected, step = GONE[what]
    store = MemoryStore()
    log_writer = opened(store)
    for each in COMMITS.values():
        save_solo(store, log_writer, each)
    store.delete([find(store)])
    said, loaded = started(store)
    assert expected in said
    assert loaded
    assert loaded.commit.step == step


def test_a_rewritten_entry_whose_successor_names_other_bytes_is_said_and_not_gone_on_from() -> None:
    store = trained()
    store.objects[key_of(3)] = rewritten(store.objects[key_of(3)], b'"consumed":1280', b'"consumed":1216')
    said, loaded = started(store)
    assert "log entry 3 was changed after entry 4 was written" in said
    assert loaded
    assert loaded.position == position(10)


def test_a_wrong_prev_of_the_newest_entry_is_said() -> None:
    store = trained()
    body = store.objects[key_of(4)]
    prev = body.split(b'"prev":"')[1][:16]
    store.objects[key_of(4)] = rewritten(body, prev, prev[::-1])
    assert "log entry 3 was changed after entry 4 was written" in started(store)[0]


def test_the_newest_commits_manifest_is_never_retired_so_verify_calls_its_absence_damage(tmp_path: Path) -> None:
    store = trained()
    store.delete([next(key for key in store.list("data/1/20-") if key.endswith("manifest.json"))])
    said = verified(store, tmp_path)
    assert "commit 3 of step 20: DAMAGED: data/1/20-" in said
    assert "commit 2 of step 10: whole" in said
    assert "CORRUPT" in said


def test_when_every_manifest_is_gone_training_does_not_start_over() -> None:
    store = trained()
    store.delete([key for key in store.list("data/") if key.endswith("manifest.json")])
    with pytest.raises(
        Corrupt, match=r"none can be used: commit 3 of step 20: data/1/20-.* is missing; 1 older commits"
    ):
        started(store)


def test_an_empty_log_beside_checkpoints_is_refused_and_everything_left_as_it_is() -> None:
    store = trained()
    store.delete(store.list("log/"))
    before = dict(store.objects)
    with pytest.raises(
        LogLost, match=r"has checkpoints, such as data/1/10-.*no log: restore log/, or .*move data/ away"
    ):
        writer(store, 2).try_open(1, wait_over=True)
    assert store.objects == before


def test_a_log_whose_only_commit_cannot_be_read_is_refused_and_left_as_it_is() -> None:
    store = MemoryStore()
    save_solo(store, opened(store), 10)
    store.objects[key_of(2)] = store.objects[key_of(2)][:40]
    before = dict(store.objects)
    with pytest.raises(LogLost, match=r"has checkpoints, such as data/1/10-.*log entry 2.*: restore log/, or .*away"):
        writer(store, 2).try_open(1, wait_over=True)
    assert store.objects == before


def test_an_unreadable_end_of_a_log_without_checkpoints_loses_nothing() -> None:
    store = MemoryStore()
    opened(store)
    store.objects[key_of(1)] = store.objects[key_of(1)][:40]
    said, loaded = started(store)
    assert "log entry 1" in said
    assert loaded is None


def test_foreign_data_under_the_root_is_left_alone() -> None:
    store = MemoryStore()
    for key in ("data/train.bin", "data/0/images/1.png", "data/2024/9-things/x"):
        store.put(key, b"x")
    log_writer = opened(store, 5)
    save_solo(store, log_writer, 10)
    retire(store, log_writer, 1)
    assert [key for key in store.list("data/") if not key.startswith("data/5/")] == [
        "data/0/images/1.png",
        "data/2024/9-things/x",
        "data/train.bin",
    ]


class TestLitter:
    """What a process that was killed in the middle has left."""

    def left_by_another_uid(self, store: MemoryStore) -> list[str]:
        """A half-written folder under a run's number that its successor has not reached."""
        log_writer = opened(store, 5, uid="old")
        with pytest.raises(Died):
            save_solo(dying(store, 1, after=True), log_writer, 7)
        return store.list("data/")

    @pytest.mark.parametrize(("age", "stays"), [(0.0, True), (LITTER_SECONDS + 60, False)], ids=["young", "old"])
    def test_half_written_folders_go_after_a_day_whichever_run_began_them(self, age: float, *, stays: bool) -> None:
        store = MemoryStore()
        litter = self.left_by_another_uid(store)
        assert litter
        for key in litter:
            store.written[key] -= age
        log_writer = opened(store, 1, uid="new", wait_over=True)
        save_solo(store, log_writer, 1)
        retire(store, log_writer, 3)
        assert [key for key in store.list("data/") if key in litter] == (litter if stays else [])
        assert load_solo(store, log_writer)

    def test_a_named_commit_is_no_litter_however_old_it_is(self) -> None:
        store = MemoryStore()
        save_solo(store, opened(store, 5, uid="old"), 7)
        for key in store.written:
            store.written[key] -= 10 * LITTER_SECONDS
        log_writer = opened(store, 1, uid="new", wait_over=True)
        save_solo(store, log_writer, 8)
        retire(store, log_writer, 3)
        assert {key.split("/")[2].partition("-")[0] for key in store.list("data/")} == {"7", "8"}

    def test_files_on_their_way_go_with_them(self, tmp_path: Path) -> None:
        store = open_store(f"file://{tmp_path}", {})
        log_writer = opened(store)
        save_solo(store, log_writer, 1)
        litter = tmp_path / INCOMING / "half"
        litter.write_bytes(b"ha")
        long_ago = time.time() - LITTER_SECONDS - 60
        os.utime(litter, (long_ago, long_ago))
        retire(store, log_writer, 3)
        assert not litter.exists()
