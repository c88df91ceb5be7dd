"""A script's result in an outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from perdure.wire import (
    LARGEST,
    OUTCOME_BYTES,
    RESULT_BYTES,
    ErrorKind,
    ExitKind,
    Failure,
    HandoverRecord,
    HandoverWord,
    Outcome,
    read_outcome,
    write_outcome,
)
from tests.unit.runtime.wire.drawn import (
    OUTCOME,
)


class TestResult:
    def test_it_is_read_as_it_was_written(self) -> None:
        given = {"accuracy": 0.93, "steps": 2**60, "by": {"class": [1, None, "é"]}, "done": True}
        assert read_outcome(write_outcome(Outcome(ExitKind.COMPLETED, 1, 0, result=given))).result == given

    def test_an_outcome_without_one_does_not_name_it(self) -> None:
        assert "result" not in json.loads(write_outcome(Outcome(ExitKind.COMPLETED, 1, 0)))
        assert read_outcome(json.dumps(OUTCOME)).result is None

    @pytest.mark.parametrize("value", [3, [], "text", {"a": "x" * RESULT_BYTES}, {"a": {"b": float("nan")}}])
    def test_what_is_none_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        read = read_outcome(json.dumps(OUTCOME | {"result": value}))
        assert read == read_outcome(json.dumps(OUTCOME))

    def test_beside_an_error_there_is_no_room_for_it(self) -> None:
        error = Failure(ErrorKind.EXCEPTION, "ValueError", "x" * 600)
        read = read_outcome(write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=error, result={"best": 1})))
        assert (read.result, read.error) == (None, error)

    def test_the_largest_is_whole_and_attempts_take_what_is_left(self) -> None:
        most = {"text": "x" * (RESULT_BYTES - len('{"text":""}'))}
        records = tuple(HandoverRecord(run, HandoverWord.GO, parts={"pause": 0.04}) for run in range(1, 9))
        long = tuple(HandoverRecord(run, HandoverWord.ABORT, "x" * 130) for run in range(1, 5))
        seconds = {f"part {number}": 1234.567 for number in range(8)}
        whole = Outcome(ExitKind.COMPLETED, 1, 0, step=LARGEST, result=most, handovers=records, seconds=seconds)
        for outcome in (whole, replace(whole, handovers=long, live=False, live_why="x" * 100)):
            text = write_outcome(outcome)
            assert len(text.encode()) <= OUTCOME_BYTES
            assert read_outcome(text).result == most
        assert read_outcome(write_outcome(whole)).handovers[-1].run == 8
