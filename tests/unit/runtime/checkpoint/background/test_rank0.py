"""Rank 0's requests to the store: only the copied bytes are committed, and each request has one answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from perdure.checkpoint.background import events as on
from perdure.checkpoint.background.rank0 import CommitRequests, CopiedPart, Rank0Answer
from perdure.checkpoint.stage import stage
from perdure.checkpoint.upload import put_part
from perdure.errors import StorageError
from perdure.log.objects import index_key, manifest_key
from perdure.store import Store
from tests.support.store import MemoryStore, WatchedStore
from tests.unit.runtime.checkpoint.world import load_solo, opened, position, same_state, state, story

FOLDER = "data/1/10-00000000000000aa/"
NAME = "00000000000000aa"
PATIENCE_SECONDS = 60.0


def uploaded(store: Store) -> CopiedPart:
    """What the only rank's process has uploaded, as it was when it was copied."""
    shard = put_part(store, FOLDER, stage(state(10), 0, 1), 1, position(10))["shard"]
    return CopiedPart(shard["size"], shard["crc"])


def answer(requests: CommitRequests) -> Rank0Answer:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if found := requests.answers():
            (one,) = found
            return one
        time.sleep(0.001)
    raise TimeoutError("rank 0's request has no answer")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_was_copied_is_committed_and_comes_back(store: MemoryStore) -> None:
    requests, part = CommitRequests(store, opened(store), threading.Lock()), uploaded(store)
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    assert answer(requests) == on.Prepared(NAME)
    requests.append(NAME, position(10), final=False, reason="cadence", again=False)
    assert answer(requests) == on.Appended(NAME, 2)
    loaded = load_solo(store, opened(store, 2, wait_over=True))
    assert loaded
    assert same_state(loaded.state, state(10))


def other_bytes(store: MemoryStore, part: CopiedPart) -> CopiedPart:
    return CopiedPart(part.size, "0" * 16)


def other_step(store: MemoryStore, part: CopiedPart) -> CopiedPart:
    put_part(store, FOLDER, stage(state(10), 0, 1), 1, position(11))
    return part


def no_index(store: MemoryStore, part: CopiedPart) -> CopiedPart:
    store.delete([index_key(FOLDER, 0)])
    return part


def no_json(store: MemoryStore, part: CopiedPart) -> CopiedPart:
    store.put(index_key(FOLDER, 0), b"{")
    return part


@pytest.mark.parametrize("damage", [other_bytes, other_step, no_index, no_json])
def test_an_index_that_is_not_of_what_was_copied_is_not_committed(
    store: MemoryStore, damage: Callable[[MemoryStore, CopiedPart], CopiedPart]
) -> None:
    requests = CommitRequests(store, opened(store), threading.Lock())
    part = damage(store, uploaded(store))
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    found = answer(requests)
    assert isinstance(found, on.NotPrepared)
    assert index_key(FOLDER, 0) in found.why
    assert store.head(manifest_key(FOLDER)) is None


def test_an_append_without_an_answer_is_sent_again_and_is_one_entry(store: MemoryStore) -> None:
    lost = iter([True])

    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        done = act()
        if verb == "put" and key.startswith("log/") and next(lost, False):
            raise StorageError("the answer was lost")
        return done

    log_writer = opened(store)
    log_writer.log.store = WatchedStore(store, around)
    requests, part = CommitRequests(store, log_writer, threading.Lock()), uploaded(store)
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    assert answer(requests) == on.Prepared(NAME)
    for again, expected in ((False, on.NoAnswer(NAME)), (True, on.Appended(NAME, 2))):
        requests.append(NAME, position(10), final=False, reason="cadence", again=again)
        assert answer(requests) == expected
    assert "lost" in requests.trouble
    assert [word for word in story(store) if word.startswith("Committed")] == ["Committed 1 @10"]


def test_an_unexpected_error_is_an_answer_too(store: MemoryStore) -> None:
    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "put" and key.startswith(broken):
            raise RuntimeError("a thread cannot be started")
        return act()

    log_writer, part, broken = opened(store), uploaded(store), "data/"
    watched = WatchedStore(store, around)
    log_writer.log.store = watched
    requests = CommitRequests(watched, log_writer, threading.Lock())
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    assert answer(requests) == on.NotPrepared(NAME, "RuntimeError('a thread cannot be started')")
    broken = "log/"
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    assert answer(requests) == on.Prepared(NAME)
    requests.append(NAME, position(10), final=False, reason="cadence", again=False)
    assert answer(requests) == on.NoAnswer(NAME)
    assert requests.trouble == "RuntimeError('a thread cannot be started')"


def test_no_memory_and_no_thread_are_said_in_words_and_are_an_answer(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def around(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "put" and key.startswith("data/"):
            raise MemoryError
        return act()

    log_writer, part = opened(store), uploaded(store)
    requests = CommitRequests(WatchedStore(store, around), log_writer, threading.Lock())
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    told = answer(requests)
    assert isinstance(told, on.NotPrepared)
    assert "no memory was left" in told.why
    requests = CommitRequests(store, log_writer, threading.Lock())
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        requests.prepare(NAME, FOLDER, [part], 1, position(10))
        assert answer(requests) == on.NotPrepared(NAME, "no thread can be started: can't start new thread")
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    assert answer(requests) == on.Prepared(NAME)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        requests.append(NAME, position(10), final=False, reason="cadence", again=False)
        assert answer(requests) == on.NoAnswer(NAME)
        assert "no thread can be started" in requests.trouble


def no_thread(*_: object, **__: object) -> None:
    """As at a limit of processes."""
    raise RuntimeError("can't start new thread")


def test_a_newer_run_fences_it(store: MemoryStore) -> None:
    requests, part = CommitRequests(store, opened(store), threading.Lock()), uploaded(store)
    requests.prepare(NAME, FOLDER, [part], 1, position(10))
    assert answer(requests) == on.Prepared(NAME)
    opened(store, 2, wait_over=True)
    requests.append(NAME, position(10), final=False, reason="cadence", again=False)
    assert isinstance(answer(requests), on.CommitFenced)
    assert requests.fenced
    assert requests.fenced.opened == 2
