"""Saves that fail: a periodic one is reported, an exit save is tried again under a new nonce until time is up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure.checkpoint import checkpointer
from perdure.checkpoint.checkpointer import Checkpointer, compare, sums_of, whole_of
from perdure.checkpoint.state import RankState
from perdure.errors import StorageError, StorageRefused, UserError
from perdure.group.peers import Peers, Solo
from perdure.log.position import Position
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from perdure.loop.telemetry.timings import Timings
from perdure.loop.telemetry.trace import NoTrace, StoreTrace
from perdure.store.file import FileStore
from tests.unit.runtime.checkpoint.world import on_ranks, opened


class Unreliable(FileStore):
    """A folder that refuses the next `refusals` puts of objects whose key begins with `refused`."""

    refusals = 0
    refused = "data/"
    error: type[StorageError] = StorageError

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        if self.refusals and key.startswith(self.refused):
            self.refusals -= 1
            raise self.error(f"{key} could not be written: no route to the store")
        super().put(key, data, if_absent=if_absent)

    def put_stream(
        self,
        key: str,
        blocks: Iterable[memoryview],
        size: int,  # noqa: ARG002
        *,
        if_absent: bool = False,
    ) -> None:
        self.put(key, b"".join(bytes(block) for block in blocks), if_absent=if_absent)


@pytest.fixture
def store(tmp_path: Path) -> Unreliable:
    return Unreliable(tmp_path)


@pytest.fixture
def saver(store: Unreliable, monkeypatch: pytest.MonkeyPatch) -> Checkpointer:
    monkeypatch.setattr(checkpointer, "AGAIN_SECONDS", 0.0)
    writer = Writer(Log(store), uid="local", run=1)
    assert isinstance(writer.try_open(1, wait_over=True), Resume)
    return Checkpointer(
        store, Solo(), writer, 1, 3, NoTrace(), Timings(), lambda: RankState({"w": torch.ones(2)}, {}, {})
    )


def entries(store: FileStore) -> list[dict[str, Any]]:
    return [json.loads(store.get(key)) for key in reversed(store.list("log/"))]


def test_no_memory_to_delete_old_checkpoints_is_said_and_training_goes_on(
    saver: Checkpointer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def list_much(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(FileStore, "list", list_much)
    assert saver.periodic(Position(7, 0), "cadence")
    assert "old checkpoints could not be removed, trying again at the next: no memory was" in capfd.readouterr().err


def test_an_exit_save_is_tried_again_until_the_store_is_back(
    saver: Checkpointer, store: Unreliable, capfd: pytest.CaptureFixture[str]
) -> None:
    store.refusals = 3
    saver.final(Position(7, 0), "drained", lambda: 60.0)
    (line,) = capfd.readouterr().err.splitlines()
    assert "exit save failed (attempt 1 of step 7)" in line
    assert "trying again until" in line
    assert (saver.commit.step if saver.commit else None) == 7
    assert [entry["kind"] for entry in entries(store)] == ["Opened", "Committed"]


def test_every_attempt_has_a_folder_of_its_own(saver: Checkpointer, store: Unreliable) -> None:
    puts: list[str] = []
    real = store.put

    def put(key: str, data: Any, **options: Any) -> Any:
        puts.append(key)
        return real(key, data, **options)

    store.put = put  # type: ignore[method-assign]
    store.refusals = 2
    saver.final(Position(7, 0), "drained", lambda: 60.0)
    assert len({key.rsplit("/", 1)[0] for key in puts if key.startswith("data/")}) == 3


@pytest.mark.parametrize("saved", [True, False])
def test_an_exit_save_gives_up_when_time_is_up_and_says_what_is_kept(
    saved: bool, saver: Checkpointer, store: Unreliable, capfd: pytest.CaptureFixture[str]
) -> None:
    if saved:
        saver.periodic(Position(4, 0), "steps")
    store.refusals = 1000
    left = itertools.chain([2.0, 1.0], itertools.repeat(-1.0))
    with pytest.raises(StorageError, match="no route"):
        saver.final(Position(7, 0), "drained", lambda: next(left))
    assert store.refusals == 1000 - 3
    kept = "step 4, which is saved" if saved else "where this one has begun"
    assert f"step 7 is not saved: the next run continues from {kept}" in capfd.readouterr().err


def test_an_exit_save_that_is_refused_for_ever_is_not_tried_again(saver: Checkpointer, store: Unreliable) -> None:
    store.error, store.refusals = StorageRefused, 1000
    with pytest.raises(StorageRefused, match="no route"):
        saver.final(Position(7, 0), "drained", lambda: 60.0)
    assert store.refusals == 1000 - 1


def test_a_periodic_save_that_is_refused_leaves_training_alone(saver: Checkpointer, store: Unreliable) -> None:
    store.error, store.refusals = StorageRefused, 1
    assert not saver.periodic(Position(7, 0), "cadence")


def test_saves_that_fail_are_counted_until_one_is_made(
    saver: Checkpointer, store: Unreliable, capfd: pytest.CaptureFixture[str]
) -> None:
    store.refusals = 2
    counted = []
    for step in (7, 8, 9):
        saver.periodic(Position(step, 0), "cadence")
        counted.append((saver.failures, "no route" in saver.trouble))
    assert counted == [(1, True), (2, True), (0, False)]
    (line,) = capfd.readouterr().err.splitlines()
    assert "checkpoint of step 7 failed, training goes on" in line


def test_a_disk_that_stays_full_is_one_line_a_minute_and_a_new_trouble_is_news(
    saver: Checkpointer, store: Unreliable, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("perdure.console.time.monotonic", lambda: now)
    store.refusals = 64
    for step in range(64):
        saver.periodic(Position(step, 0), "cadence")
        now += 1
    first, second = capfd.readouterr().err.splitlines()
    assert "checkpoint of step 0 failed, training goes on" in first
    assert "checkpoint of step 60 failed as the 60 before it" in second
    assert "(59 more since the last such line)" in second
    saver.periodic(Position(64, 0), "cadence")
    store.refusals = 1
    saver.periodic(Position(65, 0), "cadence")
    assert "checkpoint of step 65 failed, training goes on" in capfd.readouterr().err


@pytest.mark.parametrize("error", [StorageError, StorageRefused])
def test_the_last_that_may_fail_in_a_row_ends_the_training_and_says_why(
    saver: Checkpointer, store: Unreliable, error: type[StorageError]
) -> None:
    saver.limit, store.refusals, store.error = 2, 1, error
    assert not saver.periodic(Position(7, 0), "cadence")
    assert saver.periodic(Position(8, 0), "cadence")
    store.refusals = 2
    assert not saver.periodic(Position(9, 0), "cadence")
    with pytest.raises(error, match=r"2 checkpoints in a row have failed, .* is 2; the last, of step 10: .*no route"):
        saver.periodic(Position(10, 0), "cadence")


def test_all_ranks_count_alike_also_with_one_that_has_joined_since(store: Unreliable) -> None:
    log_writer = opened(store, uid="local")
    store.refusals = 1000

    def counts(peers: Peers) -> list[float]:
        writer = log_writer if peers.rank == 0 else None
        read = partial(RankState, {"w": torch.ones(2)}, {}, {})
        saver = Checkpointer(store, peers, writer, 1, 3, NoTrace(), Timings(), read, limit=5)
        saver.failures = 0 if peers.rank else 2
        saver.periodic(Position(7, 0), "cadence")
        saver.periodic(Position(8, 0), "cadence")
        return [saver.failures, saver.wasted]

    one, other = on_ranks(2, counts)
    assert one == other
    assert isinstance(one, list)
    assert one[0] == 4


def test_a_trace_that_cannot_be_written_does_not_hold_the_commit_up(saver: Checkpointer, store: Unreliable) -> None:
    trace = StoreTrace(store, uid="u", run=1, rank=0, world=1)
    trace.close()
    trace.step(0, 7, [1])
    saver.trace = trace
    store.refused, store.refusals = "trace/", 3
    saver.final(Position(7, 0), "drained", lambda: 60.0)
    assert (entries(store)[-1]["step"], store.refusals, store.list("trace/")) == (7, 2, [])
    saver.write_trace(lambda: 60.0)
    assert (store.refusals, len(store.list("trace/"))) == (0, 1)


def test_a_trace_is_given_up_when_time_is_up(saver: Checkpointer, store: Unreliable) -> None:
    trace = StoreTrace(store, uid="u", run=1, rank=0, world=1)
    trace.close()
    trace.step(0, 7, [1])
    saver.trace = trace
    store.refused, store.refusals = "trace/", 1000
    saver.write_trace(lambda: None)
    saver.write_trace(lambda: 0.0)
    assert store.refusals == 998


def test_a_failing_periodic_save_is_reported_and_the_next_one_counts(
    saver: Checkpointer, store: Unreliable, capfd: pytest.CaptureFixture[str]
) -> None:
    store.refusals = 1
    assert not saver.periodic(Position(10, 0), "cadence")
    assert "checkpoint of step 10 failed, training goes on" in capfd.readouterr().err
    assert saver.periodic(Position(20, 0), "cadence")
    assert entries(store)[-1]["step"] == 20


def test_old_commits_are_retired(saver: Checkpointer, store: Unreliable) -> None:
    for step in range(1, 6):
        saver.periodic(Position(step, 0), "cadence")
    assert len([key for key in store.list("data/") if key.endswith("manifest.json")]) == 3


def comparing(make: Callable[[int], RankState], told: Sequence[set[str]] | None = None) -> list[BaseException | None]:
    """What comparing two ranks' states raises on each; `told` is each rank's earlier report."""
    seen = told or [set(), set()]

    def act(peers: Peers) -> None:
        sums = sums_of(make(peers.rank))
        compare(peers, sums, peers.gather("compares", whole_of(sums)), seen[peers.rank], "")

    return on_ranks(2, act)


def test_a_parameter_that_differs_between_ranks_is_named_on_all_of_them() -> None:
    found = comparing(lambda rank: RankState({"net.weight": torch.ones(2) + rank, "net.bias": torch.ones(1)}, {}, {}))
    assert {type(each) for each in found} == {UserError}
    assert "net.weight differs between rank 0 and rank 1: wrap the model" in str(found[1])


def test_ranks_are_compared_at_every_save(store: Unreliable) -> None:
    weight = [torch.ones(2), torch.ones(2)]

    def act(peers: Peers) -> None:
        log_writer = opened(store) if peers.rank == 0 else None
        mine = RankState({"w": weight[peers.rank]}, {}, {})
        saver = Checkpointer(store, peers, log_writer, 1, 3, NoTrace(), Timings(), lambda: mine)
        assert saver.periodic(Position(1, 0), "cadence")
        if peers.rank == 1:
            weight[1][1] = 1.0000001
        saver.periodic(Position(2, 0), "cadence")

    found = on_ranks(2, act)
    assert {type(each) for each in found} == {UserError}
    assert "w differs between rank 0 and rank 1" in str(found[0])
    assert [entry["kind"] for entry in entries(store)] == ["Opened", "Committed"]


def test_buffers_that_training_gives_to_all_ranks_anyway_may_differ(capfd: pytest.CaptureFixture[str]) -> None:
    def make(rank: int) -> RankState:
        return RankState({}, {"net.mean": torch.ones(1) + rank}, {}, None, frozenset({"net.mean"}))

    assert comparing(make) == [None, None]
    assert capfd.readouterr().err == ""


def test_other_state_that_differs_between_ranks_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    def make(rank: int, names: int = 1) -> RankState:
        means = {f"ema.{number}": torch.ones(1) + rank for number in range(1, names)}
        return RankState({}, means, {"scheduler": {"last_lr": [0.1 * rank]}})

    told = [set[str](), set[str]()]
    assert comparing(make, told) == comparing(make, told) == [None, None]
    assert comparing(lambda rank: make(rank, 7), told) == [None, None]
    line = (
        "perdure: between rank 0 and rank 1 these differ: {}: a resumed run gets rank 0's on every rank; if they count "
        "on the others, make them equal in each step, by a broadcast from rank 0; on GPUs SyncBatchNorm does it for "
        "statistics of batches"
    )
    names = "ema.1, ema.2, ema.3, ema.4 and 2 more"
    assert capfd.readouterr().err.splitlines() == [line.format("scheduler"), line.format(names)]


def test_a_state_that_one_rank_cannot_read_is_an_error_on_all(store: Unreliable) -> None:
    def act(peers: Peers) -> None:
        def read() -> RankState:
            if peers.rank:
                raise UserError("tensor odd is sparse")
            return RankState({"w": torch.ones(2)}, {}, {})

        log_writer = opened(store) if peers.rank == 0 else None
        Checkpointer(store, peers, log_writer, 1, 3, NoTrace(), Timings(), read).final(
            Position(1, 0), "drained", lambda: 60.0
        )

    found = on_ranks(2, act)
    assert [f"{type(each).__name__}: {each}" for each in found] == ["UserError: rank 1: tensor odd is sparse"] * 2


def test_what_cannot_be_saved_is_refused_in_the_rehearsal_and_nothing_is_written(
    saver: Checkpointer, store: Unreliable
) -> None:
    saver.read = lambda: RankState({}, {}, {"hook": print})
    with pytest.raises(UserError, match=r"objects\['hook'\] is a builtins.builtin_function_or_method"):
        saver.rehearse()
    saver.read = lambda: RankState({"w": torch.ones(2)}, {}, {})
    saver.rehearse()
    assert store.list("data/") == []


def test_a_state_is_staged_once_however_often_the_commit_is_tried(saver: Checkpointer, store: Unreliable) -> None:
    reads: list[int] = []

    def read() -> RankState:
        reads.append(1)
        return RankState({"w": torch.ones(2)}, {}, {})

    saver.read = read
    store.refusals = 3
    saver.final(Position(7, 0), "drained", lambda: 60.0)
    assert len(reads) == 1
