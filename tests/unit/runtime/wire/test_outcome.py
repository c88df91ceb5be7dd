"""Outcomes: written strictly, read tolerantly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.wire import (
    BEGINNINGS_KEPT,
    LARGEST,
    OPENED_AT_MOST,
    OUTCOME_BYTES,
    RESULT_BYTES,
    Beginning,
    CommitRef,
    ContractError,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    Outcome,
    SkippedCommit,
    Unsaved,
    UnsupportedVersion,
    read_outcome,
    write_outcome,
)
from perdure.wire.truncation import CUT
from tests.unit.runtime.wire.drawn import (
    OUTCOME,
    outcomes,
    unknown,
)


class TestWhatRunsHaveBegunWith:
    def test_the_newest_are_reported(self) -> None:
        begun = tuple(Beginning(run, 10 * run, run - 1, 10 * run + 3) for run in range(1, 9))
        fell = SkippedCommit(8, 10, "commit 5 of step 90: " + "x" * 500)
        read = read_outcome(write_outcome(Outcome(ExitKind.FAILED, 8, 0, begun=begun, skipped_commit=fell)))
        assert read.begun == begun[-BEGINNINGS_KEPT:]
        assert read.skipped_commit is not None
        assert (read.skipped_commit.run, read.skipped_commit.steps) == (8, 10)
        assert read.skipped_commit.why.startswith("commit 5 of step 90")

    def test_beside_all_else_it_takes_what_is_left(self) -> None:
        most, seconds = {"text": "x" * (RESULT_BYTES - len('{"text":""}'))}, {f"part {n}": 1234.567 for n in range(8)}
        begun = tuple(Beginning(run, LARGEST, run - 1, LARGEST) for run in range(1, 5))
        whole = Outcome(
            ExitKind.COMPLETED, 4, 0, step=LARGEST, result=most, seconds=seconds, live=False, live_why="x" * 120,
            unsaved=Unsaved(7, "x" * 500), begun=begun, skipped_commit=SkippedCommit(4, LARGEST, "x" * 500),
        )  # fmt: skip
        text = write_outcome(whole)
        assert len(text.encode()) <= OUTCOME_BYTES
        assert read_outcome(text).result == most

    def test_an_older_agents_outcome_says_nothing_of_it(self) -> None:
        outcome = read_outcome(json.dumps(OUTCOME))
        assert (outcome.begun, outcome.skipped_commit) == ((), None)

    @pytest.mark.parametrize(
        "more",
        [
            {"begun": 3},
            {"begun": [3, {"run": 0, "step": 1}, {"run": 2, "step": -1}, {"run": 2}]},
            {"skippedCommit": [1]},
            {"skippedCommit": {"run": 2}},
            {"skippedCommit": {"run": 2, "steps": -1}},
        ],
    )
    def test_what_is_none_is_ignored_and_the_rest_is_read(self, more: dict[str, Any]) -> None:
        assert read_outcome(json.dumps(OUTCOME | more)) == read_outcome(json.dumps(OUTCOME))


class TestUnsaved:
    def test_it_is_read_as_it_was_written_in_few_bytes(self) -> None:
        unsaved = Unsaved(7, "no route to the store")
        assert read_outcome(write_outcome(Outcome(ExitKind.FAILED, 1, 0, unsaved=unsaved))).unsaved == unsaved
        error = Failure(ErrorKind.STORAGE, "StorageError", "x" * 3000)
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=error, unsaved=Unsaved(7, "😀" * 500)))
        assert len(text.encode()) <= OUTCOME_BYTES
        assert len(read_outcome(text).error.tail) > 1000  # type: ignore[union-attr]

    @pytest.mark.parametrize("value", [3, [], {"failures": 0}, {"failures": "x"}, {"why": "no route"}])
    def test_what_is_none_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        assert read_outcome(json.dumps(OUTCOME | {"unsaved": value})) == read_outcome(json.dumps(OUTCOME))


class TestFailure:
    @pytest.mark.parametrize(
        ("kind", "name", "infrastructure"),
        [
            (ErrorKind.SIGNAL, ErrorName.KILLED, True),
            (ErrorKind.SIGNAL, ErrorName.OUT_OF_MEMORY, True),
            (ErrorKind.SIGNAL, "SIGSEGV", False),
            (ErrorKind.STORAGE, "StorageError", True),
            (ErrorKind.EXIT, "SIGKILL", False),
            (ErrorKind.EXIT, ErrorName.NO_SESSION, False),
            (ErrorKind.EXCEPTION, ErrorName.LOG_LOST, False),
        ],
    )
    def test_a_failure_outside_of_all_code_is_infrastructure(
        self, kind: ErrorKind, name: str, infrastructure: bool
    ) -> None:
        error = Failure(kind, name)
        assert error.infrastructure is infrastructure
        assert Outcome(ExitKind.FAILED, 1, 0, error=error).infrastructure is infrastructure
        assert not Outcome(ExitKind.EXIT_TIMEOUT, 1, 0, error=error).infrastructure

    def test_an_unexplained_failure_came_from_outside(self) -> None:
        assert Outcome(ExitKind.FAILED, 1, 0).infrastructure


class TestOutcome:
    @given(outcomes, unknown)
    def test_what_is_written_is_read_and_unknown_fields_are_ignored(
        self, outcome: Outcome, more: dict[str, Any]
    ) -> None:
        text = write_outcome(outcome)
        assert read_outcome(text) == outcome
        assert read_outcome(json.dumps(more | json.loads(text))) == outcome

    @given(st.text(max_size=9000), st.text(max_size=9000))
    @example("", "\x00" * 5000)
    @example("", "😀" * 5000)
    @example("😀" * 500, "\ud800" * 5000)
    @example("", '"\\' * 5000)
    @example("", "ü" * 3000 + "\n" * 3000)
    def test_it_fits_whatever_the_error_says_and_keeps_head_and_end(self, name: str, tail: str) -> None:
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=Failure(ErrorKind.EXCEPTION, name, tail)))
        assert len(text.encode()) <= OUTCOME_BYTES
        error = read_outcome(text).error
        assert error
        head, _, end = error.tail.partition(CUT)
        assert error.tail == tail or (tail.startswith(head) and tail.endswith(end) and end)

    def test_outcomes_of_a_pod_with_six_containers_are_kept_whole(self) -> None:
        share = 12 * 1024 // 6  # the kubelet's limit for all containers together
        assert share >= OUTCOME_BYTES

    @given(st.integers(), st.integers(), st.integers(), st.integers())
    @example(-1, LARGEST + 1, LARGEST + 1, 2**63)
    def test_whatever_a_trainer_has_reported_its_outcome_can_be_read(
        self, step: int, opened: int, seq: int, commit: int
    ) -> None:
        outcome = Outcome(ExitKind.FAILED, 1, 0, step=step, commit=CommitRef(seq, commit), opened=opened)
        assert read_outcome(write_outcome(outcome)).outcome is ExitKind.FAILED

    @pytest.mark.parametrize("version", [0, 2])
    def test_an_unknown_major_version_is_distinguished(self, version: int) -> None:
        with pytest.raises(UnsupportedVersion):
            read_outcome(json.dumps(OUTCOME | {"v": version}))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("outcome", None),
            ("run", -1),
            ("run", None),
            ("rank", "0"),
            ("step", -1),
            ("run", LARGEST + 1),
            ("rank", LARGEST + 1),
            ("step", LARGEST + 1),
            ("commit", {"seq": LARGEST + 1, "step": 1}),
            ("commit", {"seq": 0, "step": 1}),
            ("commit", {"seq": 1}),
            ("error", {"kind": "exit", "name": 1}),
            ("error", {"kind": "exit", "tail": []}),
        ],
    )
    def test_a_bad_field_is_a_contract_error(self, field: str, value: Any) -> None:
        with pytest.raises(ContractError):
            read_outcome(json.dumps(OUTCOME | {field: value}))

    def test_a_newer_agents_kind_of_error_is_still_a_failure_of_its_own(self) -> None:
        error = {"kind": "cosmic-ray", "name": "n", "tail": "t"}
        assert read_outcome(json.dumps(OUTCOME | {"error": error})).error == Failure(ErrorKind.EXIT, "n", "t")

    def test_a_newer_agents_outcome_is_a_failure_judged_by_its_error(self) -> None:
        later = OUTCOME | {"outcome": "later", "commit": {"seq": 3, "step": 4}}
        outcome = read_outcome(json.dumps(later))
        assert (outcome.outcome, outcome.commit, outcome.infrastructure) == (ExitKind.FAILED, CommitRef(3, 4), True)
        blamed = read_outcome(json.dumps(later | {"error": {"kind": "exception", "name": "ValueError"}}))
        assert not blamed.infrastructure

    @pytest.mark.parametrize("value", [-1, "x", None, True, 1.5, [], OPENED_AT_MOST + 1, LARGEST, 2**53, 10**400])
    def test_an_absurd_opened_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        outcome = read_outcome(json.dumps(OUTCOME | {"opened": value, "step": 7}))
        assert (outcome.opened, outcome.step) == (0, 7)

    @pytest.mark.parametrize("value", [-1, "x", None, True, 1.5, [], 2**53, 10**400])
    def test_an_absurd_epoch_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        outcome = read_outcome(json.dumps(OUTCOME | {"epoch": value, "step": 7}))
        assert (outcome.epoch, outcome.step) == (None, 7)

    def test_an_unknown_epoch_is_not_written(self) -> None:
        assert "epoch" not in json.loads(write_outcome(Outcome(ExitKind.STOPPED, 1, 0)))

    def test_a_run_past_the_highest_opened_can_still_be_reported(self) -> None:
        told = read_outcome(json.dumps(OUTCOME | {"opened": OPENED_AT_MOST})).opened
        assert read_outcome(write_outcome(Outcome(ExitKind.FAILED, told + 1, 0))).run == told + 1

    @pytest.mark.parametrize("value", ["long", None, 10**400, float("nan"), float("inf"), {}])
    def test_a_duration_that_is_none_is_left_out(self, value: Any) -> None:
        text = json.dumps(OUTCOME | {"seconds": {"agree": value, "stage": 2}})
        assert read_outcome(text).seconds == {"stage": 2.0}

    @pytest.mark.parametrize("text", ["", "Killed", "[" * 4000, "{}"])
    def test_another_programs_last_words_are_a_contract_error(self, text: str) -> None:
        with pytest.raises(ContractError):
            read_outcome(text)
