"""Log, commits and retention on every kind of store: what the faster tests show in memory holds on the real ones."""

from __future__ import annotations

import pytest

from perdure.checkpoint.retention import retire
from perdure.errors import Fenced
from perdure.store import Store
from tests.unit.runtime.checkpoint.test_save_load import load_by, save_by
from tests.unit.runtime.checkpoint.world import opened, same_state, state, story
from tests.unit.runtime.log.test_writer import race


def test_a_run_saves_is_overtaken_and_its_successor_of_another_size_resumes(store: Store) -> None:
    first = opened(store)
    for step in (10, 20, 30):
        assert [type(each).__name__ for each in save_by(store, 3, first, step)] == ["Saved"] * 3
        retire(store, first, 2)
    second = opened(store, 2, wait_over=True)
    with pytest.raises(Fenced):
        first.close("stopped")
    for loaded in load_by(store, 2, second):
        assert (loaded.commit.step, loaded.world, loaded.skipped) == (30, 3, ())
        assert same_state(loaded.state, state(30))
    assert {key.split("/")[2].partition("-")[0] for key in store.list("data/")} == {"20", "30"}


def test_raced_writers_have_one_winner_per_number(store: Store) -> None:
    opened(store, 1)
    assert 4 not in race(store, [2, 3, 4])
    runs = [int(word.split()[1]) for word in story(store)]
    assert runs == sorted(runs)
    assert story(store)[-1] == "Closed 4"
