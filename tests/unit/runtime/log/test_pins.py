"""Pinned commits: which are kept beyond `keep`, for how long, and which entries know it."""

from __future__ import annotations

import json

import pytest

from perdure.checkpoint import inspect
from perdure.checkpoint.history import find, history
from perdure.checkpoint.retention import retire
from perdure.errors import StorageError, UserError
from perdure.log.entry import Committed, key_of, read_entry
from perdure.log.pins import MOST, Pins, check_pin
from perdure.log.writer import Writer
from perdure.store import Store, open_store
from perdure.wire import CommitSelector
from tests.support.store import Died, MemoryStore, dying, failing
from tests.unit.runtime.checkpoint.test_retention import kept
from tests.unit.runtime.checkpoint.world import load_solo, opened, save_solo

KEEP = 2


def step_by_step(store: Store, log_writer: Writer, steps: range, **pins: int) -> None:
    """A commit and the retention after it for each step; `pins` says which steps are saved under a name."""
    names = {step: name for name, step in pins.items()}
    for step in steps:
        save_solo(store, log_writer, step, pin=names.get(step))
        retire(store, log_writer, KEEP)


def test_a_pinned_commit_outlives_those_around_it() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    step_by_step(store, log_writer, range(1, 9), best=3, first=1)
    assert kept(store) == [1, 3, 7, 8]
    assert find(store, CommitSelector(pin="best")).commit.step == 3
    assert [one.commit.pins for one in history(store)] == [(), (), ("best",), ("first",)]


def test_a_commit_that_its_pin_has_left_is_retired_also_below_retired_ones() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    step_by_step(store, log_writer, range(1, 9), best=2)
    assert kept(store) == [2, 7, 8]
    save_solo(store, log_writer, 9, pin="best")
    retire(store, log_writer, KEEP)
    assert kept(store) == [8, 9]
    step_by_step(store, log_writer, range(10, 14))
    assert kept(store) == [9, 12, 13]


def test_a_commit_that_its_pin_leaves_while_it_is_among_the_newest_goes_in_its_turn() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    step_by_step(store, log_writer, range(1, 5))
    save_solo(store, log_writer, 5, pin="best")
    save_solo(store, log_writer, 6, pin="best")
    retire(store, log_writer, KEEP)
    assert kept(store) == [5, 6]
    step_by_step(store, log_writer, range(7, 10))
    assert kept(store) == [6, 8, 9]


def test_a_commit_with_two_pins_stays_for_the_other() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    save_solo(store, log_writer, 1, pin="best")
    entry = read_entry(2, store.get(key_of(2)))
    assert isinstance(entry.event, Committed)
    both = Pins({"best": 2, "good": 2})
    left = both.put_into(Committed(5, 0, {}, final=False, reason="", manifest=entry.event.manifest, pin="best"))
    assert (left.pins, left.released) == ({"good": 2}, ())
    assert both.of(2) == ("best", "good")


def test_pins_pass_from_run_to_run() -> None:
    store = MemoryStore()
    step_by_step(store, opened(store), range(1, 4), best=1)
    step_by_step(store, opened(store, 2, wait_over=True), range(4, 8))
    step_by_step(store, opened(store, 3, wait_over=True), range(8, 12))
    assert kept(store) == [1, 10, 11]
    assert opened(store, 4, wait_over=True).pins == Pins({"best": 2})


@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_call_leaves_the_pinned_commit_and_the_next_run_retires_what_its_pin_has_left(
    *, after: bool
) -> None:
    for call in range(200):
        store = MemoryStore()
        step_by_step(store, opened(store), range(1, 6), best=1)
        second = opened(store, 2, wait_over=True)
        mortal = dying(store, call, after=after)
        second.log.store = mortal
        try:
            save_solo(mortal, second, 6, pin="best")
            retire(mortal, second, KEEP)
        except Died:
            third = opened(store, 3, wait_over=True)
            moved = find(store, CommitSelector(pin="best")).commit.step == 6
            step_by_step(store, third, range(7, 11))
            assert kept(store) == [6 if moved else 1, 9, 10], f"call {call}"
        else:
            assert call > 10
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_that_landed_although_its_answer_was_lost_has_its_pin(*, after: bool) -> None:
    for call in range(20):
        store = MemoryStore()
        log_writer = opened(store)
        log_writer.log.store = failing(store, call, after=after)
        try:
            save_solo(log_writer.log.store, log_writer, 1, pin="best")
        except StorageError:
            save_solo(log_writer.log.store, log_writer, 2, pin="best")
            assert find(store, CommitSelector(pin="best")).commit.step == 2
            retire(store, log_writer, 1)
            assert kept(store) == [2]
        else:
            assert call > 3
            return
    raise AssertionError("it never ends")


def test_a_run_that_has_nothing_better_resumes_a_pinned_commit_and_calls_no_retired_one_damaged() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    step_by_step(store, log_writer, range(1, 9), best=2)
    for step in (7, 8):
        store.delete([key for key in store.list(f"data/1/{step}-") if "shard" in key])
    loaded = load_solo(store, log_writer)
    assert loaded
    assert loaded.commit.step == 2
    assert [words.split(":")[0] for words in loaded.skipped] == ["commit 9 of step 8", "commit 8 of step 7"]


def test_the_log_tells_pins_and_verify_takes_what_is_retired_above_one_for_retired(tmp_path: object) -> None:
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    step_by_step(store, opened(store), range(1, 6), best=2)
    assert "Committed step=2 epoch=0 pinned best (test)" in list(inspect.log(uri, {}))[-3].text
    assert [line.data["state"] for line in inspect.verify(uri, {}) if "state" in line.data] == [
        "whole",
        "whole",
        "retired",
        "whole",
        "retired",
    ]


def test_entries_without_pins_are_as_they_were_and_such_with_them_are_read_by_what_knows_none() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    save_solo(store, log_writer, 1)
    save_solo(store, log_writer, 2, pin="best")
    save_solo(store, log_writer, 3)
    found = [json.loads(store.get(key_of(seq))) for seq in (2, 3, 4)]
    news = [{name: entry[name] for name in ("pin", "pins", "released") if name in entry} for entry in found]
    assert news == [{}, {"pin": "best"}, {"pins": {"best": 3}}]
    assert {entry["version"] for entry in found} == {1}


def test_more_pins_than_an_entry_holds_are_refused_with_those_that_there_are() -> None:
    store = MemoryStore()
    log_writer = opened(store)
    for number in range(MOST):
        save_solo(store, log_writer, number + 1, pin=f"pin-{number}{'x' * 20}")
    save_solo(store, log_writer, 50, pin=f"pin-3{'x' * 20}")
    with pytest.raises(UserError, match=r"save\(pin='more'\): there are 16 pins already, pin-0x.*use one of these"):
        save_solo(store, log_writer, 51, pin="more")


@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 33, "über", 3, True])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(UserError, match="give a name of at most 32 letters"):
        check_pin(name)
    assert check_pin("best-2.1_x") == "best-2.1_x"
