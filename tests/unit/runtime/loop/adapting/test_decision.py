"""A decision: what it says, that it survives JSON, and what other ranks make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UserError
from perdure.loop.adapting.decision import BatchDecision, fitted, last_at, read_decision

WHOLE = BatchDecision(epoch=1, consumed=40, ranks=2, batch=64, micro=16, accumulation=1, noise=0.1 + 0.2, rate=1 / 3)


def test_what_is_written_is_read_to_the_last_bit() -> None:
    assert read_decision(json.loads(json.dumps(WHOLE.write())), "it") == WHOLE


def test_a_person_writes_a_place_and_a_batch() -> None:
    found = read_decision({"epoch": 0, "consumed": 8, "batch": 30, "accumulation": 1}, "it")
    assert found == BatchDecision(0, 8, 1, 30, 15, 1, None, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch is 0: give a whole number of 1 or more"),
        ({"batch": True}, "batch is True"),
        ({"epoch": -1}, "epoch is -1"),
        ({"consumed": 1.5}, "consumed is 1.5"),
        ({"ranks": 0}, "ranks is 0"),
        ({"rate": 0}, "rate is 0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"noise": -1}, "noise is -1"),
        ({"noise": float("inf")}, "noise is inf"),
        ({"micro": 1}, "have no room for a batch of 64"),
    ],
)
def test_what_is_no_decision_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^it: .*{words}"):
        read_decision(WHOLE.write() | change, "it")


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(UserError, match=r"it is '\[1\]': give a mapping"):
        read_decision([1], "it")


@given(batch=st.integers(1, 500), ranks=st.integers(1, 9), most=st.integers(1, 60), accumulates=st.booleans())
def test_no_rank_gets_more_than_it_can_hold(batch: int, ranks: int, most: int, accumulates: bool) -> None:
    found = fitted(replace(WHOLE, batch=batch, accumulation=0), ranks, most, accumulates=accumulates)
    assert found.ranks == ranks
    assert found.micro <= most
    assert found.micro * ranks * (found.accumulation + 1) >= found.batch
    assert found.batch == batch if accumulates else found.batch == min(batch, ranks * most)
    assert accumulates or found.accumulation == 0
    assert (found.micro - 1) * ranks * (found.accumulation + 1) < found.batch, "and not more than needed"
    assert found.split(found.batch) <= found.accumulation + 1


def test_parts_that_were_decided_stay_with_more_ranks() -> None:
    assert fitted(WHOLE, 4, 1000, accumulates=True) == replace(WHOLE, ranks=4, micro=8)


def test_a_rate_that_hardly_differs_is_the_same() -> None:
    assert WHOLE.says_the_same(replace(WHOLE, rate=0.34, noise=7.0, consumed=0))
    assert not WHOLE.says_the_same(replace(WHOLE, rate=0.36))
    assert not WHOLE.says_the_same(replace(WHOLE, batch=65))


def test_the_last_one_that_has_begun_counts() -> None:
    one, other = replace(WHOLE, epoch=0), replace(WHOLE, batch=8)
    assert last_at([one, WHOLE, other], (1, 40)) == other
    assert last_at([one, WHOLE, other], (1, 39)) == one
    assert last_at([WHOLE], (0, 50)) is None
