"""A commit that somebody reads is not deleted, whoever deletes, and goes once it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.checkpoint.copying import copy
from perdure.checkpoint.garbage import gc
from perdure.checkpoint.history import history
from perdure.checkpoint.reading import reading
from perdure.checkpoint.retention import retire
from perdure.errors import StorageRefused
from perdure.log.kept import READING_SECONDS, mark_reading, read_kept
from perdure.log.writer import Writer
from perdure.store import Store
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import opened, save_solo

FIRST = 2
"""The entry of the first commit."""


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def training(store: MemoryStore) -> Writer:
    """It has made three commits."""
    pen = opened(store)
    for step in (1, 2, 3):
        save_solo(store, pen, step)
    return pen


def steps(store: Store) -> list[int]:
    return [one.commit.step for one in history(store)]


@pytest.mark.parametrize("by", ["the training", "gc"])
def test_a_commit_that_is_read_outlives_those_around_it_and_goes_when_it_is_read(
    store: MemoryStore, training: Writer, by: str
) -> None:
    def delete() -> None:
        if by == "gc":
            list(gc(store, keep=1, deletes=True))
        else:
            retire(store, training, 1)

    with reading(store, FIRST):
        delete()
        assert steps(store) == [3, 1]
        save_solo(store, training, 4)
        delete()
        assert steps(store) == [4, 1]
        assert [one.commit.pinned_by_hand for one in history(store)] == [False, False]
    assert steps(store) == [4, 1]
    delete()
    assert steps(store) == [4]
    assert store.list("pins/") == []
    assert store.list("data/1/1-") == []


def test_a_commit_that_somebody_begins_to_read_while_it_is_about_to_be_deleted_stays(
    store: MemoryStore, training: Writer
) -> None:
    marks: list[str] = []

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "put" and "/deleting-" in key and not marks:
            marks.append(mark_reading(store, FIRST))
        return act()

    retire(WatchedStore(store, around), training, 1)
    assert steps(store) == [3, 1]
    assert not [key for key in store.objects if "deleting-" in key]
    store.delete(marks)
    retire(store, training, 1)
    assert steps(store) == [3]


def test_two_may_read_it(store: MemoryStore, training: Writer) -> None:
    with reading(store, FIRST):
        with reading(store, FIRST):
            retire(store, training, 1)
        retire(store, training, 1)
        assert steps(store) == [3, 1]
    retire(store, training, 1)
    assert steps(store) == [3]


def test_the_mark_of_a_reader_that_was_killed_counts_for_a_while_and_is_removed(
    store: MemoryStore, training: Writer
) -> None:
    mark = mark_reading(store, FIRST)
    retire(store, training, 1)
    assert steps(store) == [3, 1]
    store.written[mark] -= READING_SECONDS + 1
    retire(store, training, 1)
    assert steps(store) == [3]
    assert store.list("pins/") == []


def test_a_pin_stays_when_its_commit_is_read(store: MemoryStore, training: Writer) -> None:
    store.put(f"pins/{FIRST:016d}.pinned", b"{}")
    with reading(store, FIRST):
        retire(store, training, 1)
    retire(store, training, 1)
    assert steps(store) == [3, 1]
    assert read_kept(store).pinned == {FIRST}


def test_who_may_only_read_is_told_that_nothing_protects_the_commit(
    store: MemoryStore, training: Writer, capfd: pytest.CaptureFixture[str]
) -> None:
    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "put":
            raise StorageRefused(f"{key} may not be written")
        return act()

    with reading(WatchedStore(store, around), FIRST):
        retire(store, training, 1)
    assert "entry 2 of memory: is read without a mark in the store" in capfd.readouterr().err
    assert steps(store) == [3]


def test_a_copy_keeps_what_it_reads_and_takes_no_mark_along(store: MemoryStore, training: Writer) -> None:
    target, other = MemoryStore(), mark_reading(store, FIRST + 1)

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "get" and key.endswith("manifest.json"):
            retire(store, training, 1)
        return act()

    list(copy(WatchedStore(store, around), target))
    assert steps(target) == [3, 2, 1]
    assert steps(store) == [3, 2]
    assert store.list("pins/") == [other, f"pins/{FIRST + 1:016d}.released"]
    assert not [key for key in target.list("pins/") if "reading" in key]


@pytest.mark.usefixtures("training")
def test_gc_does_not_name_what_somebody_reads(store: MemoryStore) -> None:
    with reading(store, FIRST):
        *named, _ = gc(store, keep=1)
    assert [line.data["why"] for line in named] == ["commit of step 2, older than the newest 1"]
