"""The commits of a root, and how a user names one."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.checkpoint.history import Commit, choose, find, history
from perdure.checkpoint.retention import retire
from perdure.errors import LogLost, UserError
from perdure.group.peers import Solo
from perdure.log.entry import key_of
from perdure.log.position import Position
from perdure.log.writer import Writer
from perdure.store import Store
from perdure.wire import CommitSelector
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.test_save_load import save_by
from tests.unit.runtime.checkpoint.world import opened, save, save_solo, state


def save_at(store: Store, log_writer: Writer, step: int, epoch: int, consumed: int) -> None:
    where = Position(step, epoch, {"train": {"kind": "global", "epoch": epoch, "consumed": consumed}})
    save(store, Solo(), log_writer, state(step), where, run=log_writer.run)


@pytest.fixture
def store() -> MemoryStore:
    """Steps 5 (in epoch 0), 10 (epoch 1 is done), 15 (in epoch 1), 20, and 20 once more by another run."""
    store = MemoryStore()
    log_writer = opened(store)
    for step, epoch, consumed in [(5, 0, 40), (10, 1, 0), (15, 1, 40), (20, 2, 0)]:
        save_at(store, log_writer, step, epoch, consumed)
    save_at(store, opened(store, 2, wait_over=True), 20, 2, 0)
    return store


def commits(store: Store) -> list[Commit]:
    return [listed.commit for listed in history(store)]


def test_commits_are_listed_newest_first(store: Store) -> None:
    found = commits(store)
    assert [(one.seq, one.run, one.step, one.epoch) for one in found] == [
        (7, 2, 20, 2),
        (5, 1, 20, 2),
        (4, 1, 15, 1),
        (3, 1, 10, 1),
        (2, 1, 5, 0),
    ]
    assert [one.between_epochs for one in found] == [True, True, False, True, False]
    assert {(one.world, one.reason) for one in found} == {(1, "test")}
    assert found[0].time >= found[1].time > "2020"


def test_a_commit_is_shown_with_how_many_ranks_its_run_had() -> None:
    store = MemoryStore()
    log_writer = Writer(opened(store).log, uid="8a6d", run=2, lost=[1])
    log_writer.try_open(3, wait_over=False)
    save_by(store, 3, log_writer, 10)
    save_solo(store, opened(store, 3, wait_over=True), 20)
    assert [(one.step, one.world) for one in commits(store)] == [(20, 1), (10, 3)]


def test_what_retention_has_taken_is_not_listed(store: Store) -> None:
    retire(store, opened(store, 3, wait_over=True), 2)
    assert [one.seq for one in commits(store)] == [7, 5]


def test_a_commit_that_has_lost_its_manifest_is_not_listed(store: MemoryStore) -> None:
    store.delete([key for key in store.list("data/1/15-") if key.endswith("manifest.json")])
    assert [one.seq for one in commits(store)] == [7, 5, 3, 2]


def test_an_entry_that_cannot_be_read_is_passed_over(store: MemoryStore) -> None:
    key = key_of(4)
    store.objects[key] = store.objects[key].replace(b'"step":15', b'"step":16')
    assert [one.seq for one in commits(store)] == [7, 5, 3, 2]


@pytest.mark.parametrize(
    ("wanted", "seq"),
    [
        (CommitSelector(), 7),
        (CommitSelector(epoch=1), 3),
        (CommitSelector(epoch=2), 7),
        (CommitSelector(step=15), 4),
        (CommitSelector(step=20), 7),
        (CommitSelector(seq=5), 5),
    ],
)
def test_the_newest_that_is_meant_is_found(store: Store, wanted: CommitSelector, seq: int) -> None:
    assert find(store, wanted).commit.seq == seq


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            CommitSelector(epoch=3),
            r"memory: has no commit of epoch 3: there are entry 7 \(step 20, epoch 2\), .*entry 4 \(step",
        ),
        (CommitSelector(epoch=0), r"no commit of epoch 0: .*entry 2 \(step 5, epoch 0 and a part\)"),
        (CommitSelector(step=11), "no commit of step 11"),
        (CommitSelector(seq=6), "no commit of seq 6"),
    ],
)
def test_what_there_is_not_is_said_with_what_there_is(store: Store, wanted: CommitSelector, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find(store, wanted)


def test_an_error_names_few_of_many_commits() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    for step in range(1, 10):
        save_solo(store, log_writer, step)
    with pytest.raises(UserError, match=r"\(step 5, epoch 0\), and 4 older ones;"):
        find(store, CommitSelector(step=77))


def test_a_root_without_a_log_or_a_commit_is_reported_as_such(store: MemoryStore) -> None:
    with pytest.raises(UserError, match="has no log, so nothing was ever trained there: correct the address"):
        history(MemoryStore())
    empty = MemoryStore()
    opened(empty)
    assert history(empty) == []
    with pytest.raises(UserError, match="has no commit: no run has saved anything there yet"):
        find(empty, CommitSelector())
    for key in store.list("log/"):
        del store.objects[key]
    with pytest.raises(LogLost, match=r"has checkpoints, such as data/1/10-.* and no log"):
        history(store)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epoch": 1, "step": 2}, "epoch and step are given: a commit is named by one of them"),
        ({"epoch": -1}, "epoch is -1: give an integer from 0"),
        ({"seq": 0}, "seq is 0: give an integer from 1"),
        ({"step": 2.0}, r"step is 2\.0: give an integer from 0"),
        ({"step": True}, "step is True"),
        ({"pin": ""}, "pin is '': give the name of a pin"),
    ],
)
def test_what_can_name_no_commit_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        CommitSelector(**given)


def test_the_first_of_a_list_that_fits_is_chosen(store: Store) -> None:
    assert choose(history(store)[1:], CommitSelector(step=20), "here").commit.seq == 5
