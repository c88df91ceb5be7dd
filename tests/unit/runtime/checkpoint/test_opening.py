"""When a run is opened: at its turn, by this process's clock, and also if the store fails at first."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.checkpoint import opening
from perdure.checkpoint.opening import open_run
from perdure.errors import Corrupt, Fenced, StorageError, StorageRefused
from perdure.group.peers import Solo
from perdure.log.entry import ENTRY_BYTES, Opened, key_of
from perdure.log.members import fetch_members, put_members
from perdure.log.reader import Log, Slot
from perdure.log.writer import Resume, Writer
from perdure.loop.leaving import Exit
from perdure.store.file import FileStore
from perdure.wire import Handover
from perdure.wire.settings import Member, Settings
from tests.unit.runtime.checkpoint.world import Newer

FOREVER = 10_000.0
SECONDS = 20.0


class Unreliable(FileStore):
    """A folder that cannot be listed `failures` times."""

    failures = 0
    error: type[StorageError] = StorageError

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise self.error("no route to the store")
        return super().list(prefix, after=after, limit=limit)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unreliable:
    monkeypatch.setattr(opening, "STORE_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(opening, "ASK_AGAIN_SECONDS", 0.001)
    return Unreliable(tmp_path)


@pytest.fixture
def before(store: Unreliable) -> Writer:
    """Run 1, open."""
    writer = Writer(Log(store), uid="u", run=1)
    assert isinstance(writer.try_open(1, wait_over=True), Resume)
    return writer


def settings(run: int | None, wait: float = 0.0, rendezvous: float = FOREVER, started: float | None = None) -> Settings:
    return Settings("file:///nowhere", uid="u", run=run, wait=wait, rendezvous=rendezvous, started=started)


def nobody_gives_up() -> None:
    pass


def test_outside_kubernetes_the_next_run_is_one_more_than_the_highest(store: Unreliable, before: Writer) -> None:
    assert open_run(settings(None), store, Solo(), nobody_gives_up).run == before.run + 1


def test_the_log_names_the_object_that_says_where_each_of_many_ranks_began(store: Unreliable) -> None:
    """An entry has 4 KiB, however many there are."""
    members = [Member(f"digits-5e6d-{number}", f"node-{number}.example.internal") for number in range(512)]

    class Told(Solo):
        """Rank 0, to which all others have reported where they run."""

        world = 512

        def gather(self, _doing: str, value: Any) -> list[Any]:
            return [value, *map(asdict, members[1:])]

    open_run(replace(settings(1), world=512, member=members[0]), store, Told(), nobody_gives_up)
    slot = Log(store).slot(1)
    assert slot
    assert slot.entry
    assert isinstance(slot.entry.event, Opened)
    assert slot.entry.event.members
    assert len(store.get(key_of(1))) < ENTRY_BYTES / 4
    assert fetch_members(store, slot.entry.event.members) == tuple(members)


def test_where_ranks_ran_is_reported_only_if_it_is_what_was_written(store: Unreliable) -> None:
    ref = put_members(store, 3, [Member("digits-0", "n1")])
    data = store.get(ref.key)
    store.put(ref.key, data.replace(b"n1", b"n2"))
    with pytest.raises(Corrupt, match="changed after it was written"):
        fetch_members(store, ref)
    store.delete([ref.key])
    with pytest.raises(Corrupt, match="is missing"):
        fetch_members(store, ref)


def test_a_run_waits_for_the_one_before_to_end(
    store: Unreliable, before: Writer, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = threading.Event()

    def close() -> None:
        asked.wait(20)
        before.close("stopped")

    closer = threading.Thread(target=close)
    closer.start()
    assert open_run(settings(2, wait=FOREVER), store, Solo(), asked.set).run == 2
    closer.join()
    assert capfd.readouterr().err.count("waiting to open the log") <= 1


def test_a_run_opens_when_it_has_waited_long_enough(store: Unreliable, before: Writer) -> None:
    assert open_run(settings(2, wait=0.05), store, Solo(), nobody_gives_up).run == 2


def test_the_wait_counts_from_the_start_of_the_process(store: Unreliable, before: Writer) -> None:
    def give_up() -> None:
        assert time.monotonic() < begun + SECONDS

    begun = time.monotonic()
    assert open_run(settings(2, wait=SECONDS, started=begun - SECONDS), store, Solo(), give_up).run == 2


def test_a_newcomers_long_warm_up_is_no_waiting_for_the_run_that_still_trains(
    store: Unreliable, before: Writer
) -> None:
    asked = count()

    def give_up() -> None:
        if next(asked) == 3:
            raise Exit

    warm = replace(settings(2, wait=SECONDS, started=time.monotonic() - FOREVER), handover=replacing(before.run))
    with pytest.raises(Exit):
        open_run(warm, store, Solo(), give_up)


def test_a_newcomer_waits_no_longer_than_given_once_all_have_met(store: Unreliable, before: Writer) -> None:
    warm = replace(settings(2, wait=0.05), handover=replacing(before.run))
    assert open_run(warm, store, Solo(), nobody_gives_up).run == 2


def replacing(run: int) -> Handover:
    """The offer to the newcomer that replaces the only rank of `run`."""
    return Handover(run, 1, (0,), (0,), "10.0.0.1:2000", 30, "ab")


def test_a_request_to_leave_ends_the_wait(store: Unreliable, before: Writer) -> None:
    def give_up() -> None:
        raise Exit

    with pytest.raises(Exit):
        open_run(settings(2, wait=FOREVER), store, Solo(), give_up)


def test_a_store_that_fails_at_first_is_asked_again(store: Unreliable) -> None:
    store.failures = 3
    assert open_run(settings(1), store, Solo(), nobody_gives_up).run == 1


def test_a_store_that_keeps_failing_is_an_error_in_the_end(store: Unreliable) -> None:
    store.failures = 1_000_000
    with pytest.raises(StorageError):
        open_run(settings(1, rendezvous=0.05), store, Solo(), nobody_gives_up)


def test_a_load_that_fails_after_a_long_time_is_made_again(store: Unreliable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model behind a slow link never began when its connection broke once."""
    hours, tries = count(0.0, 3600.0), iter(range(9))
    monkeypatch.setattr(opening, "time", SimpleNamespace(monotonic=lambda: next(hours), sleep=time.sleep))

    def commits(failing: int) -> list[Slot]:
        if next(tries) < failing:
            raise StorageError("the connection broke")
        return []

    assert opening._load(settings(1, rendezvous=300), store, Solo(), lambda: commits(1), None) is None
    assert next(tries) == 2
    with pytest.raises(StorageError, match="broke"):
        opening._load(settings(1, rendezvous=300), store, Solo(), lambda: commits(9), None)
    assert next(tries) == 5


def test_a_store_that_refuses_for_ever_is_not_asked_again(store: Unreliable) -> None:
    store.error, store.failures = StorageRefused, 1000
    with pytest.raises(StorageRefused):
        open_run(settings(1), store, Solo(), nobody_gives_up)
    assert store.failures == 1000 - 1


def test_an_older_run_than_the_one_that_is_open_is_refused_with_the_highest(store: Unreliable) -> None:
    open_run(settings(5), store, Solo(), nobody_gives_up)
    with pytest.raises(Fenced) as refused:
        open_run(settings(4), store, Solo(), nobody_gives_up)
    assert refused.value.opened == 5


def test_what_a_rank_of_a_newer_version_says_beside_is_ignored(store: Unreliable) -> None:
    chosen = replace(settings(1), member=Member("pod-0", "node-0"))
    assert open_run(chosen, store, Newer(), nobody_gives_up).run == 1
    slot = Log(store).slot(1)
    assert slot
    assert slot.entry
    assert isinstance(slot.entry.event, Opened)
    assert slot.entry.event.members
    assert fetch_members(store, slot.entry.event.members) == (Member("pod-0", "node-0"),)
