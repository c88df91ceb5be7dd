"""Assignments and outcomes: written strictly, read tolerantly."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.contract import (
    ASSIGNMENT_BYTES,
    OUTCOME_BYTES,
    VERSION,
    Assignment,
    CommitRef,
    ContractError,
    ErrorKind,
    ExitKind,
    Failure,
    Leave,
    Outcome,
    Standby,
    Train,
    UnsupportedVersion,
    fitting_tail,
    read_assignment,
    read_outcome,
    write_assignment,
    write_outcome,
)

whole = st.integers(0, 10**9)
runs = st.integers(1, 10**9)
causes = st.text(max_size=40)
lost = st.lists(runs, max_size=5).map(tuple)
masters = st.sampled_from(["10.0.0.1:29500", "[fd00::1]:1", "node:65535"])
trains = st.builds(
    Train, run=runs, rank=st.integers(0, 7), world=st.integers(8, 10**6), master=masters, cause=causes, seconds=whole,
    wait=whole, lost=lost,
)  # fmt: skip
leaves = st.builds(Leave, run=runs, cause=causes, seconds=whole, lost=lost)
assignments = st.one_of(trains, leaves, st.just(Standby()))

unknown = st.dictionaries(
    st.sampled_from(["later", "memory", "hint"]), st.one_of(st.none(), st.booleans(), whole, causes, st.lists(whole))
)
commits = st.none() | st.builds(CommitRef, seq=runs, step=whole)
failures = st.none() | st.builds(Failure, kind=st.sampled_from(ErrorKind), name=causes, tail=causes)
seconds = st.dictionaries(st.sampled_from(["agree", "stage", "upload"]), st.integers(0, 10**6).map(lambda n: n / 1000))
outcomes = st.builds(
    Outcome, outcome=st.sampled_from(ExitKind), run=whole, rank=whole, step=whole, commit=commits, opened=whole,
    seconds=seconds, error=failures,
)  # fmt: skip

TRAIN: dict[str, Any] = {"v": VERSION, "run": 2, "rank": 1, "world": 4, "master": "10.0.0.1:29500"}
LEAVE: dict[str, Any] = {"v": VERSION, "run": 2, "leave": True}
OUTCOME: dict[str, Any] = {"v": VERSION, "outcome": "failed", "run": 2, "rank": 1}


class TestAssignment:
    @given(assignments, unknown)
    def test_what_is_written_is_read_and_unknown_fields_are_ignored(
        self, assignment: Assignment, more: dict[str, Any]
    ) -> None:
        text = write_assignment(assignment)
        assert read_assignment(text) == assignment
        assert read_assignment(json.dumps(more | json.loads(text))) == assignment

    @given(assignments)
    def test_it_is_written_within_its_limit(self, assignment: Assignment) -> None:
        assert len(write_assignment(assignment).encode()) <= ASSIGNMENT_BYTES

    def test_one_that_is_too_long_is_refused_by_its_writer(self) -> None:
        with pytest.raises(ContractError, match="run 7 is longer than 1024 bytes"):
            write_assignment(Leave(7, cause="x" * 2000))

    def test_the_least_that_is_needed(self) -> None:
        assert read_assignment(json.dumps(TRAIN)) == Train(2, 1, 4, "10.0.0.1:29500")
        assert read_assignment(json.dumps(LEAVE)) == Leave(2)
        assert read_assignment('{"v": 1, "standby": true}') == Standby()

    @pytest.mark.parametrize("version", [0, 2, 99])
    def test_an_unknown_major_version_is_told_apart(self, version: int) -> None:
        with pytest.raises(UnsupportedVersion, match=f"version {version}, this side knows 1"):
            read_assignment(json.dumps({"v": version, "a new shape": []}))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("v", "1"),
            ("v", True),
            ("v", None),
            ("run", 0),
            ("run", "2"),
            ("run", None),
            ("run", 2.0),
            ("rank", -1),
            ("rank", 4),
            ("rank", True),
            ("world", 0),
            ("world", None),
            ("master", None),
            ("master", 5),
            ("master", "10.0.0.1"),
            ("master", "10.0.0.1:"),
            ("master", ":29500"),
            ("master", "host:²"),
            ("cause", 5),
            ("seconds", -1),
            ("seconds", 1.5),
            ("seconds", None),
            ("wait", "long"),
            ("lost", 1),
            ("lost", ["1"]),
            ("lost", [True]),
            ("lost", None),
        ],
    )
    def test_a_bad_field_is_named(self, field: str, value: Any) -> None:
        with pytest.raises(ContractError, match=field) as caught:
            read_assignment(json.dumps(TRAIN | {field: value}))
        assert not isinstance(caught.value, UnsupportedVersion)

    @pytest.mark.parametrize("field", ["v", "run", "rank", "world", "master"])
    def test_a_missing_field_is_named(self, field: str) -> None:
        with pytest.raises(ContractError, match=field):
            read_assignment(json.dumps({name: value for name, value in TRAIN.items() if name != field}))

    @pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "[" * 5000, '{"v": 1'])
    def test_what_is_no_document_is_a_contract_error(self, text: str) -> None:
        with pytest.raises(ContractError, match="not"):
            read_assignment(text)

    @given(st.text() | st.dictionaries(st.sampled_from(list(TRAIN)), st.integers() | st.text()).map(json.dumps))
    def test_whatever_the_text_nothing_but_a_contract_error_is_raised(self, text: str) -> None:
        try:
            read_assignment(text)
        except ContractError as error:
            assert str(error)  # noqa: PT017 - a value is as good


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
    def test_it_fits_whatever_the_error_says_and_keeps_the_end(self, name: str, tail: str) -> None:
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=Failure(ErrorKind.EXCEPTION, name, tail)))
        assert len(text.encode()) <= OUTCOME_BYTES
        error = read_outcome(text).error
        assert error
        assert tail.endswith(error.tail)

    def test_outcomes_of_a_pod_with_six_containers_are_kept_whole(self) -> None:
        share = 12 * 1024 // 6  # the kubelet's limit for all containers together
        assert share >= OUTCOME_BYTES

    @given(st.text(max_size=300), st.integers(0, 400))
    def test_a_tail_is_cut_no_more_than_needed(self, text: str, room: int) -> None:
        kept = fitting_tail(text, room)
        assert len(json.dumps(kept)) - 2 <= room
        longer = text[-len(kept) - 1 :]
        assert kept == text or len(json.dumps(longer)) - 2 > room

    @pytest.mark.parametrize("version", [0, 2])
    def test_an_unknown_major_version_is_told_apart(self, version: int) -> None:
        with pytest.raises(UnsupportedVersion):
            read_outcome(json.dumps(OUTCOME | {"v": version}))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("outcome", "later"),
            ("outcome", None),
            ("run", -1),
            ("run", None),
            ("rank", "0"),
            ("step", -1),
            ("opened", "x"),
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

    @pytest.mark.parametrize("value", ["long", None, 10**400, float("nan"), float("inf"), {}])
    def test_a_duration_that_is_none_is_left_out(self, value: Any) -> None:
        text = json.dumps(OUTCOME | {"seconds": {"agree": value, "stage": 2}})
        assert read_outcome(text).seconds == {"stage": 2.0}

    @pytest.mark.parametrize("text", ["", "Killed", "[" * 4000, "{}"])
    def test_another_programs_last_words_are_a_contract_error(self, text: str) -> None:
        with pytest.raises(ContractError):
            read_outcome(text)
