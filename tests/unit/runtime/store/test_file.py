"""A folder as a store: whole objects or none, whatever happens to the process."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.errors import StorageError, StorageRefused, UserError
from perdure.store import KeyExists
from perdure.store.file import INCOMING, FileStore

SIZE = 1 << 20
DAY = 24 * 3600.0
WRITER = f"""
import itertools, sys
from pathlib import Path
from perdure.store.file import FileStore
store = FileStore(Path(sys.argv[1]))
for n in itertools.count():
    store.put(f"log/{{n:06d}}", bytes([n % 256]) * {SIZE}, if_absent=True)
    print(n, flush=True)
"""


def test_a_killed_writer_leaves_whole_objects_and_no_gap(tmp_path: Path) -> None:
    for objects in (1, 2, 3, 5):
        folder = tmp_path / str(objects)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout
            told = [int(writer.stdout.readline()) for _ in range(objects)][-1]
            writer.send_signal(signal.SIGKILL)
        store = FileStore(folder)
        keys = store.list("")
        assert keys == [f"log/{n:06d}" for n in range(len(keys))]
        assert len(keys) > told
        for n, key in enumerate(keys):
            assert store.get(key) == bytes([n % 256]) * SIZE


def test_what_is_on_its_way_is_not_listed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("log/1", b"")
    (tmp_path / INCOMING / "half").write_bytes(b"ha")
    assert store.list("") == ["log/1"]


def test_a_small_object_of_which_much_would_be_read_takes_little_memory(tmp_path: Path) -> None:
    """Else nobody could read it whose address space has a limit."""
    store = FileStore(tmp_path)
    store.put("log/1", bytes(SIZE))
    tracemalloc.start()
    try:
        assert store.get("log/1", start=1, length=1 << 30) == bytes(SIZE - 1)
        assert store.get("log/1", start=SIZE + 1, length=1 << 30) == b""
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * SIZE


def test_nothing_stays_behind_after_a_put(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("log/1", b"", if_absent=True)
    store.put("log/2", b"")
    assert list((tmp_path / INCOMING).iterdir()) == []


def test_what_a_killed_writer_left_is_swept_after_a_day_and_what_is_on_its_way_is_not(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert store.sweep(DAY) == 0
    store.put("log/1", b"x")
    old, young = tmp_path / INCOMING / "old", tmp_path / INCOMING / "young"
    for path in (old, young):
        path.write_bytes(b"ha")
    long_ago = time.time() - DAY - 60
    os.utime(old, (long_ago, long_ago))
    os.utime(tmp_path / "log/1", (long_ago, long_ago))
    assert store.sweep(DAY) == 1
    assert list((tmp_path / INCOMING).iterdir()) == [young]
    assert store.get("log/1") == b"x"


def test_what_is_on_its_way_to_chosen_keys_is_swept(tmp_path: Path) -> None:
    store, long = FileStore(tmp_path), f"data/{'é' * 100}"
    left: dict[str, str] = {}

    def on_its_way(key: str) -> Iterator[memoryview]:
        yield memoryview(b"half")
        assert store.sweep(-math.inf, lambda found: found.startswith("data/2")) == 0

        def chosen(found: str) -> bool:
            left[key] = found
            return found.startswith("data/1")

        assert store.sweep(-math.inf, chosen) == (key == "data/1 x.y")

    store.put_stream(long, on_its_way(long), 4)
    with pytest.raises(StorageError, match="No such file"):
        store.put_stream("data/1 x.y", on_its_way("data/1 x.y"), 4)
    assert store.list("") == [long]
    assert left["data/1 x.y"] == "data/1 x.y"
    assert left[long].startswith("data/ééé")


def test_an_empty_folder_goes_with_its_last_object(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.put("data/1/a/x", b"")
    store.put("data/1/b", b"")
    store.delete(["data/1/a/x"])
    assert sorted(path.name for path in (tmp_path / "root/data/1").iterdir()) == ["b"]


def test_a_root_that_is_a_file_is_refused_for_good_by_every_call(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    store = FileStore(tmp_path / "root")
    calls: list[Callable[[], object]] = [
        lambda: store.put("log/1", b""),
        lambda: store.get("log/1"),
        lambda: store.head("log/1"),
        lambda: store.list("log/"),
    ]
    for call in calls:
        with pytest.raises(StorageRefused, match=r"cannot .*/root/log.*a part of the path is a file: correct"):
            call()


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.EACCES, StorageRefused, r"this process \(uid [0-9]+\) may not: change the folder's owner or mode"),
        (errno.EPERM, StorageRefused, "may not"),
        (errno.EROFS, StorageRefused, "mount it to be written"),
        (errno.ENAMETOOLONG, StorageRefused, "shorten"),
        (errno.ENOSPC, StorageError, "make room there"),
        (errno.EDQUOT, StorageError, "raise the quota"),
        (errno.EIO, StorageError, "check the disk"),
        (errno.ESTALE, StorageError, "check the disk"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_what_needs_another_mount_or_owner_stays_and_a_full_disk_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError], remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    store = FileStore(tmp_path / "root")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=rf"cannot write .*/root/log/1: {os.strerror(number)}: .*{remedy}") as failed:
        store.put("log/1", b"entry")
    assert type(failed.value) is kind
    monkeypatch.undo()
    assert store.list("") == []
    assert not list((tmp_path / "root").glob(f"{INCOMING}/*"))


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """All syncs from now on, and every new name, in order."""
    done: list[Path] = []
    fsync, link = os.fsync, os.link

    def noting_fsync(fd: int) -> None:
        fsync(fd)
        done.append(Path(f"/proc/self/fd/{fd}").readlink())

    def noting_link(source: Path, target: Path) -> None:
        link(source, target)
        done.append(Path(target))

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "link", noting_link)
    return done


def test_the_bytes_are_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    done = synced_paths(monkeypatch)
    FileStore(root).put("data/1/a", b"1", if_absent=True)
    assert done[-2:] == [root / "data/1/a", root / "data/1"]
    assert [path.parent for path in done[:-2]].count(root / INCOMING) == 1
    assert {tmp_path, root, root / "data"} <= set(done[:-2])


def test_a_folder_that_another_rank_has_just_made_is_synced_too_but_once_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/1").mkdir(parents=True)
    done = synced_paths(monkeypatch)
    store = FileStore(tmp_path)
    store.put("data/1/a", b"1")
    assert {tmp_path, tmp_path / "data"} <= set(done)
    done.clear()
    store.put("data/1/b", b"1")
    assert done[1:] == [tmp_path / "data/1"]
    assert tmp_path.parent not in done


def test_a_folder_that_was_removed_in_between_is_made_again(tmp_path: Path) -> None:
    mine, other = FileStore(tmp_path), FileStore(tmp_path)
    mine.put("data/1/a", b"1")
    other.delete(["data/1/a"])
    mine.put("data/1/b", b"1")
    assert mine.list("") == ["data/1/b"]


def test_a_link_whose_first_answer_was_lost_has_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def told_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", told_twice)
    store = FileStore(tmp_path)
    store.put("log/1", b"mine", if_absent=True)
    with pytest.raises(KeyExists):
        store.put("log/1", b"other", if_absent=True)
    assert store.get("log/1") == b"mine"


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(UserError, match=r"no hard links.*use a local disk"):
        FileStore(tmp_path).put("log/1", b"", if_absent=True)
    assert FileStore(tmp_path).list("") == []


def once_before(call: Callable[..., None], on: Path, disturb: Callable[[], None]) -> Callable[..., None]:
    """`call`, disturbed the first time that `on` is its last path."""
    left = [disturb]

    def disturbed(*paths: Path | int) -> None:
        if on in paths and left:
            left.pop()()
        call(*paths)

    return disturbed


def test_a_folder_that_a_deletion_removes_as_the_bytes_are_written_is_made_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("data/1/a", b"1")

    def while_another_deletes() -> Iterator[memoryview]:
        FileStore(tmp_path).delete(["data/1/a"])
        yield memoryview(b"1")

    store.put_stream("data/1/b", while_another_deletes(), 1)
    assert store.get("data/1/b") == b"1"


@pytest.mark.parametrize("if_absent", [True, False])
def test_a_folder_that_a_deletion_removes_before_the_name_is_given_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, if_absent: bool
) -> None:
    folder = tmp_path / "data/1"
    monkeypatch.setattr(os, "link", once_before(os.link, folder / "a", folder.rmdir))
    monkeypatch.setattr(os, "replace", once_before(os.replace, folder / "a", folder.rmdir))
    store = FileStore(tmp_path)
    store.put("data/1/a", b"1", if_absent=if_absent)
    assert store.get("data/1/a") == b"1"


def test_a_folder_that_a_deletion_removes_before_one_in_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    monkeypatch.setattr(os, "mkdir", once_before(os.mkdir, folder / "1", folder.rmdir))
    store = FileStore(tmp_path)
    store.put("data/1/a", b"1")
    assert store.get("data/1/a") == b"1"


def test_a_folder_that_another_process_makes_and_a_deletion_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, mkdir = tmp_path / "data/1", os.mkdir

    def made_and_removed(path: Path, mode: int) -> None:
        try:
            mkdir(path, mode)
        except FileExistsError:
            path.rmdir()
            raise

    monkeypatch.setattr(os, "mkdir", once_before(made_and_removed, folder, folder.mkdir))
    store = FileStore(tmp_path)
    store.put("data/1/a", b"1")
    assert store.get("data/1/a") == b"1"
