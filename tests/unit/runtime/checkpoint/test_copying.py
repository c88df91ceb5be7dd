"""A root that was copied is the same root, and a copy that was cut is none, or an older one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.local_s3 import S3Server
from perdure.checkpoint import inspect
from perdure.checkpoint.copying import copy
from perdure.checkpoint.retention import retire
from perdure.cli.main import main
from perdure.errors import Corrupt, LogLost, StorageError, UserError
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.store import Store, open_store
from perdure.wire import CommitSelector
from perdure.wire.settings import Member
from tests.support.store import Died, MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import UID, load_solo, opened, position, save_solo, story, writer
from tests.unit.runtime.store.s3 import require_versitygw


@pytest.fixture
def source() -> MemoryStore:
    """A root with a commit that is retired, two that are there, members and an end."""
    store = MemoryStore()
    pen = Writer(Log(store), uid=UID, run=1)
    pen.try_open(1, wait_over=True, members=[Member("digits-0", "n1")])
    for step in (10, 20, 30):
        save_solo(store, pen, step)
    retire(store, pen, 2)
    pen.complete({"epochs": 1}, position(30, 1))
    return store


def told(source: Store, target: Store) -> list[str]:
    return [line.text for line in copy(source, target)]


def test_a_copy_has_every_object_that_counts_and_is_whole(source: MemoryStore, tmp_path: Path) -> None:
    source.put("data/1/40-0123456789abcdef/shard-00000-of-00001.safetensors", b"of a writer that was killed")
    target = open_store(f"file://{tmp_path}/root", {})
    lines = told(source, target)
    assert [line.split(":")[0] for line in lines] == ["commit 3 of step 20", "commit 4 of step 30", "log"]
    counted = [key for key in source.list("") if "40-0123" not in key]
    assert {key: target.get(key) for key in target.list("")} == {key: source.get(key) for key in counted}
    states = [line.data.get("state") for line in inspect.verify(target.uri, {})]
    assert states == [None, "whole", "whole", "retired"]
    (shown,) = inspect.show(target.uri, CommitSelector(), {})
    assert "rank 0 ran in digits-0 on n1" in shown.text


def test_training_goes_on_in_the_copy_and_a_second_copy_brings_what_is_new(source: MemoryStore) -> None:
    target = MemoryStore()
    told(source, target)
    pen = writer(source, 2)
    pen.try_open(1, wait_over=True)
    save_solo(source, pen, 40)
    assert told(source, target)[-1] == "log: copied, 7 entries"
    assert story(target) == story(source)
    other = writer(target, 3)
    other.try_open(1, wait_over=True)
    loaded = load_solo(target, other)
    assert loaded
    assert loaded.commit.step == 40


def test_a_root_with_another_log_is_left_as_it_is(source: MemoryStore) -> None:
    for longer in (False, True):
        target = MemoryStore()
        if longer:
            told(source, target)
            writer(target, 2).try_open(1, wait_over=True)
        else:
            save_solo(target, opened(target, uid="other"), 5)
        before = dict(target.objects)
        with pytest.raises(UserError, match="has a log that is not the beginning of the log of"):
            told(source, target)
        assert target.objects == before


def test_a_damaged_commit_is_named_and_the_others_are_copied(source: MemoryStore, tmp_path: Path) -> None:
    shard = next(key for key in source.list("data/1/20-") if key.endswith(".safetensors"))
    source.objects[shard] = source.objects[shard][:-1] + b"?"
    target = MemoryStore()
    lines = told(source, target)
    assert lines[0].startswith(f"commit 3 of step 20: not copied: {shard} is damaged in the block")
    assert lines[1].startswith("commit 4 of step 30: copied")
    assert target.list("data/1/20-") == []
    for key, data in source.objects.items():
        open_store(f"file://{tmp_path}/a", {}).put(key, data)
    assert main(["copy", f"{tmp_path}/a", f"{tmp_path}/b"]) == 1


def test_what_the_target_has_is_copied_again_unless_it_is_the_same(source: MemoryStore) -> None:
    target, written = MemoryStore(), []

    def watching(kind: str, key: str, act: Callable[[], Any]) -> Any:
        if kind == "put" and (key.endswith(".safetensors") or key.startswith("log/")):
            written.append(key)
        return act()

    told(source, target)
    same, damaged = (key for key in target.objects if key.endswith(".safetensors"))
    *others, last = target.objects[damaged]
    target.objects[damaged] = bytes([*others, last ^ 1])
    told(source, WatchedStore(target, watching))
    assert written == [damaged]
    assert target.objects[damaged] == source.objects[damaged]
    assert target.objects[same] == source.objects[same]


def test_a_commit_that_is_made_meanwhile_is_left_to_the_next_copy(source: MemoryStore) -> None:
    pen, target = writer(source, 2), MemoryStore()
    pen.try_open(1, wait_over=True)
    heads = 0

    def training(kind: str, key: str, act: Callable[[], Any]) -> Any:
        nonlocal heads
        heads += (kind, key) == ("list", "log/")
        if heads == 2 and not source.list("data/2/"):
            save_solo(source, pen, 40)
        return act()

    assert told(WatchedStore(source, training), target)[-1] == "log: copied, 6 entries"
    assert target.list("data/2/") == []
    assert told(source, target)[-1] == "log: copied, 7 entries"
    assert story(target) == story(source)


def test_a_commit_that_its_training_deletes_under_the_copy_is_no_damage(source: MemoryStore) -> None:
    pen, target = writer(source, 2), MemoryStore()
    pen.try_open(1, wait_over=True)

    def training(kind: str, key: str, act: Callable[[], Any]) -> Any:
        if kind == "put" and ".reading-" in key:
            retire(source, pen, 1)
        return act()

    lines = list(copy(WatchedStore(source, training), target))
    assert lines[0].text == "commit 3 of step 20: not copied: its training has just deleted it"
    assert not any("problem" in line.data for line in lines)
    assert lines[1].text.startswith("commit 4 of step 30: copied")
    assert load_solo(target, opened(target, 3, wait_over=True))


def goes_on(source: MemoryStore, *, mark: bool) -> Store:
    """Its training commits once more, and keeps one commit only, as soon as an older one is read. `mark`: whether the
    store takes the marks of readers."""
    pen = writer(source, 2)
    pen.try_open(1, wait_over=True)

    def training(kind: str, key: str, act: Callable[[], Any]) -> Any:
        if kind == "get" and "data/1/20-" in key and not source.list("data/2/"):
            save_solo(source, pen, 40)
            retire(source, pen, 1)
        if kind == "put" and ".reading-" in key and not mark:
            raise StorageError("s3:PutObject is not allowed")
        return act()

    return WatchedStore(source, training)


def test_the_newest_commit_stays_until_it_is_copied(source: MemoryStore) -> None:
    target = MemoryStore()
    lines = told(goes_on(source, mark=True), target)
    assert lines[1].startswith("commit 4 of step 30: copied")
    assert load_solo(target, opened(target, 3, wait_over=True))


def test_without_the_newest_commit_no_log_is_copied(
    source: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = MemoryStore()
    stores = iter([goes_on(source, mark=False), target])
    monkeypatch.setattr("perdure.store.open_store", lambda *_: next(stores))
    assert main(["copy", "memory:a", "memory:b"]) == 1
    assert "log: not copied: its training has deleted the newest commit meanwhile" in capsys.readouterr().out
    assert target.list("log/") == []


def test_a_target_with_another_writer_is_noticed(source: MemoryStore) -> None:
    target = MemoryStore()

    def racing(kind: str, key: str, act: Callable[[], Any]) -> Any:
        if kind == "put" and key.startswith("log/"):
            target.objects.setdefault(key, b"another's")
        return act()

    with pytest.raises(UserError, match="another process is writing to memory:: entry 1 differs"):
        told(source, WatchedStore(target, racing))


def test_a_source_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no log"):
        told(open_store(f"file://{tmp_path}/a", {}), MemoryStore())


def test_killed_at_any_write_a_copy_is_none_or_an_older_one_and_can_be_finished(source: MemoryStore) -> None:
    whole = MemoryStore()
    told(source, whole)
    cuts = 0
    while True:
        target, left = MemoryStore(), cuts

        def dying(kind: str, _key: str, act: Callable[[], Any]) -> Any:
            nonlocal left
            if kind == "put":
                if not left:
                    raise Died
                left -= 1
            return act()

        try:
            told(source, WatchedStore(target, dying))
        except Died:
            cuts += 1
        else:
            break
        for key in target.list("data/"):
            folder = key.rpartition("/")[0]
            complete = set(source.list(folder)) == set(target.list(folder))
            assert complete or not key.endswith("manifest.json"), "a manifest makes a commit, so it comes last"
        head = Log(target).head()
        if head is None and target.list("data/"):
            with pytest.raises(LogLost):
                writer(target, 2).try_open(1, wait_over=True)
        elif head:
            assert story(target) == story(source)[: head.seq]
        assert told(source, target)[-1].startswith("log: copied")
        assert target.objects == whole.objects
    assert cuts == len(whole.objects)


def test_the_command_copies_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(f"file://{tmp_path}/a", {})
    save_solo(store, opened(store), 10)
    assert main(["copy", f"{tmp_path}/a", f"{tmp_path}/b"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "log: copied, 2 entries"
    assert main(["diff", f"{tmp_path}/a", f"{tmp_path}/b"]) == 0
    store.delete(store.list("log/")[-1:])
    with pytest.raises(Corrupt, match="no entry 1 in its log any more"):
        told(store, MemoryStore())


def test_a_root_goes_to_a_bucket_and_back(source: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_versitygw()
    folder, bucket, back = f"{tmp_path}/folder", "s3://bucket/root", f"{tmp_path}/back"
    told(source, open_store(f"file://{folder}", {}))
    with S3Server(tmp_path / "s3") as server:
        server.create_bucket("bucket")
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        assert main(["copy", folder, bucket]) == main(["verify", bucket]) == main(["copy", bucket, back]) == 0
    one, other = (open_store(f"file://{each}", {}) for each in (folder, back))
    assert {key: other.get(key) for key in other.list("")} == {key: one.get(key) for key in one.list("")}
