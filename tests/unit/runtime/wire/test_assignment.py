"""Assignments: written strictly, read tolerantly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.wire import (
    ASSIGNMENT_BYTES,
    LARGEST,
    Assignment,
    CommitRef,
    ContractError,
    Leave,
    Standby,
    Train,
    UnsupportedVersion,
    read_assignment,
    write_assignment,
)
from tests.unit.runtime.wire.drawn import (
    LEAVE,
    TRAIN,
    assignments,
    unknown,
)


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
    def test_an_unknown_major_version_is_distinguished(self, version: int) -> None:
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

    @pytest.mark.parametrize(
        "floor", [None, 5, [], {}, {"seq": 1}, {"seq": 0, "step": 1}, {"seq": LARGEST + 1, "step": 1}]
    )
    def test_a_floor_that_cannot_be_read_is_none(self, floor: Any) -> None:
        assert read_assignment(json.dumps(TRAIN | {"floor": floor})) == Train(2, 1, 4, "10.0.0.1:29500")

    def test_a_floor_is_read_beside_what_a_newer_operator_adds(self) -> None:
        floor = {"seq": 9, "step": 40, "later": True}
        assignment = read_assignment(json.dumps(TRAIN | {"floor": floor}))
        assert assignment == Train(2, 1, 4, "10.0.0.1:29500", floor=CommitRef(9, 40))

    @pytest.mark.parametrize("field", ["run", "rank", "world", "seconds", "wait"])
    def test_a_number_that_no_status_can_hold_is_refused(self, field: str) -> None:
        with pytest.raises(ContractError, match=field):
            read_assignment(json.dumps(TRAIN | {field: LARGEST + 1}))
