"""What is left of a root wherever a process or its machine stops: the whole older commit, or the whole newer one.

The evidence is read by torch and safetensors from the objects alone: none of Perdure's readers is asked.
"""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from awscrt.checksums import crc64nvme
from safetensors.torch import load as read_tensors

from perdure.checkpoint.background import events
from perdure.checkpoint.background.part import put_index, put_shard
from perdure.checkpoint.background.rank0 import CommitRequests, CopiedPart
from perdure.checkpoint.copying import copy
from perdure.checkpoint.garbage import gc
from perdure.checkpoint.retention import retire
from perdure.checkpoint.stage import stage
from perdure.errors import PerdureError, StorageError
from perdure.log.writer import Writer
from perdure.store import Store
from perdure.store.file import INCOMING, FileStore
from tests.support.store import Died, MemoryStore, WatchedStore, dying, failing
from tests.unit.runtime.checkpoint.world import load_solo, opened, position, save_solo, state

Objects = Mapping[str, bytes]


def newest(objects: Objects) -> int | None:
    """The step of the newest commit, every byte of which is there and is what was trained; None without a commit."""
    entries = sorted((json.loads(data) for key, data in objects.items() if key.startswith("log/")), key=_number)
    assert [_number(entry) for entry in entries] == list(range(1, len(entries) + 1)), "the log has a gap"
    commits = [entry for entry in entries if entry["kind"] == "Committed"]
    if not commits:
        return None
    named, step = commits[-1]["manifest"], int(commits[-1]["step"])
    assert _crc(objects[named["key"]]) == named["crc"]
    found: dict[str, torch.Tensor] = {}
    for index in json.loads(objects[named["key"]])["indexes"]:
        shard = objects[index["shard"]["key"]]
        assert _crc(shard) == index["shard"]["crc"]
        found |= read_tensors(shard)
    trained = state(step)
    expected = {f"shared/{name}": tensor for name, tensor in trained.shared.items()}
    expected |= {f"replicated/{name}": tensor for name, tensor in trained.replicated.items()}
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], tensor.resolve_conj()) for name, tensor in expected.items())
    return step


def _number(entry: Mapping[str, Any]) -> int:
    return int(entry["seq"])


def _crc(data: bytes) -> str:
    return f"{crc64nvme(data):016x}"


def test_the_evidence_finds_what_is_missing_torn_or_of_another_step() -> None:
    whole = trained()[0].objects
    assert newest(whole) == 20
    for key, data in whole.items():
        if "/20-" in key and "index-" not in key:
            for damaged in ({**whole, key: data[:-1]}, {other: whole[other] for other in whole if other != key}):
                with pytest.raises((AssertionError, KeyError)):
                    newest(damaged)
    with pytest.raises(AssertionError):
        newest({key: data.replace(b'"step":20', b'"step":21') for key, data in whole.items()})


# Every call of every act, in every way in which a call can end.


def trained() -> tuple[MemoryStore, Writer]:
    """Commits of step 10 and 20, and what a failed save of step 15 has left."""
    store = MemoryStore()
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    with pytest.raises(StorageError):
        save_solo(failing(store, 2, after=True), log_writer, 15)
    save_solo(store, log_writer, 20)
    return store, log_writer


def saves(store: Store, log_writer: Writer) -> None:
    log_writer.log.store = store
    save_solo(store, log_writer, 30)


class AtOnce(CommitRequests):
    """Rank 0's requests, in the caller's thread."""

    def beside(self, act: Callable[[], None]) -> str:
        act()
        return ""


def uploads(store: Store, log_writer: Writer) -> None:
    """A save in the background: its uploading process, and then rank 0's requests. Another try has the same name."""
    log_writer.log.store = store
    folder, at, staged = "data/1/30-00000000000000aa/", position(30), stage(state(30), 0, 1)
    whole = _crc(b"".join(map(bytes, staged.blocks())))
    put_index(store, folder, staged, put_shard(store, folder, staged, whole), run=1, position=at)
    requests = AtOnce(store, log_writer, threading.Lock())
    requests.prepare("aa", folder, [CopiedPart(staged.size, whole)], 1, at)
    if requests.answers() != [events.Prepared("aa")]:
        raise StorageError("rank 0 could not prepare the commit")
    requests.append("aa", at, final=False, reason="cadence", again=False)
    if not isinstance(requests.answers()[0], events.Appended):
        raise StorageError(requests.trouble)


def retires(store: Store, log_writer: Writer) -> None:
    log_writer.log.store = store
    retire(store, log_writer, 1, keep_every=10)
    retire(store, log_writer, 1)


def collects(store: Store, _: Writer) -> None:
    list(gc(store, keep=1, deletes=True))


def restores(store: Store, _: Writer) -> None:
    assert load_solo(store, opened(store, None, wait_over=True))


def copies(store: Store, _: Writer) -> None:
    list(copy(store, MemoryStore()))


ACTS: Final = {act.__name__: act for act in (saves, uploads, retires, collects, restores, copies)}
COMMITTING: Final = ("saves", "uploads")
Way = Callable[[Store, int], tuple[Store, Callable[[], None]]]


def dies(store: Store, call: int, *, after: bool) -> tuple[Store, Callable[[], None]]:
    return dying(store, call, after=after), lambda: None


def fails(store: Store, call: int, *, after: bool) -> tuple[Store, Callable[[], None]]:
    return failing(store, call, after=after), lambda: None


def comes_late(store: Store, call: int) -> tuple[Store, Callable[[], None]]:
    """The caller hears of a failure, tries again, and then the store does what it was asked at first."""
    made, waiting = 0, list[Callable[[], Any]]()

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        nonlocal made
        made += 1
        if made - 1 != call:
            return act()
        if verb == "put":
            waiting.append(act)
        raise StorageError(f"cannot {verb} {key}: no answer")

    def land() -> None:
        for act in waiting:
            with suppress(PerdureError):
                act()

    return WatchedStore(store, around), land


WAYS: Final[Mapping[str, Way]] = {
    "killed before": partial(dies, after=False),
    "killed after": partial(dies, after=True),
    "refused": partial(fails, after=False),
    "answer lost": partial(fails, after=True),
    "done late": comes_late,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", ACTS)
def test_wherever_a_call_to_the_store_ends_the_newest_commit_is_whole(act: str, way: str) -> None:
    calls = calls_of(ACTS[act])
    assert calls > 3
    for call in range(calls):
        store, log_writer = trained()
        broken, land = WAYS[way](store, call)
        try:
            ACTS[act](broken, log_writer)
        except Died:
            told = {20, 30} if act in COMMITTING else {20}
        except StorageError:
            assert newest(store.objects) in ({20, 30} if act in COMMITTING else {20})
            if act == "saves":
                retire(store, log_writer, 2)  # of the commit before, which comes in a thread
            ACTS[act](broken, log_writer)
            told = {30 if act in COMMITTING else 20}
        else:
            told = {30 if act in COMMITTING else 20}
        assert newest(store.objects) in told, f"call {call}"
        land()
        left = newest(store.objects)
        assert left in told, f"call {call}, later"
        successor = opened(store, None, wait_over=True)
        loaded = load_solo(store, successor)
        assert loaded
        assert loaded.commit.step == left
        save_solo(store, successor, 40)
        retire(store, successor, 1)
        assert newest(store.objects) == 40


def calls_of(act: Callable[[Store, Writer], None]) -> int:
    """How many calls to the store it makes undisturbed."""
    made = 0

    def around(_verb: str, _key: str, act: Callable[[], Any]) -> Any:
        nonlocal made
        made += 1
        return act()

    store, log_writer = trained()
    act(WatchedStore(store, around), log_writer)
    return made


# A folder on a disk that loses what was not synced.


class WatchedFile(io.FileIO):
    """One that the disk is asked about at each system call."""

    def __init__(self, path: Path, mode: str, disk: Disk) -> None:
        super().__init__(path, mode)
        self._disk = disk

    def write(self, data: Any) -> int:
        self._disk.before("write")
        return super().write(data)

    def readinto(self, buffer: Any) -> int:
        self._disk.before("read")
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._disk.before("read")
        return super().readall()


def _opened(path: Path, disk: Disk, mode: str = "r") -> io.BufferedReader | io.BufferedWriter:
    """As Path.open opens a file of bytes."""
    disk.before("open")
    file = WatchedFile(path, mode.replace("b", ""), disk)
    return io.BufferedReader(file) if mode == "rb" else io.BufferedWriter(file)


def bytes_of(path: Path) -> bytes:
    """Without the disk's notice: for evidence."""
    with open(path, "rb") as file:  # noqa: PTH123 - Path.open is watched
        return file.read()


class Disk:
    """What of a folder would be left by a loss of power now, as far as its file system promises anything.

    A file holds what it held at its last fsync, a folder the names that it had at its own.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {folder.stat().st_ino: {}}
        self._held: list[int] = []
        """Open, so that no number of a file is given again."""
        self.before: Callable[[str], None] = lambda _: None
        """Called before each change and each sync."""
        for name in ("fsync", "link", "replace", "rename", "unlink", "mkdir", "rmdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        monkeypatch.setattr(Path, "open", partialmethod(_opened, self))

    def _watched(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.before(name)
            done = act(*args, **kwargs)
            if name == "fsync":
                self._synced(args[0])
            return done

        return watched

    def _synced(self, descriptor: int) -> None:
        self._held.append(os.dup(descriptor))
        path, number = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor).st_ino
        if path.is_dir():
            self._folders[number] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self._files[number] = bytes_of(path)

    def left(self) -> dict[str, bytes]:
        """Names and bytes of what was synced."""
        return dict(self._below(self._folder.stat().st_ino, ""))

    def names_are_there(self) -> dict[str, bytes]:
        """The same where the names came to the disk without a sync."""
        paths = (path for path in self._folder.rglob("*") if path.is_file() and INCOMING not in path.parts)
        root = self._folder / "root"
        return {path.relative_to(root).as_posix(): self._files.get(path.stat().st_ino, b"") for path in paths}

    def _below(self, number: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name, inside in self._folders.get(number, {}).items():
            if name == INCOMING:
                continue
            if inside in self._folders or inside not in self._files:
                yield from self._below(inside, f"{prefix}{name}/" if prefix or name != "root" else "")
            else:
                yield f"{prefix}{name}", self._files[inside]

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(tmp_path, monkeypatch)
    yield disk
    disk.close()


@pytest.mark.parametrize("act", COMMITTING)
def test_no_loss_of_power_takes_a_commit_that_was_told_or_leaves_half_of_one(
    tmp_path: Path, disk: Disk, act: str
) -> None:
    told: list[int | None] = [None]
    looked = 0

    def look(_: str = "") -> None:
        nonlocal looked
        looked += 1
        for found in (newest(disk.left()), newest(disk.names_are_there())):
            assert (found or 0) >= (told[-1] or 0)

    disk.before = look
    store = FileStore(tmp_path / "root")
    log_writer = opened(store)
    for step in (10, 20, 30):
        if step == 30:
            ACTS[act](store, log_writer)
        else:
            save_solo(store, log_writer, step)
        told.append(step)
        look()
        retire(store, log_writer, 1)
    assert looked > 60
    assert newest(disk.left()) == 30


def test_no_loss_of_power_leaves_a_copy_with_half_of_a_commit(tmp_path: Path, disk: Disk) -> None:
    looked = 0

    def look(_: str = "") -> None:
        nonlocal looked
        looked += 1
        for found in (newest(disk.left()), newest(disk.names_are_there())):
            assert found in (None, 10, 20)

    source, _ = trained()
    disk.before = look
    list(copy(source, FileStore(tmp_path / "root")))
    assert looked > 20
    assert newest(disk.left()) == 20


class FailsOnce:
    """What a disk asks before each of its calls: the `call`-th one, from 0, fails with this error."""

    def __init__(self, call: int, number: int) -> None:
        self._left = call
        self._number = number

    def __call__(self, _: str) -> None:
        self._left -= 1
        if self._left == -1:
            raise OSError(self._number, os.strerror(self._number))

    @property
    def has_failed(self) -> bool:
        """False where there were fewer calls."""
        return self._left < 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_disk_that_fails_at_any_call_costs_one_try(tmp_path: Path, disk: Disk, number: int) -> None:
    failures = 0
    for call in range(1000):
        fails, root = FailsOnce(call, number), tmp_path / str(call)
        store = FileStore(root)
        log_writer = opened(store)
        save_solo(store, log_writer, 10)
        disk.before = fails
        for _ in range(2):
            with suppress(StorageError):
                save_solo(store, log_writer, 20)
                break
            failures += 1
            assert newest(objects_of(root)) in (10, 20)
        disk.before = lambda _: None
        assert newest(objects_of(root)) == 20, f"call {call}"
        if not fails.has_failed:
            assert failures > 10
            return
    raise AssertionError("it never ends")


def loads(store: Store, _: Writer) -> int | None:
    loaded = load_solo(store, opened(store, None, wait_over=True))
    return loaded.commit.step if loaded else None


def deletes(store: Store, log_writer: Writer) -> int | None:
    retire(store, log_writer, 1)
    return newest({key: store.get(key) for key in store.list("")})


@pytest.mark.parametrize("act", [loads, deletes])
def test_a_disk_that_fails_at_any_call_makes_no_older_commit_the_newest_one(
    tmp_path: Path, disk: Disk, act: Callable[[Store, Writer], int | None]
) -> None:
    """What cannot be read is not damaged, and no reason to go back."""
    for call in range(1000):
        fails, root = FailsOnce(call, errno.EIO), tmp_path / str(call)
        store = FileStore(root)
        log_writer = opened(store)
        for step in (10, 20):
            save_solo(store, log_writer, step)
        disk.before = fails
        with suppress(StorageError):
            assert act(store, log_writer) == 20, f"call {call}"
        disk.before = lambda _: None
        assert newest(objects_of(root)) == 20, f"call {call}"
        if not fails.has_failed:
            assert call > 10
            return
    raise AssertionError("it never ends")


def objects_of(root: Path) -> dict[str, bytes]:
    """All files of a folder, but those that are being written."""
    paths = (path for path in root.rglob("*") if path.is_file() and INCOMING not in path.parts)
    return {path.relative_to(root).as_posix(): bytes_of(path) for path in paths}
