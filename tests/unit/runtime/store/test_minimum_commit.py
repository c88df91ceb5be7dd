"""A log older than the newest known commit: the run refuses and changes nothing."""

from __future__ import annotations

import pytest

from perdure.checkpoint.opening import Opening, open_run
from perdure.errors import LogLost, PerdureError, RootTakenOver
from perdure.group.peers import Peers
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from perdure.store import Store
from perdure.wire import CommitRef
from perdure.wire.settings import Settings
from tests.unit.runtime.checkpoint.world import UID, on_ranks, opened, save_solo, story

NEW_UID = "ffff"
STEPS = (10, 20, 30)


@pytest.fixture
def floor(store: Store) -> CommitRef:
    """The newest of three commits; the run has ended."""
    log_writer = opened(store)
    return [save_solo(store, log_writer, step, final=step == STEPS[-1]).commit for step in STEPS][-1]


def asking(store: Store, floor: CommitRef | None, run: int = 2) -> Writer:
    return Writer(Log(store), uid=UID, run=run, floor=floor)


def deleted(store: Store, *prefixes: str, keep: int = 0) -> list[str]:
    """Deletes everything under the prefixes except the `keep` oldest entries; returns the rest."""
    for prefix in prefixes:
        keys = store.list(prefix)
        store.delete(keys[: len(keys) - keep])
    return everything(store)


def everything(store: Store) -> list[str]:
    return sorted(store.list(""))


def test_a_whole_log_is_gone_on_with(store: Store, floor: CommitRef) -> None:
    assert isinstance(asking(store, floor).try_open(1, wait_over=False), Resume)


def test_a_newer_log_than_known_is_gone_on_with(store: Store, floor: CommitRef) -> None:
    older = CommitRef(floor.seq - 1, STEPS[-2])
    assert isinstance(asking(store, older).try_open(1, wait_over=False), Resume)


@pytest.mark.parametrize("prefixes", [["log/"], ["log/", "data/"]], ids=["data left", "nothing left"])
def test_an_emptied_log_is_refused_and_nothing_is_written(store: Store, floor: CommitRef, prefixes: list[str]) -> None:
    left = deleted(store, *prefixes)
    with pytest.raises(LogLost, match=rf"commit {floor.seq} of step 30 was made, and now there is no log") as refused:
        asking(store, floor).try_open(1, wait_over=False)
    assert store.uri in str(refused.value)
    assert "checkpoint.resumeAnyway" in str(refused.value)
    assert everything(store) == left


def test_a_log_that_lost_its_newest_entries_is_refused(store: Store, floor: CommitRef) -> None:
    left = deleted(store, "log/", keep=2)
    with pytest.raises(LogLost, match="the newest commit is 2, of step 10") as refused:
        asking(store, floor).try_open(1, wait_over=True)
    assert refused.value.found == (2, 10)
    assert everything(store) == left


def test_a_log_started_over_is_refused(store: Store, floor: CommitRef) -> None:
    deleted(store, "log/", "data/")
    opened(store, 2).close("no-step")
    with pytest.raises(LogLost, match="ends at entry 2 without a commit"):
        asking(store, floor, run=3).try_open(1, wait_over=True)


def test_a_log_that_only_another_job_has_written_is_refused_however_long_it_is(store: Store, floor: CommitRef) -> None:
    deleted(store, "log/", "data/")
    other = opened(store, 1, uid=NEW_UID)
    for step in (*STEPS, 40):
        save_solo(store, other, step)
    with pytest.raises(LogLost, match=f"entries of uid {NEW_UID} only"):
        asking(store, floor).try_open(1, wait_over=True)


def test_a_root_that_another_job_has_taken_is_reported_as_taken(store: Store, floor: CommitRef) -> None:
    opened(store, 1, uid=NEW_UID)
    with pytest.raises(RootTakenOver):
        asking(store, floor).try_open(1, wait_over=True)


def test_without_a_floor_whatever_is_left_is_gone_on_with(store: Store, floor: CommitRef) -> None:
    deleted(store, "log/", keep=2)
    assert isinstance(asking(store, None).try_open(1, wait_over=True), Resume)
    assert story(store)[-1] == "Opened 2"


def test_all_ranks_refuse_alike(store: Store, floor: CommitRef) -> None:
    deleted(store, "log/", keep=2)
    settings = Settings(store.uri, uid=UID, run=2, world=2, floor=floor)

    def act(peers: Peers) -> Opening:
        return open_run(settings, store, peers, lambda: None)

    refused = on_ranks(2, act)
    assert [type(each) for each in refused] == [LogLost] * 2
    assert all(isinstance(each, PerdureError) and "step 30" in str(each) for each in refused)
    assert [each.found for each in refused if isinstance(each, LogLost)] == [(2, 10)] * 2
