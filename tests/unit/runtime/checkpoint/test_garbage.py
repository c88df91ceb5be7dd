"""`perdure gc` lists and deletes unneeded data, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.garbage import gc
from perdure.cli.main import main
from perdure.errors import Corrupt, StorageError, UserError
from perdure.log.entry import key_of
from perdure.store import Store, open_store
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import load_solo, opened, save_solo

LEFT_BY_RUN_1 = "data/1/25-00000000000000aa/"
UNDER_WAY = "data/2/45-00000000000000bb/"


def fill(store: Store) -> None:
    """Two runs with two commits each, what a killed process left in each."""
    first = opened(store)
    for step in (10, 20):
        save_solo(store, first, step)
    second = opened(store, 2, wait_over=True)
    save_solo(store, second, 30)
    save_solo(store, second, 40, pin="best")
    for folder in (LEFT_BY_RUN_1, UNDER_WAY):
        store.put(f"{folder}shard-00000-of-00001.safetensors", b"a part")


@pytest.fixture
def root() -> MemoryStore:
    store = MemoryStore()
    fill(store)
    return store


def folders(lines: list[Any]) -> list[str]:
    return [line.data["folder"] for line in lines if "folder" in line.data]


def steps_kept(store: Store) -> set[int]:
    return {int(key.split("/")[2].partition("-")[0]) for key in store.list("data/") if key.endswith("manifest.json")}


def test_without_a_number_it_names_only_what_no_commit_names_and_deletes_nothing(root: MemoryStore) -> None:
    before = root.list("")
    *lines, summary = gc(root)
    assert folders(lines) == [LEFT_BY_RUN_1]
    assert summary.data == {"objects": 1, "bytes": 6, "deleted": False}
    assert root.list("") == before


def test_it_deletes_that_and_leaves_every_commit_and_what_is_under_way(root: MemoryStore) -> None:
    before = set(root.list(""))
    *_, summary = gc(root, deletes=True)
    assert summary.data == {"objects": 1, "bytes": 6, "deleted": True, "uploads": 0}
    assert before - set(root.list("")) == {f"{LEFT_BY_RUN_1}shard-00000-of-00001.safetensors"}
    *_, again = gc(root, deletes=True)
    assert again.data["objects"] == 0


def test_with_a_number_the_newest_stay_and_pinned_ones(root: MemoryStore) -> None:
    save_solo(root, opened(root, 3, wait_over=True), 50)
    list(gc(root, keep=1, deletes=True))
    assert steps_kept(root) == {40, 50}
    loaded = load_solo(root, opened(root, 4, wait_over=True))
    assert loaded
    assert (loaded.commit.step, loaded.skipped) == (50, ())


def test_the_first_of_every_so_many_steps_stays_if_that_is_asked_for(root: MemoryStore) -> None:
    list(gc(root, keep=1, keep_every=20, deletes=True))
    assert steps_kept(root) == {20, 40}
    with pytest.raises(UserError, match="keepEverySteps is 0"):
        list(gc(root, keep=1, keep_every=0))


def test_the_newest_whole_commit_stays_when_newer_ones_are_damaged(root: MemoryStore) -> None:
    shard = next(key for key in root.list("data/2/30-") if "shard" in key)
    root.delete([next(key for key in root.list("data/2/40-") if "shard" in key), shard])
    list(gc(root, keep=1, deletes=True))
    assert 20 in steps_kept(root)


def test_the_training_goes_on_beside_it() -> None:
    store = MemoryStore()
    training = opened(store)
    for step in (10, 20, 30):
        save_solo(store, training, step)
        list(gc(store, keep=1, deletes=True))
    assert steps_kept(store) == {30}


def test_a_training_that_writes_meanwhile_keeps_everything(root: MemoryStore) -> None:
    training = opened(root, 3, wait_over=True)

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        found = act()
        if verb == "list" and key == "data/":
            training.close("meanwhile")
        return found

    watched = WatchedStore(root, around)
    before = {key for key in root.list("") if key.startswith("data/")}
    with pytest.raises(StorageError, match="run the command again"):
        list(gc(watched, keep=1, deletes=True))
    assert {key for key in root.list("") if key.startswith("data/")} == before


def test_it_refuses_what_is_no_root_and_a_log_whose_end_cannot_be_read(root: MemoryStore) -> None:
    with pytest.raises(UserError, match="has no log"):
        list(gc(MemoryStore()))
    with pytest.raises(UserError, match="keep at least 1"):
        list(gc(root, keep=0))
    newest = root.list("log/")[0]
    root.delete([newest])
    root.put(newest, b"{}")
    with pytest.raises(Corrupt, match="nothing says what is needed"):
        list(gc(root, keep=1, deletes=True))


def test_the_command_lists_and_deletes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(f"file://{tmp_path}", {})
    fill(store)
    assert store.get(key_of(1))
    assert main(["gc", "--json", str(tmp_path), "--keep", "1"]) == 0
    *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["why"] for one in found] == [
        "commit of step 10, older than the newest 1",
        "commit of step 20, older than the newest 1",
        "commit of step 30, older than the newest 1",
        "no commit names it",
    ]
    assert not summary["deleted"]
    assert main(["gc", str(tmp_path), "--keep", "1", "--delete"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("unfinished uploads are deleted")
    assert steps_kept(store) == {40}
