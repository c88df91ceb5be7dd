"""A folder as a store: whole objects or none, whatever happens to the process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.errors import StorageError, UserError
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


def test_an_empty_folder_goes_with_its_last_object(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.put("data/1/a/x", b"")
    store.put("data/1/b", b"")
    store.delete(["data/1/a/x"])
    assert sorted(path.name for path in (tmp_path / "root/data/1").iterdir()) == ["b"]


def test_a_folder_that_cannot_be_written_is_named_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    store = FileStore(tmp_path / "root")
    with pytest.raises(StorageError, match=r"cannot write .*/root/log/1: .*: check the folder"):
        store.put("log/1", b"")
    with pytest.raises(StorageError, match="cannot read"):
        store.get("log/1")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(UserError, match=r"no hard links.*use a local disk"):
        FileStore(tmp_path).put("log/1", b"", if_absent=True)
    assert FileStore(tmp_path).list("") == []
