"""The process dies right before or right after any call to the store: a commit is complete or it is not there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from perdure.checkpoint.retention import retire
from perdure.errors import StorageError
from perdure.store import Store, open_store
from tests.support.forked import Forked
from tests.support.store import Died, MemoryStore, dying, failing
from tests.unit.runtime.checkpoint.world import load_solo, opened, same_state, save_solo, state, story, writer

STEPS = (10, 20, 30)


def train(store: Store) -> None:
    """A whole run that keeps two commits."""
    log_writer = writer(store, 1)
    log_writer.try_open(1, wait_over=False)
    for step in STEPS:
        save_solo(store, log_writer, step, final=step == STEPS[-1])
        retire(store, log_writer, 2)


def committed(store: Store) -> list[int]:
    return [int(word.partition("@")[2].rstrip("!")) for word in story(store) if word.startswith("Committed")]


def calls_of(act: Callable[[Store], None]) -> int:
    """How many calls to the store `act` makes when nothing goes wrong."""
    for number in range(1000):
        with suppress(Died):
            act(dying(MemoryStore(), number, after=False))
            return number
    raise AssertionError("it never ends")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_call_leaves_the_newest_commit_whole_and_the_next_run_goes_on(*, after: bool) -> None:
    calls = calls_of(train)
    assert calls > 20
    seen = set()
    for call in range(calls):
        store = MemoryStore()
        with pytest.raises(Died):
            train(dying(store, call, after=after))
        steps = committed(store)
        seen.add(len(steps))
        successor = opened(store, 2, wait_over=True)
        loaded = load_solo(store, successor)
        if not steps:
            assert loaded is None
        else:
            assert loaded, f"call {call}"
            assert (loaded.commit.step, loaded.skipped) == (steps[-1], ())
            assert same_state(loaded.state, state(steps[-1]))
        save_solo(store, successor, 40)
        retire(store, successor, 2)
        assert load_solo(store, successor)
    assert seen == {0, 1, 2, 3}


def train_through(store: Store) -> int:
    """The same run by a session that tries again after a StorageError; how often it had to."""
    log_writer = writer(store, 1)
    failures = attempt(lambda: log_writer.try_open(1, wait_over=False))
    for step in STEPS:
        failures += attempt(partial(save_solo, store, log_writer, step, final=step == STEPS[-1]))
        failures += attempt(lambda: retire(store, log_writer, 2))
    return failures


def attempt(act: Callable[[], object]) -> int:
    try:
        act()
    except StorageError:
        act()
        return 1
    return 0


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
def test_a_failure_at_any_call_is_made_good_by_trying_again(*, after: bool) -> None:
    for call in range(calls_of(train)):
        store = MemoryStore()
        assert train_through(failing(store, call, after=after)) == 1
        assert story(store) == ["Opened 1", "Committed 1 @10", "Committed 1 @20", "Committed 1 @30!"]
        folders = {key.split("/")[2].partition("-")[0] for key in store.list("data/")}
        assert folders == {"20", "30"}, f"call {call}"
        loaded = load_solo(store, opened(store, 2))
        assert loaded
        assert loaded.commit.step == 30


PROGRAM = """
import sys
from perdure.checkpoint.retention import retire
from perdure.store import open_store
from tests.unit.runtime.checkpoint.world import opened, save_solo
store = open_store(sys.argv[1], {})
log_writer = opened(store, None, wait_over=True)
for step in range(1, 1000):
    save_solo(store, log_writer, step)
    print(step, flush=True)
    retire(store, log_writer, 2)
"""


def test_a_process_killed_while_it_saves_on_a_folder_loses_no_commit_it_has_reported(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    for kill_at in (1, 4):
        program = Forked(
            ["-c", PROGRAM, uri], cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE
        )
        with program:
            assert program.stdout
            told = [int(program.stdout.readline()) for _ in range(kill_at)][-1]
            program.send_signal(signal.SIGKILL)
        log_writer = opened(store, None, uid="8a6d", wait_over=True)
        loaded = load_solo(store, log_writer)
        assert loaded
        assert loaded.commit.step >= told
        assert same_state(loaded.state, state(loaded.commit.step))
