"""Which data is deleted, in which order, and which never is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.inspect import verify
from perdure.checkpoint.pinning import unpin
from perdure.checkpoint.retention import retire
from perdure.errors import Fenced, StorageError, StorageRefused, UserError
from perdure.log.entry import key_of
from perdure.store import Store, every_key, open_store
from perdure.store.file import INCOMING
from perdure.wire import CommitSelector
from tests.support.store import Died, MemoryStore, WatchedStore, dying, failing
from tests.unit.runtime.checkpoint.world import load_solo, opened, save_solo, story


def kept(store: Store) -> list[int]:
    """Steps whose data is there."""
    return sorted({int(key.split("/")[2].partition("-")[0]) for key in store.list("data/")})


def saved(store: Store, steps: range) -> Any:
    log_writer = opened(store)
    for step in steps:
        save_solo(store, log_writer, step)
    return log_writer


def shard_of(store: Store, step: int) -> str:
    return next(key for key in store.list(f"data/1/{step}-") if "shard" in key)


def test_the_newest_are_kept_and_the_log_is_whole() -> None:
    store = MemoryStore()
    log_writer = saved(store, range(1, 6))
    folders = retire(store, log_writer, 2)
    assert [folder.split("/")[2].partition("-")[0] for folder in folders] == ["1", "2", "3"]
    assert kept(store) == [4, 5]
    assert store.list("log/") == [key_of(seq) for seq in range(6, 0, -1)]
    assert retire(store, log_writer, 2) == []


def test_a_commit_without_its_manifest_is_retired_and_not_a_damaged_one() -> None:
    store = MemoryStore()
    log_writer = saved(store, range(1, 4))
    retire(store, log_writer, 1)
    loaded = load_solo(store, log_writer)
    assert loaded
    assert (loaded.commit.step, loaded.skipped) == (3, ())


def test_the_manifest_goes_first_and_the_oldest_commit_first() -> None:
    store = MemoryStore()
    log_writer = saved(store, range(1, 4))
    deleted: list[str] = []

    def around(verb: str, key: str, act: Any) -> Any:
        if verb == "delete":
            deleted.append(key)
        return act()

    retire(WatchedStore(store, around), log_writer, 1)
    assert [(key.split("/")[2][0], key.endswith("manifest.json")) for key in deleted] == [
        ("1", True),
        ("1", False),
        ("2", True),
        ("2", False),
    ]


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("damage", ["short", "missing", "manifest"])
def test_the_newest_usable_commit_is_never_retired(tmp_path: Path, kind: str, damage: str) -> None:
    """A folder keeps no checksums, so what it tells of a shard is its size."""
    store: Store = MemoryStore() if kind == "memory" else open_store(f"file://{tmp_path}/root", {})
    log_writer = saved(store, range(1, 6))
    for step in (4, 5):
        key = shard_of(store, step)
        match damage:
            case "short":
                store.put(key, store.get(key)[:-1])
            case "missing":
                store.delete([key])
            case "manifest":
                key = next(key for key in store.list(f"data/1/{step}-") if key.endswith("manifest.json"))
                store.put(key, store.get(key) + b" ")
    retire(store, log_writer, 2)
    assert kept(store) == [3, 4, 5]
    loaded = load_solo(store, log_writer)
    assert loaded
    assert loaded.commit.step == 3


@pytest.mark.parametrize("after", [False, True])
def test_what_a_death_left_half_deleted_is_finished_by_the_next_run(*, after: bool) -> None:
    for call in range(100):
        store = MemoryStore()
        log_writer = saved(store, range(1, 6))
        try:
            retire(dying(store, call, after=after), log_writer, 2)
        except Died:
            successor = opened(store, 2, wait_over=True)
            retire(store, successor, 2)
            assert kept(store) == [4, 5], f"call {call}"
        else:
            assert call > 10
            return
    raise AssertionError("it never ends")


def test_a_zombie_deletes_nothing() -> None:
    store = MemoryStore()
    zombie = saved(store, range(1, 6))
    opened(store, 2, wait_over=True)
    before = dict(store.objects)
    assert retire(store, zombie, 1) == []
    assert store.objects == before


def test_a_zombie_that_wakes_after_retention_finds_its_numbers_taken() -> None:
    """The successor has retired everything the zombie knew; an entry it could write again would rewrite history."""
    store = MemoryStore()
    zombie = saved(store, range(1, 4))
    successor = opened(store, 2, wait_over=True)
    for step in range(4, 8):
        save_solo(store, successor, step)
        retire(store, successor, 1)
    assert kept(store) == [7]
    with pytest.raises(Fenced):
        save_solo(store, zombie, 4)
    loaded = load_solo(store, successor)
    assert loaded
    assert loaded.commit.step == 7
    assert story(store)[-1] == "Committed 2 @7"


def test_what_failed_attempts_left_goes_after_the_next_commit() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    with pytest.raises(StorageError):
        save_solo(failing(store, 1, after=False), log_writer, 1)
    assert kept(store) == [1]
    save_solo(store, log_writer, 2)
    retire(store, log_writer, 3)
    assert kept(store) == [2]


def test_a_commit_whose_answer_was_lost_is_whole_although_old_ones_are_retired_before_it_is_known() -> None:
    """As where a save in the background was committed, and its retention comes after the failure of the next save."""
    store = MemoryStore()
    log_writer = opened(store)
    save_solo(store, log_writer, 1)
    log_writer.log.store = not_answering(store, "log/")
    with pytest.raises(StorageError):
        save_solo(store, log_writer, 2)
    retire(store, log_writer, 3)
    log_writer.log.store = store
    loaded = load_solo(store, opened(store, 2, wait_over=True))
    assert loaded
    assert (loaded.commit.step, loaded.skipped) == (2, ())


def not_answering(inner: Store, at: str) -> WatchedStore:
    """Puts of keys that hold `at` are made, and nobody hears of it."""

    def around(verb: str, key: str, act: Any) -> Any:
        done = act()
        if verb == "put" and at in key:
            raise StorageError("the answer was lost")
        return done

    return WatchedStore(inner, around)


def killed_while_it_writes(store: Store, key: str) -> None:
    child = os.fork()
    if not child:

        def blocks() -> Iterator[memoryview]:
            yield memoryview(b"half")
            os._exit(0)

        store.put_stream(key, blocks(), 100)
    os.waitpid(child, 0)


def test_what_a_failed_save_has_uploaded_is_gone_before_the_next_one_uploads(tmp_path: Path) -> None:
    """Otherwise no save would ever succeed where the room is for one more only."""
    store = open_store(f"file://{tmp_path}", {})
    log_writer = opened(store)
    save_solo(store, log_writer, 1)
    with pytest.raises(StorageError):
        save_solo(not_answering(store, "manifest"), log_writer, 2)
    (folder,) = log_writer.abandoned
    assert store.list(folder)
    killed_while_it_writes(store, f"{folder}shard-00001-of-00002.safetensors")
    assert len(list((tmp_path / INCOMING).iterdir())) == 1

    def around(verb: str, key: str, act: Any) -> Any:
        if verb == "put" and "data/1/3-" in key:
            raise StorageError("no space left on device")
        return act()

    with pytest.raises(StorageError):
        save_solo(WatchedStore(store, around), log_writer, 3)
    assert kept(store) == [1]
    assert list((tmp_path / INCOMING).iterdir()) == []


def test_where_nothing_can_be_deleted_saves_go_on() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    with pytest.raises(StorageError):
        save_solo(not_answering(store, "manifest"), log_writer, 2)

    def around(verb: str, _key: str, act: Any) -> Any:
        if verb == "delete":
            raise StorageRefused("s3:DeleteObject is not allowed")
        return act()

    assert save_solo(WatchedStore(store, around), log_writer, 3).commit.step == 3
    assert kept(store) == [2, 3]
    retire(store, log_writer, 2)
    assert kept(store) == [3]


def test_what_uploaders_of_older_runs_had_begun_goes_with_the_first_commit_of_the_next(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", {})
    for run in (1, 2):
        killed_while_it_writes(store, f"data/{run}/5-0123456789abcdef/shard-00000-of-00001.safetensors")
    log_writer = opened(store, 2)
    save_solo(store, log_writer, 7)
    retire(store, log_writer, 2)
    (left,) = (tmp_path / INCOMING).iterdir()
    assert "data%2F2%2F5" in left.name


class Begun(MemoryStore):
    """Has uploads that their writers began, and left long ago."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.begun = {*keys}

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:  # noqa: ARG002
        swept = {key for key in self.begun if where(key)}
        self.begun -= swept
        return len(swept)


def test_what_other_programs_upload_below_the_root_is_left_alone() -> None:
    own = [
        "data/9/5-0123456789abcdef/shard-00000-of-00001.safetensors",
        "log/9999999999999999.json",
        "members/3-0123456789abcdef.json",
        "pins/0000000000000003.pinned",
        "trace/local-1-0-00000.jsonl",
        f"probe/{'0' * 32}",
        "store-check-01234567/large-object/a",
        "",
    ]
    others = [
        "data/train.bin",
        "data/9/5-model/x",
        "models/llama.safetensors",
        "log/app.json",
        "trace/a.jsonl",
        "probe/a",
    ]
    store = Begun(*own, *others)
    log_writer = opened(store)
    save_solo(store, log_writer, 1)
    retire(store, log_writer, 1)
    assert sorted(store.begun) == sorted(others)


def test_the_daily_search_asks_for_the_age_of_no_object_that_a_commit_has() -> None:
    store, asked = MemoryStore(), set[str]()
    log_writer = saved(store, range(1, 6))
    left = "data/1/9-0123456789abcdef/shard-00000-of-00001.safetensors"
    store.put(left, b"of a save that has failed")
    store.written = dict.fromkeys(store.objects, 0.0)

    def around(verb: str, key: str, act: Any) -> Any:
        if verb == "head":
            asked.add(key)
        return act()

    retire(WatchedStore(store, around), log_writer, 5)
    assert {key for key in asked if not key.endswith("manifest.json")} == {left, shard_of(store, 5)}
    assert kept(store) == [1, 2, 3, 4, 5]


def killed_in_save(store: Store, run: int, step: int, at: str) -> None:
    """A process of `run` dies when it is about to put the object of `step` whose key holds `at`."""

    def around(verb: str, key: str, act: Any) -> Any:
        if verb == "put" and at in key and armed:
            raise Died
        return act()

    armed = False
    watched = WatchedStore(store, around)
    log_writer = opened(watched, run, wait_over=True)
    armed = True
    with pytest.raises(Died):
        save_solo(watched, log_writer, step)


LAST_WORDS = ["index", "manifest", "log/"]


@pytest.mark.parametrize("at", LAST_WORDS)
def test_what_killed_runs_left_is_removed_by_the_next_and_no_commit_of_theirs_is_touched(at: str) -> None:
    store = MemoryStore()
    saved(store, range(1, 3))
    for run, step in ((2, 3), (3, 4)):
        killed_in_save(store, run, step, at)
    assert kept(store) == [1, 2, 3, 4]
    log_writer = opened(store, 4, wait_over=True)
    save_solo(store, log_writer, 5)
    folders = retire(store, log_writer, 3)
    assert kept(store) == [1, 2, 5]
    assert [folder.split("/")[1] for folder in folders] == ["2", "3"]


def test_the_commits_of_older_runs_are_kept_even_where_those_between_were_lost() -> None:
    """Retention stops looking below a missing commit; the ones below may still be resumed from."""
    store = MemoryStore()
    saved(store, range(1, 4))
    store.delete(store.list("data/1/2-"))
    killed_in_save(store, 2, 4, "log/")
    log_writer = opened(store, 3, wait_over=True)
    save_solo(store, log_writer, 5)
    retire(store, log_writer, 3)
    assert kept(store) == [1, 3, 5]


def test_what_an_unreadable_entry_may_name_is_kept() -> None:
    store = MemoryStore()
    saved(store, range(1, 3))
    killed_in_save(store, 2, 4, "manifest")
    store.put(key_of(2), b"{")
    log_writer = opened(store, 3, wait_over=True)
    save_solo(store, log_writer, 5)
    retire(store, log_writer, 3)
    assert kept(store) == [1, 2, 5]


@pytest.mark.parametrize("at", LAST_WORDS)
def test_a_zombie_whose_upload_was_removed_commits_nothing(at: str) -> None:
    """An older run stands still in the middle of a save, and goes on when the next has looked for leftovers."""
    store = MemoryStore()
    frozen = False

    def around(verb: str, key: str, act: Any) -> Any:
        nonlocal frozen
        if frozen and verb == "put" and at in key:
            frozen = False
            successor = opened(store, 2, wait_over=True)
            save_solo(store, successor, 2)
            retire(store, successor, 3)
        return act()

    watched = WatchedStore(store, around)
    zombie = opened(watched, 1)
    save_solo(watched, zombie, 1)
    frozen = True
    with pytest.raises(Fenced):
        save_solo(watched, zombie, 9)
    last = opened(store, 3, wait_over=True)
    save_solo(store, last, 3)
    retire(store, last, 3)
    assert kept(store) == [1, 2, 3]
    loaded = load_solo(store, last)
    assert loaded
    assert (loaded.commit.step, loaded.skipped) == (3, ())


def test_a_newer_run_that_uploads_meanwhile_loses_nothing() -> None:
    """Of another job under the same root: its run numbers begin again below this one's."""
    store = MemoryStore()
    log_writer = opened(store, 7)
    save_solo(store, log_writer, 1)
    other = opened(store, 1, uid="new")
    with pytest.raises(StorageError):
        save_solo(failing(store, 2, after=False), other, 2)
    before = dict(store.objects)
    assert retire(store, log_writer, 3) == []
    assert store.objects == before


def test_leftovers_are_looked_for_once_per_run_and_again_after_a_failure() -> None:
    store = MemoryStore()
    killed_in_save(store, 1, 1, "index")
    log_writer = opened(store, 2, wait_over=True)
    save_solo(store, log_writer, 2)
    with pytest.raises(StorageError):
        retire(failing(store, 3, after=False), log_writer, 3)
    listed: list[str] = []

    def around(verb: str, key: str, act: Any) -> Any:
        if verb == "list":
            listed.append(key)
        return act()

    for _ in range(2):
        retire(WatchedStore(store, around), log_writer, 3)
    assert listed.count("data/") == 1
    assert kept(store) == [2]


def test_commits_of_the_runs_before_count_too() -> None:
    store = MemoryStore()
    saved(store, range(1, 4))
    log_writer = opened(store, 2, wait_over=True)
    save_solo(store, log_writer, 4)
    retire(store, log_writer, 2)
    assert kept(store) == [3, 4]


def trained(store: Store, steps: Iterable[int], *, run: int = 1) -> Any:
    """Keeps the newest two, and the first commit of every 30 steps."""
    log_writer = opened(store, run, wait_over=True)
    for step in steps:
        save_solo(store, log_writer, step)
        retire(store, log_writer, 2, keep_every=30)
    return log_writer


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (range(10, 101, 10), [30, 60, 90, 100]),
        ([7, 25, 33, 41, 62, 95, 97, 98], [33, 62, 95, 97, 98]),
        ([100, 101, 102, 103], [100, 102, 103]),
    ],
    ids=["of a cadence by steps", "of one by seconds", "that are far apart"],
)
def test_the_first_commit_of_each_so_many_steps_is_kept(
    tmp_path: Path, steps: Iterable[int], expected: list[int]
) -> None:
    store = open_store(f"file://{tmp_path}", {})
    log_writer = trained(store, steps)
    assert kept(store) == expected
    assert {line.data.get("state") for line in verify(store.uri, {})} == {None, "whole", "retired"}
    unpin(store, CommitSelector(step=expected[0])).__next__()
    retire(store, log_writer, 2, keep_every=30)
    assert kept(store) == expected, "the setting still keeps it"
    unpin(store, CommitSelector(step=expected[0])).__next__()
    retire(store, log_writer, 2)
    assert kept(store) == expected[1:]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_wherever_retention_dies_those_that_are_to_stay_do(*, after: bool) -> None:
    for call in range(1000):
        store = MemoryStore()
        mortal = dying(store, call, after=after)
        log_writer = trained(store, [10, 20, 30])
        save_solo(store, log_writer, 40)
        save_solo(store, log_writer, 50)
        try:
            retire(mortal, log_writer, 2, keep_every=30)
        except Died:
            trained(store, [60, 70], run=2)
            assert kept(store) == [30, 60, 70]
        else:
            assert call > 5
            return


def test_one_that_had_a_pin_of_the_script_is_kept_when_the_pin_moves_on() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    for step, pin in (
        (10, None),
        (20, None),
        (30, "best"),
        (40, None),
        (50, None),
        (60, None),
        (70, "best"),
        (80, None),
    ):
        save_solo(store, log_writer, step, pin=pin)
        retire(store, log_writer, 1, keep_every=30)
    assert kept(store) == [30, 60, 70, 80]


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_nothing_is_refused(keep: int) -> None:
    store = MemoryStore()
    with pytest.raises(UserError, match="keep at least 1"):
        retire(store, saved(store, range(1, 3)), keep)
