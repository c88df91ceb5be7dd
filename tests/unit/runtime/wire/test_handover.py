"""The block of a live hand-over in an assignment, and what outcomes say of one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.wire import (
    OUTCOME_BYTES,
    ErrorKind,
    ExitKind,
    Failure,
    Handover,
    HandoverRecord,
    HandoverWord,
    Leave,
    Outcome,
    read_assignment,
    read_outcome,
    read_ranks,
    write_assignment,
    write_outcome,
    write_ranks,
)
from tests.unit.runtime.wire.drawn import (
    BLOCK,
    LEAVE,
    OUTCOME,
)


class TestHandover:
    def test_the_block_stands_in_an_assignment(self) -> None:
        block = Handover(1, 2, (1,), (1,), "10.0.0.1:29700", 30, "ab")
        assert read_assignment(json.dumps(LEAVE | {"handover": BLOCK})) == Leave(2, handover=block)
        assert json.loads(write_assignment(Leave(2, handover=block)))["handover"] == BLOCK

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("run", 0),
            ("run", "1"),
            ("world", 0),
            ("joins", [1]),
            ("joins", "1-"),
            ("joins", "3,2"),
            ("joins", "2-1"),
            ("joins", "-1"),
            ("joins", "²"),
            ("joins", "0-99999999999"),
            ("leavers", "2"),
            ("leavers", None),
            ("master", "host"),
            ("limit", -1),
            ("token", 5),
        ],
    )
    def test_a_block_that_cannot_be_read_leaves_a_plain_newer_run(self, field: str, value: Any) -> None:
        assert read_assignment(json.dumps(LEAVE | {"handover": BLOCK | {field: value}})) == Leave(2)

    @pytest.mark.parametrize("value", [None, 5, [], "x", {}])
    def test_what_is_no_block_is_none(self, value: Any) -> None:
        assert read_assignment(json.dumps(LEAVE | {"handover": value})) == Leave(2)

    @given(st.sets(st.integers(0, 3000)))
    def test_ranks_are_written_as_ranges(self, ranks: set[int]) -> None:
        assert read_ranks(write_ranks(tuple(ranks))) == tuple(sorted(ranks))

    def test_a_thousand_ranks_side_by_side_are_short(self) -> None:
        assert write_ranks((*range(1000), 1002)) == "0-999,1002"

    @pytest.mark.parametrize("value", [None, "x", {"run": 1}, {"run": 1, "word": "maybe"}, {"run": 0, "word": "go"}])
    def test_a_record_that_cannot_be_read_is_left_out(self, value: Any) -> None:
        good = {"run": 3, "word": "go", "parts": {"pause": 0.04, "x": "long"}}
        outcome = read_outcome(json.dumps(OUTCOME | {"handovers": [value, good]}))
        assert outcome.handovers == (HandoverRecord(3, HandoverWord.GO, parts={"pause": 0.04}),)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            {"run": 2, "word": "go"},
            {"run": 2, "voted": 1, "word": "go"},
            {"run": 2, "voted": True, "word": "restart"},
            {"run": 2, "voted": True, "word": "maybe"},
            {"run": 0, "voted": True, "word": "none"},
        ],
    )
    def test_what_tells_of_an_attempt_and_cannot_be_read_tells_nothing(self, value: Any) -> None:
        assert read_outcome(json.dumps(OUTCOME | {"attempt": value})).attempt is None

    def test_attempts_never_take_the_room_of_an_error(self) -> None:
        records = tuple(HandoverRecord(run, HandoverWord.ABORT, "😀" * 500) for run in range(1, 9))
        error = Failure(ErrorKind.EXCEPTION, "ValueError", "x" * 600)
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=error, handovers=records, live=False, live_why="w"))
        assert len(text.encode()) <= OUTCOME_BYTES
        read = read_outcome(text)
        assert read.error == error
        assert (read.live, read.live_why) == (False, "w")

    def test_an_older_agents_outcome_says_nothing_of_it(self) -> None:
        outcome = read_outcome(json.dumps(OUTCOME))
        assert (outcome.handovers, outcome.live, outcome.live_why) == ((), None, "")
