"""The trace of one rank: nothing is lost when the store fails, and nothing fails because of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StorageError
from perdure.loop.telemetry.trace import StoreTrace
from perdure.store.file import FileStore


class Unreliable(FileStore):
    """A folder whose next put may be refused, or done and its answer lost."""

    refuse = lose_answer = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried: list[tuple[str, bytes]] = []

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self.tried.append((key, bytes(data)))
        refuse, lose_answer = self.refuse, self.lose_answer
        self.refuse = self.lose_answer = False
        if refuse:
            raise StorageError(f"{key} could not be written")
        super().put(key, data, if_absent=if_absent)
        if lose_answer:
            raise StorageError(f"{key}: no answer")


@pytest.fixture
def store(tmp_path: Path) -> Unreliable:
    return Unreliable(tmp_path)


@pytest.fixture
def trace(store: Unreliable) -> StoreTrace:
    one = StoreTrace(store, uid="u-1", run=4, rank=1, world=2)
    one.close()  # the tests flush themselves
    return one


def lines(store: FileStore) -> list[dict[str, Any]]:
    return [json.loads(line) for key in store.list("trace/") for line in store.get(key).splitlines()]


def test_a_line_tells_who_when_and_which_samples(store: Unreliable, trace: StoreTrace) -> None:
    trace.step(2, 31, [5, 3])
    trace.flush()
    line = lines(store)[0]
    assert line.pop("t") > 0
    assert line == {"uid": "u-1", "run": 4, "rank": 1, "world": 2, "epoch": 2, "step": 31, "ids": [5, 3]}


def test_every_flush_is_a_part_of_its_own_and_an_empty_one_is_none(store: Unreliable, trace: StoreTrace) -> None:
    for step in (1, 2):
        trace.step(0, step, [])
        trace.flush()
        trace.flush()
    assert store.list("trace/") == ["trace/u-1-4-1-00000.jsonl", "trace/u-1-4-1-00001.jsonl"]


@pytest.mark.parametrize("how", ["refuse", "lose_answer"])
def test_after_a_failure_every_line_is_there_once(store: Unreliable, trace: StoreTrace, how: str) -> None:
    trace.step(0, 1, [7])
    setattr(store, how, True)
    with pytest.raises(StorageError):
        trace.flush()
    trace.event("exit", step=1)
    trace.flush()
    trace.flush()
    assert [line.get("event", line.get("ids")) for line in lines(store)] == [[7], "exit"]


def test_a_retry_has_the_same_bytes_so_one_that_arrives_late_takes_nothing_away(
    store: Unreliable, trace: StoreTrace
) -> None:
    trace.step(0, 1, [7])
    store.refuse = True
    with pytest.raises(StorageError):
        trace.flush()
    trace.event("exit", step=1)
    trace.flush()
    assert store.tried[0] == store.tried[1]
    assert len(lines(store)) == 2
